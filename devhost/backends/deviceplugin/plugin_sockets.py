"""The sockets of device plugins: where a server listens, and its names beside kubelet.sock.

A server listens in the directory of locks, which kubelet leaves alone, and has another name beside
kubelet.sock for each registration: so it outlives a restart of kubelet.
"""

import contextlib
import itertools
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devhost.backends.resource_lock import LOCKS, ResourceLocks, resource_hash
from devhost.backends.sockets import SOCKET_PATH_MAX

_PREFIX: Final = "devhost-"
_PROCESS: Final = secrets.token_hex(4)
_SERIAL: Final = itertools.count(1)
_SOCKET: Final = re.compile(
    r"(devhost-)?(?P<hash>[0-9a-f]{12})-(?P<process>[0-9a-f]{8})-\d+(\.sock)?"
)


def server_socket(resource: str) -> str:
    """Return where a new server of a resource listens, below the plugin directory."""
    return f"{LOCKS}/{resource_hash(resource)}-{_PROCESS}-{next(_SERIAL)}"


def fresh_name(resource: str) -> str:
    """Return a socket name that kubelet has not seen before.

    Kubelet leaves 75 bytes of a socket path's 107, so the resource is hashed. Since 1.37
    kubelet refuses a path that it takes as connected, and the refusal hides the end of that
    connection (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go, PluginConnected,
    and plugin/v1beta1/handler.go, deregisterClient).
    """
    return f"{_PREFIX}{resource_hash(resource)}-{_PROCESS}-{next(_SERIAL)}.sock"


@contextlib.contextmanager
def link_socket(directory: Path, socket: str, resource: str) -> Iterator[str]:
    """Give a server's socket a fresh name beside kubelet.sock, or raise `OSError`."""
    endpoint = fresh_name(resource)
    try:
        os.link(directory / socket, directory / endpoint)
    except OSError as error:
        # Without the names, which differ each time: the same reason is the same text.
        raise OSError(f"cannot make a socket in {directory}: {error.strerror}") from None
    try:
        yield endpoint
    finally:
        with contextlib.suppress(OSError):  # it is gone, or the directory became read-only
            os.unlink(directory / endpoint)  # noqa: PTH108 (quick)


def path_length_problem(directory: Path) -> str | None:
    """Return why a directory's path leaves no room for a socket's name, or ``None``."""
    longest = len(os.fsencode(directory)) + 1 + len(server_socket("")) + len("00000")
    if longest <= SOCKET_PATH_MAX:
        return None
    return f"{directory} is too long: with a socket's name, {longest} bytes of {SOCKET_PATH_MAX}"


def remove_dead_sockets(locks: ResourceLocks) -> None:
    """Remove the sockets that other processes have left; it blocks, or raises `OSError`."""
    # All are listed before a lock is asked for: who has made a socket had the lock then.
    glob = locks.directory.glob
    for path in [*glob(f"{_PREFIX}*-*"), *glob(f"{LOCKS}/*-*")]:
        match = _SOCKET.fullmatch(path.name)
        if match and match["process"] != _PROCESS and not locks.has_other(match["hash"]):
            path.unlink(missing_ok=True)
