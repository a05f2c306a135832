"""The CDI spec files of this node: replaced atomically, removed when no instance serves them."""

import contextlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TypeVar

from devhost.allocation import cdi
from devhost.host import json_text
from devhost.host.state_files import replace_file
from devhost.model.names import cdi_name_problem
from devhost.threads import PATIENCE_S, BlockingCalls

T = TypeVar("T")

_PATIENCE_HANGING_S: Final = 0.5  # devices that are gone must leave the list without much delay
_TEMPORARY: Final = re.compile(rf"\.{cdi.FILE_PREFIX}([0-9a-f]{{16}})\..*\.tmp")


class CdiFiles:
    """The spec files of devhost's resources in one directory.

    They remain when devhost stops: the containers of a running pod may restart and need them.

    Attributes:
        writes: How often a file was written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self.writes = directory, 0
        self._calls = BlockingCalls(
            "cdi files", directory, patience_hanging=_PATIENCE_HANGING_S, serial=True
        )

    async def write(self, resource_name: str, content: bytes | None) -> bool:
        """Replace a resource's file atomically, unless it has this content.

        Args:
            resource_name: The resource.
            content: From `devhost.allocation.cdi.serialize`; ``None`` removes the file.

        Returns:
            Whether the file has changed.

        Raises:
            OSError: It cannot be replaced; a `TimeoutError` after 10 s.
        """
        path = self._directory / cdi.file_name(resource_name)
        if content is None:
            return await self._call(lambda: _remove(path))
        prefix = f".{cdi.FILE_PREFIX}{cdi.resource_hash(resource_name)}."
        written = await self._call(lambda: _write(path, prefix, content))
        self.writes += written
        return written

    async def entries(self, resource_name: str) -> dict[str, cdi.SpecEntry]:
        """Return the entries of a resource's file, by the devices' names.

        There are none if the file does not exist or is not devhost's.

        Raises:
            OSError: It cannot be read; a `TimeoutError` after 10 s.
        """
        path, kind = self._directory / cdi.file_name(resource_name), cdi.kind(resource_name)
        return await self._call(lambda: _entries(path, kind))

    async def remove_stale(
        self, configured: Collection[str], alive: Callable[[str], bool]
    ) -> list[str]:
        """Remove devhost's files of resources that are no longer served, and unfinished ones.

        A file is devhost's by its name and its kind. One that cannot be read or removed remains.

        Args:
            configured: The names of the resources that this instance serves.
            alive: Whether another living instance serves a resource, by its
                `devhost.allocation.cdi.resource_hash`; called in a thread.

        Returns:
            The names of the files that were removed, sorted.

        Raises:
            OSError: The directory exists and cannot be read; a `TimeoutError` after 10 s.
        """
        hashes = {cdi.resource_hash(name) for name in configured}
        return await self._call(lambda: _remove_stale(self._directory, hashes, alive))

    async def _call(self, work: Callable[[], T]) -> T:
        return await self._calls.run(work, patience=PATIENCE_S)


def _write(path: Path, prefix: str, content: bytes) -> bool:
    if _read(path) == content:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Runtimes, some of them rootless, read all *.json and *.yaml again whenever one is renamed.
    replace_file(path, content, prefix=prefix, suffix=".tmp", mode=0o644)
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
    """Whether a file is to be removed; files of others are not even opened."""
    if unfinished := _TEMPORARY.fullmatch(path.name):
        return not alive(unfinished[1])  # another instance may be about to rename it
    resource = cdi.hash_in(path.name)
    if resource is None or resource in configured or alive(resource):
        return False
    return str(_content(path.read_bytes()).get("kind")).startswith(cdi.VENDOR_PREFIX)


def _entries(path: Path, kind: str) -> dict[str, cdi.SpecEntry]:
    try:
        content = _content(path.read_bytes())
    except FileNotFoundError:
        return {}
    devices = content.get("devices")
    if content.get("kind") != kind or not isinstance(devices, list):
        return {}
    return {one["name"]: one for one in devices if _is_entry(one, kind)}


def _is_entry(one: object, kind: str) -> bool:
    """Whether runtimes would take it: one that they refuse spoils the file."""
    return (
        isinstance(one, dict)
        and isinstance(name := one.get("name"), str)
        and cdi_name_problem(f"{kind}={name}") is None
        and isinstance(edits := one.get("containerEdits"), dict)
        and bool(edits)
    )


def _content(raw: bytes) -> dict[str, object]:
    try:
        content = json_text.parse(raw)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
