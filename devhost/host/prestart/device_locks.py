"""Locks that keep two commands from running on one device, also of two processes.

A command inherits the lock of its device, and so does all that it starts: it is held as long as
one of them lives, whatever has happened to the devhost that started the command.
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
    """Return what identifies a device on this machine, whatever it is called; sorted.

    A token is no more than its name.
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
        directory: Where the lock files are; it is made if need be. They stay, as removing one
            would let two processes lock different files.
        names: From `keys`.
        patience: Seconds to wait for whoever holds one of them.
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
                    f"a command of an earlier start still runs on the device and holds {path}: "
                    "no other one is run at the same time"
                ) from None
            except OSError as error:
                raise PreStartError(f"the device cannot be locked: {error}") from None
            descriptors.append(descriptor)
        yield descriptors
