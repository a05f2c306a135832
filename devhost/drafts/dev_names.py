"""Names below /dev: of nodes and of directories."""

import re
from fnmatch import fnmatchcase
from typing import Any, Final

from devhost.hostfs.files import HostFiles, is_wild
from devhost.model.device_node import FileKind

_DIRECTORIES: Final = re.split(
    r"\s+",
    """/dev/accel /dev/bus /dev/bus/usb /dev/bus/usb/001 /dev/cpu /dev/cpu/0 /dev/disk /dev/dma_heap
    /dev/dri /dev/dvb /dev/dvb/adapter0 /dev/infiniband /dev/input /dev/mapper /dev/net
    /dev/nvidia-caps /dev/serial /dev/snd /dev/usb /dev/v4l /dev/vfio""",
)
# Names with a number, udev's links, and nodes of which a host has one.
_NODE: Final = re.compile(
    r".*\d.*|/dev/.+/by-.+/.+|/dev/(?:cuse|fuse|hwrng|kfd|kvm|net/tun|null|nvidia\S+|ppp|u?random|sd[a-z]+|"
    r"rtc|sgx_\w+|udmabuf|uhid|uinput|vchiq|vcio|vcsm\S*|vfio/vfio|vhost-\w+|watchdog|zero)"
)


def path_source(path: str, files: HostFiles, *, is_mounted: bool = False) -> dict[str, Any] | str:
    """Return the source of what a path or glob names: nodes, and directories of nodes. Blocks.

    What ``is_mounted`` may be anything.
    """
    state = None if is_wild(path) else files.stat(path)
    directories = [name for name in _DIRECTORIES if fnmatchcase(name, path)]
    if is_mounted:
        types: Any = ["file", "directory", "char", "block", "socket"]
    elif path in directories or (state and state.kind is FileKind.DIRECTORY):
        types = "directory"
    elif not directories and (state or is_wild(path) or _NODE.fullmatch(path)):
        return path
    else:
        types = ["char", "block", "directory"]
    return {"glob": {"paths": path, "types": types}}
