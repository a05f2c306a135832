"""The CDI spec files of this node: written whole, and removed when nobody serves them."""

import asyncio
import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from devhost.allocation import cdi
from devhost.threads import in_thread

T = TypeVar("T")

_PATIENCE: Final = 10.0  # seconds for a directory to answer
_PATIENCE_HANGING: Final = 0.5  # when it has not answered before
_TEMPORARY: Final = re.compile(rf"\.{cdi.FILE_PREFIX}([0-9a-f]{{16}})\..*\.tmp")


class CdiFiles:
    """The spec files of our resources in one directory.

    They stay when devhost stops: a running pod's containers may restart and need them.

    Attributes:
        writes: How often one was written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self.writes = directory, 0
        self._turn = asyncio.Lock()
        self._hangs = False
        self._work: asyncio.Future[Any] | None = None

    async def write(self, resource_name: str, content: bytes | None) -> bool:
        """Replace a resource's file, whole or not at all, where it is not that already.

        Args:
            resource_name: The resource.
            content: From `devhost.allocation.cdi.serialize`; ``None`` removes the file.

        Returns:
            Whether there was something to do.

        Raises:
            OSError: It cannot be done; without an answer in 10 s, a `TimeoutError`.
        """
        path = self._directory / cdi.file_name(resource_name)
        if content is None:
            return await self._in_turn(lambda: _remove(path))
        prefix = f".{cdi.FILE_PREFIX}{cdi.resource_hash(resource_name)}."
        written = await self._in_turn(lambda: _write(path, prefix, content))
        self.writes += written
        return written

    async def entries(self, resource_name: str) -> dict[str, cdi.SpecEntry]:
        """Return what stands in a resource's file, by the devices' names.

        Nothing where there is no file of ours, or none that can be read.

        Raises:
            TimeoutError: No answer in 10 s.
        """
        path, kind = self._directory / cdi.file_name(resource_name), cdi.kind(resource_name)
        return await self._in_turn(lambda: _entries(path, kind))

    async def remove_stale(
        self, configured: Collection[str], alive: Callable[[str], bool]
    ) -> list[str]:
        """Remove our files of resources that are served no more, and unfinished ones.

        A file is ours by its name and its kind. What cannot be read or removed stays.

        Args:
            configured: The names of the resources that this devhost serves.
            alive: Whether another living devhost serves a resource, told its
                `devhost.allocation.cdi.resource_hash`; called in a thread.

        Returns:
            The names of the files that were removed, sorted.

        Raises:
            OSError: The directory cannot be read; without an answer in 10 s, a `TimeoutError`.
                One that is missing is no error.
        """
        hashes = {cdi.resource_hash(name) for name in configured}
        return await self._in_turn(lambda: _remove_stale(self._directory, hashes, alive))

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Do one thing after the other: one that is late must not undo a later one."""
        # What a resource loses must be published without much delay while the directory hangs.
        patience = _PATIENCE_HANGING if self._hangs else _PATIENCE
        try:
            async with asyncio.timeout(patience), self._turn:
                if self._work is not None:  # a former caller may have given up on it
                    await asyncio.wait([self._work])
                self._hangs = False
                future = in_thread("cdi files", work)
                future.add_done_callback(_retrieve)
                self._work = future
                return await asyncio.shield(future)
        except TimeoutError as error:
            if error.errno is not None:  # not ours: what the filesystem said
                raise
            self._hangs = True
            text = f"no answer in {_PATIENCE:g} s"
            raise TimeoutError(errno.ETIMEDOUT, text, str(self._directory)) from None


def _retrieve(future: "asyncio.Future[T]") -> None:
    if not future.cancelled():
        future.exception()  # perhaps nobody waits for it any more


def _write(path: Path, prefix: str, content: bytes) -> bool:
    if _read(path) == content:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Runtimes read what ends in .json or .yaml, and look again when something is renamed.
    descriptor, temporary = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), 0o644)  # rootless runtimes read it too
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _remove_stale(
    directory: Path, configured: Collection[str], alive: Callable[[str], bool]
) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    removed = []
    for name in sorted(names):
        with contextlib.suppress(OSError):
            if _is_stale(directory / name, configured, alive):
                (directory / name).unlink()
                removed.append(name)
    return removed


def _is_stale(path: Path, configured: Collection[str], alive: Callable[[str], bool]) -> bool:
    """Judge a file, by its name first: nobody else's is opened."""
    if unfinished := _TEMPORARY.fullmatch(path.name):
        return not alive(unfinished[1])  # another one may be about to rename it
    resource = cdi.hash_in(path.name)
    if resource is None or resource in configured or alive(resource):
        return False
    return str(_content(path.read_bytes()).get("kind")).startswith(cdi.VENDOR_PREFIX)


def _entries(path: Path, kind: str) -> dict[str, cdi.SpecEntry]:
    content = _content(_read(path) or b"")
    devices = content.get("devices")
    if content.get("kind") != kind or not isinstance(devices, list):
        return {}
    found = (one for one in devices if isinstance(one, dict) and one.get("containerEdits"))
    return {str(one.get("name")): one for one in found}


def _content(raw: bytes) -> dict[str, object]:
    try:
        # Bounds how deep the values lie; json goes on to the end of the stack, where no
        # finalizer of other objects could do its work.
        content = from_json(raw)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
