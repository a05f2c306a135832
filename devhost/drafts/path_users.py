"""Pods, values of charts and services of Compose that have devices of the host by path."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from devhost.drafts.draft import DraftEntry, lost_entry
from devhost.drafts.generic_plugin import convert_device
from devhost.hostfs.files import HostFiles, is_in_dev

_UNNAMED: Final = "nothing says which devices it uses: `devhost init` on its node names them"
_NO_PATH: Final = "no path: write the value of a variable, and below `allocate.cdi` a device of CDI"
_GPU: Final = (
    "pods ask for `nvidia.com/gpu` of NVIDIA's plugin, which works beside devhost; a GPU below "
    "/dev/dri is a device of `devhost init`"
)
_Volume = tuple[str, str, str]  # its name, the path on the host, the path in the container


class PathUse(NamedTuple):
    """A path of the host that a container has, and what to take out of its pod."""

    owner: str
    name: str
    path: str
    inside: str
    advice: str


def find_uses(tree: Any) -> Iterator[PathUse | DraftEntry]:
    """Yield what a manifest, values or a file of Compose have by path, and what is no resource."""
    match tree:
        case {"items": [*manifests]}:
            for manifest in manifests:
                yield from find_uses(manifest)
        case {"services": dict() as services}:
            for name, service in services.items():
                if isinstance(service, dict):
                    yield from _judge_volumes(
                        f"service {name}", service, [*_find_devices(name, service)]
                    )
        case {"kind": kind, "metadata": {"name": name}}:
            yield from _judge_volumes(f"{kind} {name}", tree, [*_find_volumes(tree)])
        case dict():
            yield from _judge_volumes("values", tree, [*_find_volumes(tree)])


def walk_mappings(value: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each mapping in a value with the nearest key above, but for what is not enabled."""
    if isinstance(value, dict) and value.get("enabled") != "false":
        yield key, value
        for name, child in value.items():
            yield from walk_mappings(child, name)
    elif isinstance(value, list):
        for child in value:
            yield from walk_mappings(child, key)


def _find_volumes(tree: Any) -> Iterator[_Volume]:
    mappings = [*walk_mappings(tree)]
    volume_mounts = [mapping for _, mapping in reversed(mappings) if "mountPath" in mapping]
    mounts = {str(mount.get("name")): mount["mountPath"] for mount in volume_mounts}
    for key, volume in mappings:
        host = volume.get("hostPath")
        host = host.get("path") if isinstance(host, dict) else host
        if isinstance(host, str) and is_in_dev(host):
            name = str(volume.get("name") or key)
            below = (part.get("path") for _, part in walk_mappings(volume) if part is not volume)
            inside = volume.get("mountPath") or mounts.get(name) or next(filter(None, below), host)
            yield name, host, str(inside)


def _find_devices(service_name: str, service: dict[str, Any]) -> Iterator[_Volume]:
    for key in ("devices", "volumes"):
        entries = service.get(key)
        for entry in entries if isinstance(entries, list) else ():
            host, inside, *_ = (*str(entry).split(":"), "")
            if isinstance(entry, dict):
                host, inside = str(entry.get("source")), str(entry.get("target"))
            if is_in_dev(host) or key == "devices":
                name = service_name if "/by-" in host else host.rpartition("/")[2]
                yield name, host, inside if inside.startswith("/") else host


def _judge_volumes(
    owner: str, value: Any, volumes: list[_Volume]
) -> Iterator[PathUse | DraftEntry]:
    mappings = [mapping for _, mapping in walk_mappings(value)]
    privileged = any(mapping.get("privileged") == "true" for mapping in mappings)
    rest = " and `privileged`, unless it needs more" if privileged else ""
    for name, path, inside in volumes:
        host = path.rstrip("/")
        if host == "/dev" or not is_in_dev(host):
            yield lost_entry(f"{owner}: {path}", _UNNAMED if host == "/dev" else _NO_PATH)
        else:
            advice = "" if owner.startswith("service") else f", take out the volume `{name}`{rest}"
            yield PathUse(owner, name, host, inside.rstrip("/"), advice)
    texts = [str(mapping.get(key)) for mapping in mappings for key in ("capabilities", "runtime")]
    if any("gpu" in text or text == "nvidia" for text in texts) or "gpus" in value:
        yield lost_entry(f"{owner}: GPU", _GPU)
    if "device_cgroup_rules" in value or (privileged and not volumes):
        yield lost_entry(f"{owner}: {'privileged' if privileged else 'cgroup rules'}", _UNNAMED)


def build_entries(
    uses: Iterable[PathUse | DraftEntry], domain: str, files: HostFiles
) -> Iterator[DraftEntry]:
    """Yield a resource for each path, with what its pods need, and other entries. Blocks."""
    by_path, names = dict[tuple[str, str], list[PathUse]](), set[str]()
    for use in uses:
        if isinstance(use, DraftEntry):
            yield use
        else:
            by_path.setdefault((use.path, use.inside), []).append(use)
    for (path, inside), users in by_path.items():
        name = f"{domain}/{re.sub('[^A-Za-z0-9_.-]+', '-', users[0].name).strip('-_.')}"
        name += f"-{len(names)}" if name in names else ""
        names.add(name)
        path_of = {"path": path, "mountPath": inside, "permissions": "rw"}
        device = {"name": name, "groups": [{"count": len(users), "paths": [path_of]}]}
        request = f"below `resources.limits` of the container, write `{name}: 1`"
        for entry in convert_device(name, device, files):
            advice = tuple(f"{use.owner}: {request}{use.advice}" for use in users)
            yield replace(entry, comments=entry.comments or advice)
