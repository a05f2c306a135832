"""Writes the records of nodes to the state directory, without holding anybody up for long."""

import asyncio
import logging
from collections import ChainMap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from devhost.host.ownership.owner_file import Journal, Owner, Record
from devhost.threads import in_own_thread

_PATIENCE_S: Final = 2.0
_RETRY_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)

Learn = Callable[[Sequence[Record], Sequence[Record]], None]


class OwnerSaver:
    """One per process; one write at a time.

    Args:
        state_dir: Where the file is; ``None`` to write nothing.
        learn: Takes what other instances have written, and what was not written because of it.

    Attributes:
        loaded: Whether what the file had at the start was read.
        problem: Why the file does not have the records; ``None`` where it has.
    """

    def __init__(self, state_dir: Path | None, learn: Learn) -> None:
        self._journal = Journal(state_dir) if state_dir is not None else None
        self._learn = learn
        self._unsaved: dict[tuple[Owner, str], Record] = {}
        self._writing: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self.loaded = self._journal is None
        self.problem: str | None = None

    def put(self, record: Record) -> None:
        """Note what is to be written."""
        if self._journal is not None:
            self._unsaved[record.place] = record

    async def saved(self) -> None:
        """Wait until all is written: at most `_PATIENCE_S`, not at all while writing fails."""
        self.start()
        if self.problem is not None:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while self._writing is not None:
                    await asyncio.wait([self._writing])
        except TimeoutError:
            self._tell(f"no answer in {_PATIENCE_S:g}s")

    def start(self) -> None:
        """Write what is to be written."""
        if self._journal is not None and self._writing is None and self._due:
            self._writing = asyncio.create_task(self._write(self._journal), name="node records")

    def retry(self) -> None:
        """Try again what failed some time ago."""
        now = asyncio.get_running_loop().time()
        if self._due and now >= self._retry_at:
            self._retry_at = now + _RETRY_S
            self.start()

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._writing is not None:
            self._writing.cancel()

    @property
    def _due(self) -> bool:
        return bool(self._unsaved) or not self.loaded

    async def _write(self, journal: Journal) -> None:
        """Write all that is to be written; ends when that is so, or fails."""
        try:
            while self._due:
                batch, self._unsaved = self._unsaved, {}
                own = list(batch.values())
                try:
                    others, refused, bad = await in_own_thread(
                        "node records",
                        lambda own=own: journal.exchange(own),  # type: ignore[misc]
                    )
                except OSError as error:
                    self._unsaved = dict(ChainMap(self._unsaved, batch))
                    self._tell(error.strerror or str(error))
                    return
                if bad is not None:
                    _LOG.warning("%s", bad)
                self.loaded = True
                self._tell(None)
                self._learn(others, refused)
        finally:
            self._writing = None

    def _tell(self, problem: str | None) -> None:
        if problem is not None and self._journal is not None:
            problem = f"{self._journal.path}: {problem}"
        if problem != self.problem and problem is not None:
            _LOG.warning("cannot save who has which node: %s", problem)
        elif problem is None and self.problem is not None:
            _LOG.info("who has which node is saved again")
        self.problem = problem
