"""How many entries of the host's directories are read for one purpose."""

import errno
from collections.abc import Callable

from devhost.limits import ENTRIES_MAX, ENTRY_CHARACTERS


class TooManyEntriesError(OSError):
    """More entries than may be read."""


class Tally:
    """Counts entries while they are read, and ends the reading of too many.

    Args:
        refusal: Returns why there may not be so many, if they may not.
    """

    def __init__(self, refusal: Callable[[int], str | None] | None = None) -> None:
        self._refusal = refusal or _too_many
        self.count = 0

    def add(self, directory: str, name: str) -> None:
        """Count an entry of a directory.

        Raises:
            OSError: There are too many.
        """
        self.count += 1 + (len(directory) + len(name)) // ENTRY_CHARACTERS
        if reason := self._refusal(self.count):
            raise TooManyEntriesError(errno.E2BIG, reason, directory)


def _too_many(count: int) -> str | None:
    return f"more than {ENTRIES_MAX:,} entries" if count > ENTRIES_MAX else None
