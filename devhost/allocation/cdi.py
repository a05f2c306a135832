"""CDI specs: a resource's devices as the file that container runtimes read; pure.

With ``inject: cdi`` the kubelet gets names, which the runtime looks up in the file. The file is
written before it is known which devices a container gets together, so a device's entry has only
what does not depend on others: nodes, mounts, and environment variables of its own.

Source of what runtimes expect: tags.cncf.io/container-device-interface v1.1.1, SPEC.md,
pkg/parser, pkg/cdi and specs-go; tests/cdi runs that code on our files.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, Literal

from devhost.immutable import immutable
from devhost.model.allocation import MountSpec

# A vendor of our own, so that no driver's "nvidia.com/gpu" is ever defined twice: the library drops
# a device that is in two files of one directory.
VENDOR_PREFIX: Final = "devhost."
FILE_PREFIX: Final = "devhost_"

_CLASS: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_LOOKS_MADE: Final = re.compile(r".*-[0-9a-f]{10}", re.DOTALL)
_MADE_HASH: Final = 10
_MADE_PREFIX: Final = 52  # as long as a device ID may be, with the hash
_FILE: Final = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{16}})_.*\.json", re.DOTALL)
_FILE_HASH: Final = 16
_FILE_READABLE: Final = 100  # of the 255 bytes of a file's name
_VERSION_MAX: Final = "0.5.0"  # the newest that our specs need

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
class CdiNode:
    """A device node that a container gets.

    Attributes:
        path_in_container: Where it will be.
        host_path: Where it is, with links resolved: the library refuses a link.
        type: Character or block device.
        major: Its number on the host.
        minor: Its number on the host.
        permissions: Letters of r, w, m.
        uid: Its owner; ``None`` leaves it to the library, which takes the container's own user.
            That is how a container that is not root can open it.
        gid: As `uid`.
        file_mode: Its permission bits. Give the host's own where nothing else is asked for:
            with ``None``, libraries before v1.1.0 give none, and runc makes it 0666
            (libcontainer/specconv/spec_linux.go).
    """

    path_in_container: str
    host_path: str
    type: Literal["c", "b"]
    major: int
    minor: int
    permissions: str = "rw"
    uid: int | None = None
    gid: int | None = None
    file_mode: int | None = None


@immutable
class CdiDevice:
    """What a device brings into any container that gets it.

    Texts are legal already, by the checks in `devhost.model.names`.

    Attributes:
        name: From `device_name`.
        nodes: Its device nodes.
        mounts: Its mounts, with links in host paths resolved: the library does not.
        envs: Environment variables. Where the pod sets one of the name too, this one wins with
            library v1.1.1; before, the container has both.
        problem: Why the spec does not have it.
    """

    name: str
    nodes: Sequence[CdiNode] = ()
    mounts: Sequence[MountSpec] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def empty(self) -> bool:
        """Whether it brings nothing: it has no entry, and its name must not be handed out."""
        return not (self.nodes or self.mounts or self.envs)


SpecEntry = Mapping[str, object]
"""What a spec has for one device."""

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


def resource_hash(resource_name: str) -> str:
    """Return the 16 hex digits that stand for a resource; its sockets have the first 12."""
    return _hash(resource_name)[:_FILE_HASH]


def file_name(resource_name: str) -> str:
    """Return the name of a resource's spec file."""
    readable = re.sub(r"[^A-Za-z0-9.-]", "_", resource_name)[:_FILE_READABLE]
    return f"{FILE_PREFIX}{resource_hash(resource_name)}_{readable}.json"


def hash_in(file_name: str) -> str | None:
    """Return the resource's hash in the name of a spec file; ``None`` for a foreign one."""
    match = _FILE.fullmatch(file_name)
    return match[1] if match else None


def _readable(text: str, illegal: str) -> str:
    """Replace what is illegal; the result starts with a letter or digit, or is empty."""
    return re.sub(illegal, "_", text).lstrip("_.:-")[:_MADE_PREFIX]


def _made(readable: str, text: str) -> str:
    return f"{readable}-{_hash(text)[:_MADE_HASH]}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# ── the file ───────────────────────────────────────────────────────────────────────────


def serialize(
    resource_name: str, devices: Sequence[CdiDevice], kept: Sequence[SpecEntry] = ()
) -> bytes | None:
    """Return the content of a resource's spec file, the same for the same devices.

    Returns:
        JSON that is YAML too; ``None`` if there is to be no file, as with `spec`.
    """
    content = spec(resource_name, devices, kept)
    if content is None:
        return None
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    # Not by JSON's own escaping, whose pairs of surrogates YAML refuses.
    return (re.sub(_ESCAPED, lambda match: f"\\u{ord(match[0]):04x}", text) + "\n").encode()


def spec(
    resource_name: str, devices: Sequence[CdiDevice], kept: Sequence[SpecEntry] = ()
) -> dict[str, object] | None:
    """Return a resource's spec, with the oldest version that has all of it.

    The oldest, because a loader refuses a file of a version that it does not know.

    Args:
        resource_name: The resource.
        devices: Its devices, in any order, each name once. Empty ones have no entry, because
            one device with nothing in it spoils the file for all.
        kept: Entries of an earlier file, of other names.

    Returns:
        What JSON can take; ``None`` where no device has an entry, because CDI knows no file
        without devices.
    """
    entries = [*kept, *(entry(device) for device in devices if not device.empty)]
    if not entries:
        return None
    return {
        "cdiVersion": _VERSION_MAX if kept else _version(devices),
        "kind": kind(resource_name),
        "devices": sorted(entries, key=lambda entry: str(entry["name"])),
    }


def entry(device: CdiDevice) -> SpecEntry:
    """Return what a spec has for a device that is not empty."""
    edits = {
        "env": [f"{name}={device.envs[name]}" for name in sorted(device.envs)],
        "deviceNodes": [
            _node(node) for node in sorted(device.nodes, key=lambda node: node.path_in_container)
        ],
        "mounts": [
            _mount(mount) for mount in sorted(device.mounts, key=lambda mount: mount.container_path)
        ],
    }
    return {
        "name": device.name,
        "containerEdits": {name: edit for name, edit in edits.items() if edit},
    }


def size(device: CdiDevice) -> int:
    """Return how many bytes of the file a device takes, about."""
    return 0 if device.empty else len(json.dumps([[entry(device)]], indent=2))


def _node(node: CdiNode) -> dict[str, object]:
    optional = {
        "hostPath": node.host_path if _moved(node) else None,
        "fileMode": node.file_mode,
        "uid": node.uid,
        "gid": node.gid,
    }
    return {
        "path": node.path_in_container,
        "type": node.type,
        "major": node.major,
        "minor": node.minor,
        "permissions": node.permissions,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _mount(mount: MountSpec) -> dict[str, object]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "type": _MOUNT_TYPE,
        "options": [*_MOUNT_OPTIONS, "ro" if mount.read_only else "rw"],
    }


def _moved(node: CdiNode) -> bool:
    return node.host_path != node.path_in_container


def _version(devices: Sequence[CdiDevice]) -> str:
    """Return the least version, as specs-go/version.go counts; 0.6.0 is for what we never use."""
    used = [device for device in devices if not device.empty]
    if any(device.name[0].isdigit() or any(map(_moved, device.nodes)) for device in used):
        return _VERSION_MAX
    if any(device.mounts for device in used):
        return "0.4.0"
    return "0.3.0"
