"""Pods, values of charts and services of Compose that have devices of the host by path."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from devhost.config import yaml_tree
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import Extent
from devhost.drafts.draft import DraftEntry, lost_entry, unused_name
from devhost.drafts.generic_plugin import convert_device
from devhost.hostfs.files import HostFiles, is_in_dev

_UNNAMED: Final = "nothing says which devices it uses: `devhost init` on its node names them"
_NO_PATH: Final = "no path: write the value of a variable, and below `allocate.cdi` a device of CDI"
_GPU: Final = (
    "`devhost init` on the node writes an entry for it: with a CDI spec of NVIDIA's "
    "(`nvidia-ctk cdi generate`) by the source `cdi`"
)
_Volume = tuple[str, str, str, str]  # its name, the host's path, the container's, permissions


class PathUse(NamedTuple):
    """A path of the host that a container has, and what to take out of its pod."""

    owner: str
    name: str
    path: str
    inside: str
    permissions: str
    advice: str


def list_manifests(trees: Iterable[Any], extent: Extent) -> Iterator[Any]:
    """Yield the manifests of trees and of lists in them, with a chart's values that are a text."""
    for tree in trees:
        match tree:
            case {"kind": _, "items": [*manifests]}:
                yield from list_manifests(manifests, extent)
                continue
        for _, mapping in walk_mappings(tree):
            for key, text in mapping.items():
                if key.startswith("values") and isinstance(text, str) and "hostPath" in text:
                    with contextlib.suppress(TreeError):  # a template, maybe
                        mapping[key] = yaml_tree.parse_all(text, extent, texts=True)[0].data
        yield tree


def find_uses(tree: Any) -> Iterator[PathUse | DraftEntry]:
    """Yield what a manifest, values or a file of Compose have by path, and what is no resource."""
    match tree:
        case {"apiVersion": "akri.sh/v0"}:
            return  # its pods have what its rules select
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
                yield name, host, str(inside), "rw"


def _find_devices(service_name: str, service: dict[str, Any]) -> Iterator[_Volume]:
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
                yield name, host, inside if inside.startswith("/") else host, permissions


def _judge_volumes(
    owner: str, value: Any, volumes: list[_Volume]
) -> Iterator[PathUse | DraftEntry]:
    mappings = [mapping for _, mapping in walk_mappings(value)]
    privileged = any(mapping.get("privileged") == "true" for mapping in mappings)
    rest = " and `privileged`, unless it needs more" if privileged else ""
    for name, path, inside, permissions in volumes:
        host = path.rstrip("/")
        if host == "/dev" or not is_in_dev(host):
            yield lost_entry(f"{owner}: {path}", _UNNAMED if host == "/dev" else _NO_PATH)
        else:
            advice = "" if owner.startswith("service") else f", take out the volume `{name}`{rest}"
            yield PathUse(owner, name, host, inside.rstrip("/"), permissions, advice)
    texts = [str(mapping.get(key)) for mapping in mappings for key in ("capabilities", "runtime")]
    if any("gpu" in text or text == "nvidia" for text in texts) or "gpus" in value:
        yield lost_entry(f"{owner}: GPU", _GPU)
    if "device_cgroup_rules" in value or (privileged and not volumes):
        yield lost_entry(f"{owner}: {'privileged' if privileged else 'cgroup rules'}", _UNNAMED)


def build_entries(
    uses: Iterable[PathUse | DraftEntry], domain: str, files: HostFiles
) -> Iterator[DraftEntry]:
    """Yield a resource for each path, with what its pods need, and other entries. Blocks."""
    by_path, names = dict[tuple[str, str, str], list[PathUse]](), set[str]()
    for use in uses:
        if isinstance(use, DraftEntry):
            yield use
        else:
            by_path.setdefault((use.path, use.inside, use.permissions), []).append(use)
    for (path, inside, permissions), users in by_path.items():
        label = re.sub("[^A-Za-z0-9_.-]+", "-", users[0].name).strip("-_.")
        name = unused_name(f"{domain}/{label}", names)
        path_of = {"path": path, "mountPath": inside, "permissions": permissions}
        device = {"name": name, "groups": [{"count": len(users), "paths": [path_of]}]}
        request = f"below `resources.limits` of the container, write `{name}: 1`"
        for entry in convert_device(name, device, files):
            advice = tuple(f"{use.owner}: {request}{use.advice}" for use in users)
            yield replace(entry, comments=entry.comments or advice)
