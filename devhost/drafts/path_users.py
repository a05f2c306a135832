"""Pods, values of charts and services of Compose that have devices of the host by path."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from devhost.drafts.dev_names import path_source
from devhost.drafts.draft import DraftEntry, lost_entry
from devhost.hostfs.files import HostFiles, is_in_dev

_UNNAMED: Final = "nothing says which devices it uses: `devhost init` on its node names them"
_VARIABLE: Final = "it has a variable: write its value"
_CDI: Final = "a device of CDI: an entry of `allocate.cdi` gives it"
_GPU: Final = (
    "for NVIDIA's runtime, pods ask for `nvidia.com/gpu` of NVIDIA's plugin, which works beside "
    "devhost; a GPU below /dev/dri is a device of `devhost init`"
)


class PathUse(NamedTuple):
    """A path that a container of the owner has as another; a problem, where it is no device."""

    owner: str
    name: str
    path: str
    inside: str
    advice: str = ""
    problem: str = ""


def find_uses(tree: Any) -> Iterator[PathUse]:
    """Yield what a manifest, values or a file of Compose has by path."""
    match tree:
        case {"items": [*manifests]}:
            for manifest in manifests:
                yield from find_uses(manifest)
        case {"services": dict() as services}:
            for name, service in services.items():
                if isinstance(service, dict):
                    yield from _uses(f"service {name}", service, _of_service(name, service))
        case {"kind": kind, "metadata": {"name": name}}:
            yield from _uses(f"{kind} {name}", tree, _of_volumes(tree))
        case dict():
            yield from _uses("the values", tree, _of_volumes(tree))


def mappings_below(value: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each mapping in a value with the nearest key above, but for what is not enabled."""
    if isinstance(value, dict) and value.get("enabled") != "false":
        yield key, value
        for name, child in value.items():
            yield from mappings_below(child, name)
    elif isinstance(value, list):
        for child in value:
            yield from mappings_below(child, key)


def _of_volumes(tree: Any) -> Iterator[tuple[str, str, str]]:
    """Yield name, path on the host and in the container of the volumes of pods, or of values."""
    mappings = [*mappings_below(tree)]
    mounts = {str(mount.get("name")): mount.get("mountPath") for _, mount in reversed(mappings)}
    for key, volume in mappings:
        host = volume.get("hostPath")
        host = host.get("path") if isinstance(host, dict) else host
        if isinstance(host, str):
            name = str(volume.get("name") or key)
            below = (m.get("path") for _, m in mappings_below(volume) if "hostPath" not in m)
            inside = volume.get("mountPath") or mounts.get(name) or next(filter(None, below), host)
            yield name, host, str(inside)


def _of_service(name: str, service: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the same for a service, whose devices are named by it or by their path."""
    for key in ("devices", "volumes"):
        entries = service.get(key)
        for entry in entries if isinstance(entries, list) else ():
            host, inside, *_ = (*str(entry).split(":"), "")
            if isinstance(entry, dict):
                host, inside = str(entry.get("source")), str(entry.get("target"))
            if key == "devices" or is_in_dev(host):
                short = name if "/by-" in host else host.rstrip("/").rpartition("/")[2]
                yield short, host, inside if inside.startswith("/") else host


def _uses(owner: str, value: Any, volumes: Iterable[tuple[str, str, str]]) -> Iterator[PathUse]:
    """Yield what is a device, and what cannot be a resource."""
    mappings, uses = [mapping for _, mapping in mappings_below(value)], 0
    privileged = any(mapping.get("privileged") == "true" for mapping in mappings)
    advice = "; take out the volume `{}`" + ", and `privileged`, unless it needs more" * privileged
    for name, path, inside in volumes:
        host = path.rstrip("/")
        in_dev = is_in_dev(host) and host != "/dev"
        problem = _VARIABLE if "$" in host else _CDI if "=" in host and host[0] != "/" else ""
        problem = problem or (_UNNAMED if host == "/dev" else "")
        if in_dev or problem:
            uses += 1
            text = advice.format(name) if "kind" in value or "persistence" in value else ""
            yield PathUse(owner, name, host, inside.rstrip("/"), text, problem)
    if any("gpu" in str(mapping.get("capabilities")) or "gpus" in mapping for mapping in mappings):
        yield PathUse(owner, "", "a GPU", "", problem=_GPU)
    elif privileged and not uses:
        yield PathUse(owner, "", "privileged", "", problem=_UNNAMED)


def build_entries(uses: Iterable[PathUse], domain: str, files: HostFiles) -> Iterator[DraftEntry]:
    """Yield a resource for each path, with what its pods need, or why there is none. Blocks."""
    by_path, names = dict[tuple[str, str], list[PathUse]](), set[str]()
    for use in uses:
        if use.problem:
            yield lost_entry(f"{use.owner}, {use.path}", use.problem)
        else:
            by_path.setdefault((use.path, use.inside), []).append(use)
    for (path, inside), users in by_path.items():
        name = f"{domain}/{re.sub('[^A-Za-z0-9_.-]+', '-', users[0].name).strip('-_.')}"
        name += f"-{len(names)}" if name in names else ""
        names.add(name)
        moved = {"hostPath": "${path}", "containerPath": inside.replace("$", "$$")}
        resource = {
            "name": name,
            "sources": [path_source(path, files)],
            "allocate": {"devices": ["${path}" if inside == path else moved]},
            **({"replicas": len(users)} if len(users) > 1 else {}),
        }
        request = f"below `resources.limits` of the container, write `{name}: 1`"
        yield DraftEntry(resource, tuple(f"{use.owner}: {request}{use.advice}" for use in users))
