"""Finds what is below a directory, by globs and within bounds."""

import errno
import fnmatch
from collections.abc import Iterable

from devhost.hostfs.files import DirectoryEntry, HostFiles, Tally
from devhost.model import names

Parts = tuple[str, ...]


class Walk:
    """One search below a directory.

    It goes through a tree once, and holds at each directory what is left of the pattern by each of
    the ways that lead there. No recursion: a tree may be deeper than that can go. It is an error if
    the directory itself cannot be read, or there is too much below it.

    The `base` has no slash at its end. In the pattern, ``**`` matches any directories, but no links
    to some; names that begin with a dot match wildcards only if `hidden` is set. No wildcard looks
    into the directories to `leave_out`.

    Attributes:
        found: The paths below the directory, and whether they are links.
        unreadable: Of such paths, why they, or what is below them, cannot be read.
        exists: Whether there is such a directory, if it had to be read.
    """

    def __init__(
        self,
        files: HostFiles,
        base: str,
        pattern: str = "**",
        tally: Tally | None = None,
        *,
        hidden: bool = False,
        leave_out: Iterable[str] = (),
    ) -> None:
        self._looks, self._base, self._tally = files.cached(), base, tally or Tally()
        self._hidden, self._leave_out = hidden, frozenset(leave_out)
        self.found: dict[str, bool] = {}
        self.unreadable: dict[str, str] = {}
        self.exists = True
        parts = tuple(pattern.split("/"))
        pending = [("", {parts if parts[-1] != "**" else (*parts, "*")})]
        while pending:
            below, lefts = pending.pop()
            children = self._children(below, lefts)
            pending += [(f"{below}{name}/", left) for name, left in children.items()]

    def _children(self, below: str, lefts: set[Parts]) -> dict[str, set[Parts]]:
        """Look at one directory; return where to go on, with what is left of the pattern there."""
        children: dict[str, set[Parts]] = {}
        for left in list(lefts):  # ** may also match no directory
            while left[0] == "**":
                left = left[1:]  # noqa: PLW2901
                lefts.add(left)
        for name, *rest in (left for left in lefts if not is_wild(left[0])):
            if rest:
                children.setdefault(name, set()).add(tuple(rest))
            elif (entry := self._entry(f"{below}{name}")) is not None:
                self.found[f"{below}{name}"] = entry.is_link
        wild = [left for left in lefts if is_wild(left[0])]
        entries = self._entries(below) if wild else ()
        for left in wild:
            for entry in entries:
                after = self._after(entry, left)
                if after == ():
                    self.found[f"{below}{entry.name}"] = entry.is_link
                elif after and f"{self._base}/{below}{entry.name}" not in self._leave_out:
                    children.setdefault(entry.name, set()).add(after)
        return children

    def _after(self, entry: DirectoryEntry, left: Parts) -> Parts | None:
        """Return what is left of a pattern at an entry; ``None`` where it does not go on there."""
        part, further = left[0], left[1:]
        if part == "**":
            shown = self._hidden or not entry.name.startswith(".")
            return left if shown and entry.is_directory else None
        if not fits(entry.name, part, hidden=self._hidden):
            return None
        return further if not further or entry.is_directory or entry.is_link else None

    def _entry(self, name: str) -> DirectoryEntry | None:
        try:
            return self._looks.entry(f"{self._base}/{name}")
        except OSError as error:
            self.unreadable[name] = failure(error)
            return None

    def _entries(self, below: str) -> list[DirectoryEntry]:
        path = f"{self._base}/{below}".rstrip("/")
        try:
            found = self._looks.entries(path or "/", below=self._base, tally=self._tally)
        except OSError as error:
            if not below or error.errno == errno.E2BIG:  # too many
                raise
            self.unreadable[below.rstrip("/")] = failure(error)
            return []
        self.exists = found is not None or bool(below)
        return found or []


def is_wild(part: str) -> bool:
    """Whether a glob may match more than one text."""
    return any(character in part for character in "*?[")


def fits(name: str, part: str, *, hidden: bool = False) -> bool:
    """Whether a name matches a glob; without `hidden`, a dot at its front needs one there."""
    if not hidden and name.startswith(".") and not part.startswith("."):
        return False
    return part == "*" or fnmatch.fnmatchcase(name, part)


def failure(error: OSError) -> str:
    """Return why the host could not say something."""
    where = f" ({error.filename})" if error.filename else ""
    return names.printable(f"{error.strerror or error}{where}")
