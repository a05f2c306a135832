"""CDI specs: a resource's devices as the file that container runtimes read.

With ``inject: cdi`` the kubelet gets names, which the runtime looks up in the file. The file is
written before it is known which devices a container gets together, so a device's entry has only
what does not depend on others: nodes, mounts, and environment variables of its own.

Source of what runtimes expect: tags.cncf.io/container-device-interface v1.1.1, SPEC.md,
pkg/parser, pkg/cdi and specs-go; tests/support/go/cdi runs that code on our files.
"""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from devhost.allocation.compiled import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.errors import AllocationError
from devhost.hostfs.files import note_answer
from devhost.model.allocation import Allocation, DeviceSpec
from devhost.model.device import Cause, Snapshot, Verdict
from devhost.model.device_node import FileKind
from devhost.model.limits import CDI_SPEC_MAX, CDI_SPECS_MAX
from devhost.model.names import text_hash

_HASH: Final = 12
_READABLE: Final = 52  # of a name; a file's has at most 255 bytes
_VERSION: Final = "0.5.0"  # the oldest that has all of what our specs may need
_BOUNDS: Final = f"at most {CDI_SPEC_MAX >> 20} MiB, and {CDI_SPECS_MAX >> 20} MiB of all resources"
_UNNAMED: Final = f"it is not in the CDI spec yet, which has {_BOUNDS}"

# As containerd and CRI-O mount what a device plugin answers (containerd
# internal/cri/opts/spec_linux_opts.go, CRI-O server/container_create_linux.go): read-only is not
# recursive, and later mounts of the host do not show. Runc asks for the option, "no such device"
# without it (opencontainers/runc#1717), and both runtimes give the type too.
_MOUNT_TYPE: Final = "bind"
_MOUNT_OPTIONS: Final = ("rbind", "rprivate")

# What YAML, the loader's language, takes for a line's end or refuses where JSON does not. As text:
# to compile it takes 3 ms.
_ESCAPED: Final = "[\x7f-\ud7ff\ue000-\uffff]"


Edits = Mapping[str, Sequence[object]]
"""What a device brings into any container that gets it, as its `containerEdits`."""
CdiNode = Mapping[str, Any]
"""One of its `deviceNodes`."""


# ── names ──────────────────────────────────────────────────────────────────────────────


def kind(resource_name: str) -> str:
    """Return ``vendor/class`` for a resource: ``devhost.<domain>/r-<name>-<hash>``.

    The vendor is our own, so that no driver's "nvidia.com/gpu" is ever defined twice: the library
    drops a device that is in two files of one directory.
    """
    domain, _, name = resource_name.partition("/")
    return f"devhost.{domain}/r-{_made(name)}"


def qualified_name(resource_name: str, device_id: str) -> str:
    """Return the fully qualified name under which a runtime finds a device."""
    return f"{kind(resource_name)}={_device_name(device_id)}"


def file_name(resource_name: str) -> str:
    """Return the name of a resource's spec file."""
    return f"devhost_{_made(resource_name)}.json"


def _device_name(device_id: str) -> str:
    return f"d-{_made(device_id)}"


def _made(text: str) -> str:
    """Return what names may have after a letter: what is readable of a text, and its hash."""
    readable = re.sub(r"[^A-Za-z0-9-]", "_", text)[:_READABLE]
    return f"{readable}-{text_hash(text, _HASH)}"


# ── the file ───────────────────────────────────────────────────────────────────────────


def serialize(resource_name: str, devices: Mapping[str, Edits]) -> bytes | None:
    """Return the content of a resource's spec file; ``None`` if there is to be none."""
    return serialize_spec(spec(resource_name, devices))


def entry_text(device_id: str, brought: Edits) -> bytes:
    """Return a device's entry as it is counted and compared: as deep as in the file."""
    entry = {"name": _device_name(device_id), "containerEdits": brought}
    return json.dumps([[entry]], indent=2, sort_keys=True).encode()


def serialize_spec(content: Mapping[str, object] | None) -> bytes | None:
    """Return the content of a file, the same for the same spec: JSON that is YAML too."""
    if content is None:
        return None
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    # Not by JSON's own escaping, whose pairs of surrogates YAML refuses.
    return (re.sub(_ESCAPED, lambda match: f"\\u{ord(match[0]):04x}", text) + "\n").encode()


def spec(resource_name: str, devices: Mapping[str, Edits]) -> dict[str, object] | None:
    """Return a resource's spec, as JSON can take it, by what each device brings."""
    entries = {_device_name(device_id): devices[device_id] for device_id in sorted(devices)}
    return spec_of(kind(resource_name), entries)


def spec_of(spec_kind: str, entries: Mapping[str, Edits]) -> dict[str, object] | None:
    """Return a spec by the edits of each name.

    Names without edits have no entry, because one with nothing in it spoils the file for all.
    Where no name has one there is no spec: CDI knows no file without devices.
    """
    listed = [
        {"name": name, "containerEdits": brought} for name, brought in entries.items() if brought
    ]
    return {"cdiVersion": _VERSION, "kind": spec_kind, "devices": listed} if listed else None


def edits(whole: Allocation, host_paths: HostPaths) -> dict[str, list[object]]:
    """Return what a runtime does for what `HostPaths.resolve_checked` has returned. Blocks.

    Links are resolved: the library refuses one to a node, and mounts where it leads. Where the pod
    sets an environment variable too, this one wins with library v1.1.1; before, the container has
    both.
    """
    nodes = sorted(whole.devices, key=lambda node: node.container_path)
    mounts = sorted(whole.mounts, key=lambda mount: mount.container_path)
    edits_by_kind: dict[str, list[object]] = {
        "env": [f"{name}={whole.envs[name]}" for name in sorted(whole.envs)],
        "deviceNodes": [device_node(node, host_paths) for node in nodes],
        "mounts": [
            {
                "hostPath": host_paths.resolve(mount.host_path).realpath,
                "containerPath": mount.container_path,
                "type": _MOUNT_TYPE,
                "options": [*_MOUNT_OPTIONS, "ro" if mount.read_only else "rw"],
            }
            for mount in mounts
        ],
    }
    return {name: edit for name, edit in edits_by_kind.items() if edit}


class OwnedEdits(NamedTuple):
    """The edits of an allocation by owner: those of each device, by its ID, and all others."""

    by_device: Mapping[str, Edits]
    common: Edits


def owned_edits(whole: Allocation, host_paths: HostPaths) -> OwnedEdits:
    """Return the edits of what `HostPaths.resolve_checked` has returned, by owner. Blocks."""

    def part(owner: str | None) -> Edits:
        devices = tuple(node for node in whole.devices if node.device == owner)
        mounts = tuple(mount for mount in whole.mounts if mount.device == owner)
        envs = whole.envs if owner is None else {}
        return edits(replace(whole, envs=envs, devices=devices, mounts=mounts), host_paths)

    owners = dict.fromkeys(spec.device for spec in whole.specs if spec.device is not None)
    return OwnedEdits({owner: part(owner) for owner in owners}, part(None))


def device_node(spec: DeviceSpec, host_paths: HostPaths) -> CdiNode:
    """Return a device node.

    Without an owner the library takes the container's own user, so that one who is not root can
    open it. The mode is the host's own where nothing else is asked for: without one, libraries
    before v1.1.0 give none, and runc makes it 0666 (libcontainer/specconv/spec_linux.go).
    """
    state = host_paths.resolve(spec.host_path).state
    if state is None or state.number is None:
        raise AllocationError(f"{spec.host_path} is no device node")
    major, minor = state.number
    optional = {
        "hostPath": state.realpath if state.realpath != spec.container_path else None,
        "fileMode": state.mode if spec.mode is None else spec.mode,
        "uid": spec.uid,
        "gid": spec.gid,
    }
    return {
        "path": spec.container_path,
        "type": "b" if state.kind is FileKind.BLOCK else "c",
        "major": major,
        "minor": minor,
        "permissions": spec.permissions,
        **{name: value for name, value in optional.items() if value is not None},
    }


# ── what is in it: what devices bring, as it is on the host now ────────────────────────


class SpecBudget:
    """The bytes that all specs of a node may have together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._refused: dict[str, Callable[[], None]] = {}

    def take(self, rescan: Callable[[], None], resource: str, size: int) -> bool:
        """Return whether a resource's spec may have a size; what it had before, it may keep."""
        with self._lock:
            growth = size - self._sizes.get(resource, 0)
            if growth > 0 and sum(self._sizes.values()) + growth > CDI_SPECS_MAX:
                self._refused[resource] = rescan
                return False
            if growth > 0:
                self._sizes[resource] = size
            return True

    def settle(self, resource: str, size: int) -> None:
        """Set the size of a spec; if it was larger, look again at resources that were refused."""
        with self._lock:
            again = self._refused if size < self._sizes.pop(resource, 0) else {}
            self._refused = {} if again else self._refused
            self._sizes |= {resource: size} if size else {}
        for rescan in again.values():
            rescan()

    def release(self, resource: str) -> None:
        """Forget a resource that has ended."""
        self._refused.pop(resource, None)
        self.settle(resource, 0)


def cdi_devices(
    declaration: Declaration,
    snapshot: Snapshot,
    take: Callable[[str, int], bool] = lambda *_: True,
    before: Collection[str] = (),
    former: Path = Path(),
) -> dict[str, Edits]:
    """Return what each device brings, by its ID. Blocks.

    What does not exist now stays as in the `former` file: a container that has it may start again.
    Those that were in it `before` come first; there is no room for all of very many.
    """
    host_paths, by_name = HostPaths(declaration.files, declaration.policy), None
    rules = tuple(rule for rule in declaration.rules if rule.in_cdi_spec)
    edits_by_device: dict[str, Edits] = {}
    size = 0
    for device in sorted(snapshot.devices.values(), key=lambda device: device.id not in before):
        note_answer()  # what takes long for many devices is not a host that hangs
        brought: Edits | None = None
        if device.is_present:
            with contextlib.suppress(AllocationError):  # it is unhealthy for that, or will be
                whole = host_paths.resolve_checked(declaration.alone(device, rules))
                brought = edits(whole, host_paths)
        if brought is None and device.id in before:
            by_name = _read(former) if by_name is None else by_name
            brought = by_name.get(_device_name(device.id), {})
        if brought is not None:
            size += len(entry_text(device.id, brought))
            if size > CDI_SPEC_MAX or not take(declaration.resource.name, size):
                break
            edits_by_device[device.id] = brought
    return edits_by_device


def _read(spec_file: Path) -> dict[str, Edits]:
    """Return what is in a file of ours, by the names of devices."""
    with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        listed = json.loads(spec_file.read_bytes())["devices"]
        return {entry["name"]: entry["containerEdits"] for entry in listed}
    return {}


def named(
    resource: str, snapshot: Snapshot, written: Mapping[str, object], problem: str | None = None
) -> Snapshot:
    """Return the snapshot in which each device has its name in the spec that was written.

    Those that it does not have are unhealthy for the `problem`.
    """
    devices, unnamed = {}, Verdict(Cause.CDI, problem or _UNNAMED)
    for device_id, device in snapshot.devices.items():
        name = qualified_name(resource, device_id) if written.get(device_id) else None
        verdict = device.verdict if device_id in written else device.verdict or unnamed
        devices[device_id] = replace(device, cdi_name=name, verdict=verdict)
    return replace(snapshot, devices=devices)
