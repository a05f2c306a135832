"""What a configuration may ask for: editing it must not give control of the node.

Without flags, containers may be given only character devices below ``/dev`` of classes that are
known to be safe (`device_classes`). Everything else needs a flag, and each flag adds to that.
"""

import fnmatch
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from devhost.allocation.device_classes import MEMORY, UNKNOWN, DeviceClass, DeviceClasses
from devhost.allocation.rules import Target
from devhost.hostfs.block_use import BlockUse
from devhost.hostfs.files import HostFiles, is_in_dev
from devhost.hostfs.mounts import Number
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.device import FileKind
from devhost.model.hardware import vendor_product

_BLOCK: Final = DeviceClass("block")
_MEMORY_PATHS: Final = ("/dev/mem", "/dev/kmem", "/dev/port")
_ANY_NODES: Final = ("/dev/any-name", "/dev/0/9")  # that a glob over all of /dev matches
# Symlinks that nearly every machine has.
_USUAL_LINKS: Final = {"/var/run/": "/run/", "/var/lock/": "/run/lock/"}
# By which the container runtimes of NVIDIA, AMD, Habana and Ascend add devices.
_RUNTIME_VARIABLES: Final = ("NVIDIA_*", "ASCEND_*", "*_VISIBLE_DEVICES")


@immutable
class Policy:
    """What the process was started to allow.

    Attributes:
        allow_paths: Globs on resolved host paths of mounts, and of files that not everybody may
            read; ``*`` also matches ``/``.
        allow_exec: Whether a configuration may run commands.
        enforced: Whether asking for more is refused; otherwise it is a warning.
        allow_devices: Classes of devices, ``vendor:product`` of raw USB nodes, and globs on
            resolved paths of device nodes.
        allow_resources: Names of resources that another device plugin may serve too.
        allow_cdi: Globs on fully qualified CDI names, and on variables by which a container
            runtime adds devices.
        allow_annotations: Globs on annotation keys.
        trusted: Whether code asks rather than a configuration: it may have any device node.
    """

    allow_paths: tuple[str, ...] = ()
    allow_exec: bool = False
    enforced: bool = False
    allow_devices: tuple[str, ...] = ()
    allow_resources: tuple[str, ...] = ()
    allow_cdi: tuple[str, ...] = ()
    allow_annotations: tuple[str, ...] = ()
    trusted: bool = False

    def allows_path(self, path: str) -> bool:
        """Say whether ``--allow-path`` names a resolved host path."""
        return _matches(path, self.allow_paths)

    @property
    def shown_paths(self) -> tuple[str, ...] | None:
        """Globs on what may be told although only some users may see it; ``None``: all may."""
        return self.allow_paths if self.enforced else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What flags allow more than is likely meant."""
        return tuple(
            f"--allow-device '{glob}' covers all of /dev, and every disk with it: name the "
            "devices, such as '/dev/sd[b-z]'"
            for glob in self._node_globs
            if all(fnmatch.fnmatchcase(path, glob) for path in _ANY_NODES)
        )

    @property
    def allows_block(self) -> bool:
        """Whether any block device may be allowed."""
        return bool(self._node_globs or _BLOCK.name in self.allow_devices)

    @property
    def _node_globs(self) -> tuple[str, ...]:
        return tuple(one for one in self.allow_devices if "/" in one)

    def _allows_node(self, path: str) -> bool:
        return _matches(path, self._node_globs)

    def _names_node(self, path: str) -> bool:
        return path in self.allow_devices and not set("*?[") & set(path)

    def _allows_class(self, found: DeviceClass) -> bool:
        ids = (one.lower() for one in self.allow_devices if ":" in one)
        return found.safe or found.name in self.allow_devices or _matches(found.usb_id, ids)

    def written_refusal(self, path: str, *, mount: bool) -> str | None:
        """Return why a host path as written may not be given to a container.

        `refusal` says the rest, once it is known where the path leads.
        """
        plain = posixpath.normpath(path)
        if mount:
            if self.allows_path(plain) or self.allows_path(_usually(plain)):
                return None
            return f"mounts need --allow-path '{path}'"
        if plain in _MEMORY_PATHS:
            return None if self._names_node(plain) else _refused_memory(plain)
        if not path.startswith("/dev/"):
            if self._allows_node(plain) or self._allows_node(_usually(plain)):
                return None
            return f"{path} is not below /dev: it needs --allow-device '{path}'"
        return None

    def refusal(self, realpath: str, *, mount: bool) -> str | None:
        """Return why a host path that is no device node may not be given to others, or ``None``.

        Args:
            realpath: The host path with ``..`` and links resolved.
            mount: Whether it is mounted rather than an argument of a command.
        """
        if self.allows_path(realpath):
            return None
        what = "mounts of" if mount else "files such as"
        return f"{what} {realpath} need --allow-path '{realpath}'"

    def node_refusal(self, path: str, found: DeviceClass, use: str | None = None) -> str | None:
        """Return why a device node may not be given to a container, or ``None``.

        Args:
            path: The host path with ``..`` and links resolved.
            found: Its class.
            use: Why a block device is in use by the host.
        """
        if self.trusted or self._names_node(path):
            return None
        if found.name == MEMORY:
            return _refused_memory(path)
        if use is not None:
            return (
                f"{path} is in use by the host ({use}): it needs --allow-device '{path}', without "
                "wildcards"
            )
        if self._allows_node(path):
            return None
        if not is_in_dev(path):
            return f"{path} is not below /dev: it needs --allow-device '{path}'"
        if found.name != UNKNOWN and self._allows_class(found):
            return None
        by_path = found.name in (UNKNOWN, _BLOCK.name)
        flag = f"'{path}'" if by_path else found.usb_id or found.name
        return f"{path} is of class {found.name}: it needs --allow-device {flag}"

    def name_refusal(self, target: Target, name: str) -> str | None:
        """Return why a resource may not use a name in ``allocate``, or ``None``.

        Args:
            target: The list of ``allocate``.
            name: A variable, an annotation's key, or a CDI device; others are not judged here.
        """
        if target == "annotations" and not _matches(name, self.allow_annotations):
            return f"annotation {name} needs --allow-annotation '{name}'"
        if target == "cdi" and not _matches(name, self.allow_cdi):
            return f"CDI device {name} needs --allow-cdi '{name}'"
        adds_devices = target == "env" and _matches(name, _RUNTIME_VARIABLES)
        if adds_devices and not _matches(name, self.allow_cdi):
            return f"by {name} a container runtime adds devices: it needs --allow-cdi '{name}'"
        return None

    def name_refusals(self, allocation: Allocation) -> Iterator[str]:
        """Yield why parts of an answer may not be given, by their names."""
        used: tuple[tuple[Target, tuple[str, ...]], ...] = (
            ("env", tuple(allocation.envs)),
            ("annotations", tuple(allocation.annotations)),
            ("cdi", allocation.cdi_devices),
        )
        for target, keys in used:
            for name in keys:
                if reason := self.name_refusal(target, name):
                    yield reason


class NodeRules:
    """What the policy says of device nodes that are there.

    It asks the kernel once for each number: a new one for each scan, Allocate, check and step.
    """

    def __init__(self, files: HostFiles, policy: Policy) -> None:
        self._policy = policy
        self._classes, self._use = DeviceClasses(files), BlockUse(files)

    def refusal(self, realpath: str, kind: FileKind, number: Number) -> str | None:
        """Return why a device node may not be used, or ``None``. Blocks.

        Args:
            realpath: The host path with ``..`` and links resolved.
            kind: What it is.
            number: Its major and minor.
        """
        if kind is FileKind.BLOCK:
            return self._policy.node_refusal(realpath, _BLOCK, self._use.of(number))
        return self._policy.node_refusal(realpath, self._classes.of(number))


def path_glob_problem(glob: str) -> str | None:
    """Return why a glob cannot match an absolute path, or ``None``."""
    return None if glob.startswith(("/", "*", "?", "[")) else f"{glob!r} does not begin with '/'"


def device_problem(text: str) -> str | None:
    """Return why a text is no class, ``vendor:product`` or glob on absolute paths, or ``None``."""
    if "/" in text:
        return path_glob_problem(text)
    if ":" in text:
        try:
            vendor_product(text)
        except ValueError as error:
            return str(error)
    elif set("*?[") & set(text):
        return f"{text!r} is not a class; a glob on paths begins with '/'"
    return None


# Why a value of a field is none.
VALUE_PROBLEMS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "allow_paths": path_glob_problem,
    "allow_devices": device_problem,
    "allow_resources": names.resource_name_problem,
}


def _matches(text: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def _refused_memory(path: str) -> str:
    return f"{path} is of class {MEMORY}: it needs --allow-device '{path}', without wildcards"


def _usually(path: str) -> str:
    """Resolve the usual symlinks in a path, without reading the host."""
    for link, target in _USUAL_LINKS.items():
        if path.startswith(link):
            return target + path.removeprefix(link)
    return path
