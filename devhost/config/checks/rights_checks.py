"""Checks of what needs a right, as far as a file tells it; the rest is known on a host."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final

from devhost.allocation.policy import Policy, source_identities
from devhost.allocation.rules import Rule, Rules, command_problems, mounted_globs, uses_nodes
from devhost.config.yaml_tree import CheckProblem
from devhost.errors import Severity
from devhost.hostfs.device_classes import (
    BLOCK,
    MEMORY,
    SAFE_CLASSES,
    DeviceClass,
    class_by_path,
    misc_class,
)
from devhost.hostfs.files import is_wild
from devhost.model.config import Resource
from devhost.model.hardware_sources import NO_NODE, USB_NODE, Pci, Sysfs, Usb
from devhost.model.pattern import matches_any
from devhost.model.sources import Dev, Directory, Glob, Kind

_DISKS: Final = "/dev/disk/"
# Subsystems whose nodes need no right, have none, or of whose nodes a name or more decides.
_UNDECIDED: Final = SAFE_CLASSES | {NO_NODE, USB_NODE, "mem", "misc", "net", "tty"}
_ANY_NUMBER: Final = re.compile(r"(?:[*?+]|\[0-9\]|\\d)+$")  # at the end of a glob or a pattern
_LINKS: Final = (("/var/run/", "/run/"), ("/var/lock/", "/run/lock/"))  # on most hosts


def check_rights(resource: Resource, rules: Rules, policy: Policy) -> Iterator[CheckProblem]:
    """Yield what a resource needs a flag for: an error where the policy is enforced."""
    severity: Severity = "error" if policy.enforced else "warning"
    if resource.uses_dra(policy.node_name) and policy.dra_problem:
        yield CheckProblem(severity, ("backend",), policy.dra_problem)
    for path, text in command_problems(resource, policy):
        yield CheckProblem(severity, path, text, on_key=True)
    for rule in rules:
        if refusal := _entry_refusal(rule, resource, policy):
            on_key = rule.target in ("env", "annotations")
            of_source = rule.target == "cdi" and resource.cdi_kind is not None
            path = ("sources", 0) if of_source else rule.path
            yield CheckProblem(severity, path, refusal, on_key)
    for index, source in enumerate(resource.sources if uses_nodes(resource) else ()):
        for refusal in filter(None, _source_refusals(source.kind, policy)):
            yield CheckProblem(severity, ("sources", index), refusal)


def _entry_refusal(rule: Rule, resource: Resource, policy: Policy) -> str | None:
    """Return why a policy refuses an entry of `allocate`, or ``None``."""
    if rule.nodes_only:
        return None
    if rule.target in ("devices", "mounts"):
        mount = rule.target == "mounts"
        if not rule.value.names:
            return _path_refusal(str(rule.value), policy, mount=mount)
        if mount and not policy.allow_paths:
            globs = mounted_globs(resource, rule.value) or ("GLOB",)
            return f"mounts need {policy.needed('path', *globs)}"
        return None
    if rule.key.names <= {"resource"}:
        return policy.name_problem(rule.target, rule.key.render({"resource": resource.name}))
    if rule.target != "cdi":
        return None
    kinds = [glob.partition("=")[0] for glob in policy.allow_cdi]
    if (kind := resource.cdi_kind) is not None and not matches_any(kind, kinds):
        return f"CDI devices need {policy.needed('cdi', f'{kind}=*')}"
    return None if kinds else f"CDI devices need {policy.needed('cdi', 'GLOB')}"


def _path_refusal(path: str, policy: Policy, *, mount: bool) -> str | None:
    """Return why a host path may not be given as it is written; where it leads is not known."""
    plain = posixpath.normpath(path)
    usual = next((to + plain[len(at) :] for at, to in _LINKS if plain.startswith(at)), plain)
    if not mount and (refusal := _name_refusal(plain, policy)):
        return refusal
    globs = policy.allow_paths if mount else ("/dev", "/dev/*", *policy.node_globs)
    if matches_any(plain, globs) or matches_any(usual, globs):
        return None
    if mount:
        return f"mounts need {policy.needed('path', path)}"
    return f"{path} is not below /dev: it needs {policy.needed('device', path)}"


def _name_refusal(path: str, policy: Policy) -> str | None:
    """Return why a node may not be given whose class is known by its name, or ``None``."""
    device_class = class_by_path(path)
    is_final = device_class == MEMORY or not policy.identities
    return policy.node_problem(path, device_class) if device_class and is_final else None


def _source_refusals(kind: Kind, policy: Policy) -> Iterator[str | None]:
    """Yield why a policy refuses the nodes of a source, or ``None``."""
    words = source_identities(kind)
    match kind:
        case Usb(node=choices) | Pci(node=choices):
            for name in (choice.subsystem for choice in choices):
                if name == USB_NODE:
                    yield _raw_usb_refusal(words, policy)
                elif name not in _UNDECIDED:
                    yield _class_refusal(DeviceClass(name), policy, words)
        case Sysfs(subsystem="misc", node=None, name=[*globs]):
            names = [name for name in globs if not is_wild(name)]
            yield from (_class_refusal(misc_class(name), policy) for name in names)
        case Sysfs(subsystem=subsystem, node=None) if subsystem not in _UNDECIDED:
            yield _class_refusal(DeviceClass(subsystem), policy, words)
        case Directory() | Glob() | Dev() if _finds_disks(kind):
            yield _class_refusal(BLOCK, policy, words)
        case Glob(paths=paths):
            yield from (_nodes_refusal(path, policy) for path in paths)
        case Dev(pattern=text):
            yield _nodes_refusal(f"/dev/{text}", policy)


def _finds_disks(kind: Directory | Glob | Dev) -> bool:
    """Whether a source finds nothing but block devices."""
    if isinstance(kind, Glob) and kind.types is None:
        return all(path.startswith(_DISKS) for path in kind.paths)
    return kind.types == ("block",)


def _nodes_refusal(path: str, policy: Policy) -> str | None:
    """Return why a policy refuses the nodes of a glob or pattern that ends with any number."""
    numbered = _ANY_NUMBER.sub("0", path)
    if numbered == path or path.startswith("/dev/tty"):  # which adapters on USB may match
        return _name_refusal(posixpath.normpath(path), policy)
    device_class = class_by_path(numbered)
    return _class_refusal(device_class, policy) if device_class is not None else None


def _class_refusal(
    device_class: DeviceClass, policy: Policy, words: Sequence[str] = ()
) -> str | None:
    """Return why no node of a class may be given, or ``None``.

    The ``words`` are the rights to them alone. Which of them a glob on paths allows is known
    when they are found.
    """
    name, is_block = device_class.name, device_class == BLOCK
    if device_class.safe or policy.node_globs or policy.identities or name in policy.allow_devices:
        return None
    words = words or ("/dev/disk/by-id/NAME" if is_block else name,)
    nodes = "block devices" if is_block else f"nodes of class {name}"
    return f"{nodes} need {policy.needed('device', *words)}"


def _raw_usb_refusal(words: Sequence[str], policy: Policy) -> str | None:
    """Return why raw USB nodes may not be given, of which these ``words`` are the rights."""
    # Any product may be at a place.
    rights = (re.sub("place:.*", "*", right.lower()) for right in policy.allow_devices)
    globs = [_product(right) for right in rights if ":" in right or right == "*"]
    if "usb" in policy.allow_devices or policy.node_globs or (globs and not words):
        return None
    named = dict.fromkeys(word.removesuffix(":*") for word in words or ("VENDOR:PRODUCT",))
    missing = [word for word in named if not matches_any(_product(word), globs)]
    return f"raw USB nodes need {policy.needed('device', *missing)}" if missing else None


def _product(word: str) -> str:
    return ":".join(word.split(":")[:2])
