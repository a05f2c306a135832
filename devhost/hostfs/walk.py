"""A search below a directory of the host, by globs and within bounds."""

import errno
import os
from collections.abc import Iterable

from devhost.hostfs.files import CachedFiles, HostFiles, Tally, describe_read_error, is_wild
from devhost.model.pattern import matches_name

Parts = tuple[str, ...]


class Walk:
    """A search below a directory.

    It goes through a tree once, and holds at each directory the rest of the pattern for each of the
    ways that lead there. No recursion: a tree may be deeper than that can go. Raises `OSError` if
    the directory itself cannot be read, or there are too many entries below it.

    The `base` has no slash at its end. In the pattern, ``**`` matches any directories, but no links
    to directories; names that begin with a dot match wildcards only if `hidden` is set. No wildcard
    looks into the directories to `leave_out`.

    Attributes:
        matches: Whether the paths that match, below the directory, are links.
        unreadable: Why some of those paths, or their entries, cannot be read.
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
        self._files, self._base, self._tally = CachedFiles(files), base, tally or Tally()
        self._hidden, self._leave_out = hidden, frozenset(leave_out)
        self.matches: dict[str, bool] = {}
        self.unreadable: dict[str, str] = {}
        parts = tuple(pattern.split("/"))
        pending = [("", {parts if parts[-1] != "**" else (*parts, "*")})]
        while pending:
            below, patterns = pending.pop()
            children = self._search(below, patterns)
            pending += [(f"{below}{name}/", rests) for name, rests in children.items()]

    def _search(self, below: str, patterns: set[Parts]) -> dict[str, set[Parts]]:
        """Search a directory; return the names to go on with, and the patterns below each."""
        children: dict[str, set[Parts]] = {}
        for pattern in list(patterns):  # ** may also match no directory
            while pattern[0] == "**":
                pattern = pattern[1:]  # noqa: PLW2901
                patterns.add(pattern)
        for name, *rest in (pattern for pattern in patterns if not is_wild(pattern[0])):
            if rest:
                children.setdefault(name, set()).add(tuple(rest))
            elif (is_link := self._is_link(f"{below}{name}")) is not None:
                self.matches[f"{below}{name}"] = is_link
        wild = [pattern for pattern in patterns if is_wild(pattern[0])]
        entries = self._entries(below) if wild else ()
        for pattern in wild:
            for entry in entries:
                below_entry = self._match(entry, pattern)
                if below_entry == ():
                    self.matches[f"{below}{entry.name}"] = entry.is_symlink()
                elif below_entry and f"{self._base}/{below}{entry.name}" not in self._leave_out:
                    children.setdefault(entry.name, set()).add(below_entry)
        return children

    def _match(self, entry: os.DirEntry[str], pattern: Parts) -> Parts | None:
        """Return the rest of a pattern below an entry; ``None`` where the entry does not match."""
        part, *rest = pattern
        if part == "**":
            shown = self._hidden or not entry.name.startswith(".")
            return pattern if shown and entry.is_dir(follow_symlinks=False) else None
        if not matches_name(entry.name, part, hidden=self._hidden):
            return None
        if rest and not (entry.is_symlink() or entry.is_dir(follow_symlinks=False)):
            return None
        return tuple(rest)

    def _is_link(self, name: str) -> bool | None:
        try:
            return self._files.is_link(f"{self._base}/{name}")
        except OSError as error:
            self.unreadable[name] = describe_read_error(error)
            return None

    def _entries(self, below: str) -> list[os.DirEntry[str]]:
        path = f"{self._base}/{below}".rstrip("/")
        try:
            return self._files.entries(path or "/", tally=self._tally) or []
        except OSError as error:
            if not below or error.errno == errno.E2BIG:  # too many
                raise
            self.unreadable[below.rstrip("/")] = describe_read_error(error)
            return []
