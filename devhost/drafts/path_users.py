"""Pods, values of charts and services of Compose that have devices of the host by path."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from devhost.drafts.draft import DraftEntry, lost_entry, unused_name
from devhost.drafts.generic_plugin import Group, convert_groups
from devhost.drafts.manifests import Manifest, walk_mappings
from devhost.hostfs.files import HostFiles, is_in_dev

_UNNAMED: Final = "nothing says which devices it uses: `devhost init` on its node names them"
_NO_PATH: Final = "no path: write the value of a variable, and below `allocate.cdi` a device of CDI"
_GPU: Final = (
    "`devhost init` on the node writes an entry for it: with a CDI spec of NVIDIA's "
    "(`nvidia-ctk cdi generate`) by the source `cdi`"
)


class _Volume(NamedTuple):
    """A path of the host that a container has: by this name, at this path, with permissions."""

    name: str
    path: str
    inside: str
    permissions: str = "rw"


class PathUse(NamedTuple):
    """A volume below /dev, and what to take out of its pod."""

    owner: str
    volume: _Volume
    advice: str


def find_uses(manifest: Manifest) -> Iterator[PathUse | DraftEntry]:
    """Yield what a manifest, values or a file of Compose have by path, and what is no resource."""
    match manifest.tree:
        case {"apiVersion": "akri.sh/v0"}:
            return  # its pods have what its rules select
        case {"services": dict() as services}:
            for name, service in services.items():
                if isinstance(service, dict):
                    volumes = [*_service_volumes(name, service)]
                    yield from _judge_volumes(f"service {name}", service, volumes)
        case dict() as tree if manifest.owner or "kind" not in tree:
            advice = ", take out the volume `{}`"
            volumes = [*_pod_volumes(tree)]
            yield from _judge_volumes(manifest.owner or "values", tree, volumes, advice)


def _pod_volumes(tree: Any) -> Iterator[_Volume]:
    """Yield each volume below /dev once for each container that mounts it."""
    mappings, mounts = [*walk_mappings(tree)], dict[str, list[Any]]()
    for _, mapping in mappings:
        if "mountPath" in mapping:
            mounts.setdefault(str(mapping.get("name")), []).append(mapping["mountPath"])
    for key, entry in mappings:
        volume = entry.get("volumeSpec", entry)  # of a `custom` volume of app-template
        host = volume.get("hostPath") if isinstance(volume, dict) and key != "volumeSpec" else None
        host = host.get("path") if isinstance(host, dict) else host
        if isinstance(host, str) and is_in_dev(host):
            name = str(entry.get("name") or key)
            parts = (part for part_key, part in walk_mappings(entry) if part_key != "hostPath")
            below = [part["path"] for part in parts if part.get("path") and part is not entry]
            targets = [entry["mountPath"]] if entry.get("mountPath") else mounts.get(name, below)
            for inside in targets or [host]:
                yield _Volume(name, host, str(inside))


def _service_volumes(service_name: str, service: dict[str, Any]) -> Iterator[_Volume]:
    """Yield the devices of a service of Compose, and the volumes below /dev."""
    for key in ("devices", "volumes"):
        entries = service.get(key)
        for entry in entries if isinstance(entries, list) else ():
            # Not at the colon of ${NAME:-default}.
            host, inside, options, *_ = (*re.split(":(?![-+?])", str(entry)), "", "")
            if isinstance(entry, dict):
                host, inside = str(entry.get("source")), str(entry.get("target"))
            if is_in_dev(host) or key == "devices":
                name = service_name if "/by-" in host else host.rpartition("/")[2]
                permissions = options if options in ("r", "w") else "rw"
                yield _Volume(name, host, inside if inside.startswith("/") else host, permissions)


def _judge_volumes(
    owner: str, value: dict[str, Any], volumes: list[_Volume], advice: str = ""
) -> Iterator[PathUse | DraftEntry]:
    """Yield the volumes that are devices, with advice for each, and what is no resource."""
    mappings = [mapping for _, mapping in walk_mappings(value)]
    privileged = any(mapping.get("privileged") == "true" for mapping in mappings)
    if advice and privileged:
        advice += " and `privileged`, unless it needs more"
    for volume in volumes:
        host = volume.path.rstrip("/")
        if host == "/dev" or not is_in_dev(host):
            yield lost_entry(f"{owner}: {volume.path}", _UNNAMED if host == "/dev" else _NO_PATH)
        else:
            device = volume._replace(path=host, inside=volume.inside.rstrip("/"))
            yield PathUse(owner, device, advice.format(volume.name))
    texts = [str(mapping.get(key)) for mapping in mappings for key in ("capabilities", "runtime")]
    if any("gpu" in text or text == "nvidia" for text in texts) or "gpus" in value:
        yield lost_entry(f"{owner}: GPU", _GPU)
    if "device_cgroup_rules" in value or (privileged and not volumes):
        yield lost_entry(f"{owner}: {'privileged' if privileged else 'cgroup rules'}", _UNNAMED)


def build_entries(
    uses: Iterable[PathUse | DraftEntry], domain: str, files: HostFiles
) -> Iterator[DraftEntry]:
    """Yield a resource for each path, with what its pods need, and other entries. Blocks."""
    by_path, names = dict[tuple[str, ...], list[PathUse]](), set[str]()
    for use in uses:
        if isinstance(use, DraftEntry):
            yield use
        else:
            by_path.setdefault(use.volume[1:], []).append(use)
    for (path, inside, permissions), users in by_path.items():
        label = re.sub("[^A-Za-z0-9_.-]+", "-", users[0].volume.name).strip("-_.")
        name = unused_name(f"{domain}/{label}", names)
        setting = {"path": path, "mountPath": inside, "permissions": permissions}
        group = Group.model_validate({"count": len(users), "paths": [setting]})
        request = f"below `resources.limits` of the container, write `{name}: 1`"
        advice = tuple(f"{use.owner}: {request}{use.advice}" for use in users)
        yield DraftEntry(convert_groups(name, [group], files), advice)
