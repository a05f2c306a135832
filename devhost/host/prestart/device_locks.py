"""Locks that keep commands, also of several instances, from running on one device together.

A command and its children inherit the lock of its device, so it is held as long as one of them
lives, even if the devhost that started the command has ended.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from devhost.errors import PreStartError
from devhost.host.state_files import lock
from devhost.model.device import HostDevice


def keys(resource: str, device: HostDevice) -> list[str]:
    """Return what identifies a device on this machine, independent of its ID; sorted.

    A token is identified by its name.
    """
    states = [node.state for node in device.nodes if node.state is not None]
    return sorted(
        {f"{it.kind.value} {it.number}" if it.number else it.realpath for it in states}
    ) or [f"{resource} {device.id}"]


@contextlib.contextmanager
def held(
    directory: Path, names: Sequence[str], patience: float, stop: threading.Event
) -> Iterator[list[int]]:
    """Hold locks, and yield their descriptors. Blocks.

    Args:
        directory: The directory of the lock files, created if it does not exist. They are never
            removed: two processes could lock different files.
        names: From `keys`.
        patience: Seconds to wait for a lock that is held.
        stop: Ends the wait early.

    Raises:
        PreStartError: Another command still holds one, or they cannot be used.
    """
    until = time.monotonic() + patience
    with contextlib.ExitStack() as stack:
        descriptors = []
        for name in names:
            path = directory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
            try:
                directory.mkdir(parents=True, exist_ok=True)
                # For reading, which a file that exists allows on a full or read-only filesystem.
                descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                lock(descriptor, until - time.monotonic(), str(path), stop)
            except TimeoutError:
                raise PreStartError(
                    f"a command of an earlier start still runs on the device and holds {path}"
                ) from None
            except OSError as error:
                raise PreStartError(f"the device cannot be locked: {error}") from None
            descriptors.append(descriptor)
        yield descriptors
