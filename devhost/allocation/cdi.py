"""CDI specs: a resource's devices as the file that container runtimes read.

With ``inject: cdi`` the kubelet gets names, which the runtime looks up in the file. The file is
written before it is known which devices a container gets together, so a device's entry has only
what does not depend on others: nodes, mounts, and environment variables of its own.

Source of what runtimes expect: tags.cncf.io/container-device-interface v1.1.1, SPEC.md,
pkg/parser, pkg/cdi and specs-go; tests/support/go/cdi runs that code on our files.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from devhost.allocation.declaration import Declaration, Rules
from devhost.allocation.host_paths import HostPaths
from devhost.errors import AllocationError
from devhost.model.allocation import Allocation, DeviceSpec
from devhost.model.device import FileKind, HostDevice, Snapshot
from devhost.model.immutable import immutable
from devhost.model.limits import CDI_SPEC_MAX

# A vendor of our own, so that no driver's "nvidia.com/gpu" is ever defined twice: the library drops
# a device that is in two files of one directory.
VENDOR_PREFIX: Final = "devhost."
FILE_PREFIX: Final = "devhost_"

_CLASS: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_LOOKS_MADE: Final = re.compile(r".*-[0-9a-f]{10}", re.DOTALL)
_MADE_HASH: Final = 10
_MADE_PREFIX: Final = 52  # as long as a device ID may be, with the hash
_FILE_HASH: Final = 16
_FILE_READABLE: Final = 100  # of the 255 bytes of a file's name
_VERSION: Final = "0.5.0"  # the oldest that has all of what our specs may need
_TOO_LARGE: Final = f"the CDI spec would be larger than {CDI_SPEC_MAX >> 20} MiB"

# As containerd and CRI-O mount what a device plugin answers (containerd
# internal/cri/opts/spec_linux_opts.go, CRI-O server/container_create_linux.go): read-only is not
# recursive, and later mounts of the host do not show. Runc asks for the option, "no such device"
# without it (opencontainers/runc#1717), and both runtimes give the type too.
_MOUNT_TYPE: Final = "bind"
_MOUNT_OPTIONS: Final = ("rbind", "rprivate")

# What YAML, the loader's language, takes for a line's end or refuses where JSON does not. As text:
# to compile it takes 3 ms.
_ESCAPED: Final = "[\x7f-\ud7ff\ue000-\uffff]"


@immutable
class CdiDevice:
    """What a device brings into any container that gets it.

    Attributes:
        edits: Its `edits`; without any it has no entry, and its name must not be handed out.
        problem: Why the spec does not have it.
    """

    name: str  # from `device_name`
    edits: Mapping[str, Sequence[object]] = field(default_factory=dict)
    problem: str | None = None


# ── names ──────────────────────────────────────────────────────────────────────────────


def kind(resource_name: str) -> str:
    """Return ``vendor/class`` for a resource: ``devhost.<domain>/<name>``.

    A name that starts with no letter, or has a dot (for which the file would need CDI 0.6.0),
    is made legal, with a hash so that no two resources have one kind.
    """
    domain, _, name = resource_name.partition("/")
    if not _CLASS.fullmatch(name) or _LOOKS_MADE.fullmatch(name):
        readable = _readable(name, r"[^A-Za-z0-9_-]")
        name = _made(readable if readable[:1].isalpha() else f"r{readable}", name)
    return f"{VENDOR_PREFIX}{domain}/{name}"


def device_name(device_id: str) -> str:
    """Return a device's name within its kind: its ID, or where CDI refuses that, a made one.

    A made name ends in ``-`` and a hash. IDs that look so get one too, so that no ID is ever
    the name made for another.
    """
    if _DEVICE.fullmatch(device_id) and not _LOOKS_MADE.fullmatch(device_id):
        return device_id
    return _made(_readable(device_id, r"[^A-Za-z0-9_.:-]") or "d", device_id)


def qualified_name(resource_name: str, name: str) -> str:
    """Return the fully qualified name under which a runtime finds a device."""
    return f"{kind(resource_name)}={name}"


def file_name(resource_name: str) -> str:
    """Return the name of a resource's spec file."""
    readable = re.sub(r"[^A-Za-z0-9.-]", "_", resource_name)[:_FILE_READABLE]
    return f"{FILE_PREFIX}{_hash(resource_name)[:_FILE_HASH]}_{readable}.json"


def _readable(text: str, illegal: str) -> str:
    """Replace what is illegal; the result starts with a letter or digit, or is empty."""
    return re.sub(illegal, "_", text).lstrip("_.:-")[:_MADE_PREFIX]


def _made(readable: str, text: str) -> str:
    return f"{readable}-{_hash(text)[:_MADE_HASH]}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# ── the file ───────────────────────────────────────────────────────────────────────────


def serialize(resource_name: str, devices: Sequence[CdiDevice]) -> bytes | None:
    """Return the content of a resource's spec file, the same for the same devices.

    Returns:
        JSON that is YAML too; ``None`` if there is to be no file, as with `spec`.
    """
    content = spec(resource_name, devices)
    if content is None:
        return None
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    # Not by JSON's own escaping, whose pairs of surrogates YAML refuses.
    return (re.sub(_ESCAPED, lambda match: f"\\u{ord(match[0]):04x}", text) + "\n").encode()


def spec(resource_name: str, devices: Sequence[CdiDevice]) -> dict[str, object] | None:
    """Return a resource's spec, as JSON can take it.

    Devices without edits have no entry, because one with nothing in it spoils the file for all.
    Where no device has one there is no spec: CDI knows no file without devices.
    """
    entries = [_entry(device) for device in devices if device.edits]
    if not entries:
        return None
    return {
        "cdiVersion": _VERSION,
        "kind": kind(resource_name),
        "devices": sorted(entries, key=lambda entry: str(entry["name"])),
    }


def _entry(device: CdiDevice) -> dict[str, object]:
    return {"name": device.name, "containerEdits": device.edits}


def edits(whole: Allocation, host_paths: HostPaths) -> dict[str, list[object]]:
    """Return what a runtime does for what `HostPaths.checked` has returned. Blocks.

    Links are resolved: the library refuses one to a node, and mounts where it leads. Where the pod
    sets an environment variable too, this one wins with library v1.1.1; before, the container has
    both.
    """
    nodes = sorted(whole.devices, key=lambda one: one.container_path)
    mounts = sorted(whole.mounts, key=lambda one: one.container_path)
    found: dict[str, list[object]] = {
        "env": [f"{name}={whole.envs[name]}" for name in sorted(whole.envs)],
        "deviceNodes": [_node(one, host_paths) for one in nodes],
        "mounts": [
            {
                "hostPath": host_paths.lookup(one.host_path).realpath,
                "containerPath": one.container_path,
                "type": _MOUNT_TYPE,
                "options": [*_MOUNT_OPTIONS, "ro" if one.read_only else "rw"],
            }
            for one in mounts
        ],
    }
    return {name: edit for name, edit in found.items() if edit}


def _node(spec: DeviceSpec, host_paths: HostPaths) -> dict[str, object]:
    """Return a device node.

    Without an owner the library takes the container's own user, so that one who is not root can
    open it. The mode is the host's own where nothing else is asked for: without one, libraries
    before v1.1.0 give none, and runc makes it 0666 (libcontainer/specconv/spec_linux.go).
    """
    state = host_paths.lookup(spec.host_path).state
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


def cdi_devices(
    declaration: Declaration, snapshot: Snapshot, before: Mapping[str, CdiDevice]
) -> dict[str, CdiDevice]:
    """Return what each device brings, by its ID. Blocks.

    What does not exist now stays as it was `before`: a container that has it may start again.
    """
    host_paths = HostPaths(declaration.files, declaration.policy)
    rules = tuple(rule for rule in declaration.rules if rule.in_cdi_spec)
    found: dict[str, CdiDevice] = {}
    size = 0

    def is_new(device: HostDevice) -> bool:
        return device.id not in before or before[device.id].problem is not None

    for device in sorted(snapshot.devices.values(), key=is_new):
        device_id = device.id
        present = device.missing_since is None and not device.replaced
        brought = _brought(declaration, rules, device, host_paths) if present else None
        if brought is None:
            brought = before.get(device_id)
        if brought is None:
            continue
        if size + (more := _size(brought)) > CDI_SPEC_MAX:
            brought, more = CdiDevice(brought.name, problem=_TOO_LARGE), 0
        found[device_id], size = brought, size + more
    return found


def _size(device: CdiDevice) -> int:
    """Return how many bytes of the file a device takes, about."""
    return len(json.dumps([[_entry(device)]], indent=2)) if device.edits else 0


def named(resource: str, snapshot: Snapshot, written: Mapping[str, CdiDevice]) -> Snapshot:
    """Return the snapshot in which each device has its name in the spec that was written."""
    names = {
        device_id: qualified_name(resource, one.name)
        for device_id, one in written.items()
        if one.edits
    }
    problems = {device_id: one.problem for device_id, one in written.items()}
    devices = {
        device_id: replace(
            device,
            cdi_name=names.get(device_id),
            reason=device.reason or problems.get(device_id),
        )
        for device_id, device in snapshot.devices.items()
    }
    return replace(snapshot, devices=devices)


def _brought(
    declaration: Declaration, rules: Rules, device: HostDevice, host_paths: HostPaths
) -> CdiDevice | None:
    try:
        whole = host_paths.checked(declaration.alone(device, rules))
        return CdiDevice(device_name(device.id), edits(whole, host_paths))
    except AllocationError:  # it is unhealthy for that, or will be
        return None
