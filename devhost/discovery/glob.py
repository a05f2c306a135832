"""The source ``glob``: each path that matches is a device."""

import fnmatch
from collections.abc import Iterator
from typing import Final

from devhost.discovery.match import Match, WatchRoot, absent, contents
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model.sources import Glob

_SHOWN_MAX: Final = 3


@immutable
class GlobFinder:
    """Finds the paths that match glob patterns."""

    options: Glob

    def find(self, files: HostFiles) -> Iterator[Match]:
        """Yield each path once, of the first pattern that matches it."""
        seen: set[str] = set()
        for text in self.options.paths:
            prefix = _literal_prefix(text)
            for path in _expand(files, text):
                if path in seen:
                    continue
                seen.add(path)
                yield self._match(path, prefix)

    @property
    def by_path(self) -> bool:
        """Whether `one` can tell: only the last component has wildcards."""
        parts = [text.rpartition("/") for text in self.options.paths]
        return not any(_is_wild(above) or last == "**" for above, _, last in parts)

    def one(self, path: str) -> Match | None:
        """Return the candidate at a path."""
        parent, _, name = path.rpartition("/")
        for text in self.options.paths:
            prefix, _, wanted = text.rpartition("/")
            if parent == prefix and _fits(name, wanted):
                return self._match(path, prefix)
        return None

    def _match(self, path: str, prefix: str) -> Match:
        name = path.removeprefix(prefix).lstrip("/") or path.rpartition("/")[2]
        return Match(path, name, excluded="excluded" if self._excluded(path) else None)

    def _excluded(self, path: str) -> bool:
        return any(
            fnmatch.fnmatchcase(path if "/" in text else path.rpartition("/")[2], text)
            for text in self.options.exclude
        )

    def missing(self, files: HostFiles) -> str | None:
        """Say that the directory in front of the wildcards is not there."""
        for text in self.options.paths:
            if reason := absent(files, _literal_prefix(text) or "/"):
                return reason
        return None

    def unmatched(self, files: HostFiles) -> str:
        """Say what is in the directories in front of the wildcards, by up to 3 patterns."""
        found = [
            f"{contents(files, (prefix := _literal_prefix(text)) or '/')}, "
            f"none matches {text[len(prefix) + 1 :]}"
            for text in self.options.paths[:_SHOWN_MAX]
        ]
        more = len(self.options.paths) - len(found)
        return "; ".join(found) + (f"; and {more} more patterns" if more else "")

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """Return the directories in front of the wildcards."""
        roots = []
        for text in self.options.paths:
            prefix = _literal_prefix(text)
            roots.append(WatchRoot(prefix or "/", "/" in text[len(prefix) + 1 :]))
        return tuple(dict.fromkeys(roots))


def _is_wild(part: str) -> bool:
    return any(character in part for character in "*?[")


def _literal_prefix(text: str) -> str:
    """Return the directory in front of the first component with a wildcard."""
    parts = text.split("/")
    for index, part in enumerate(parts):
        if _is_wild(part):
            return "/".join(parts[:index])
    return "/".join(parts[:-1])


def _expand(files: HostFiles, text: str) -> Iterator[str]:
    """Yield the paths that match; not by recursion: a tree may be deeper than that can go."""
    prefix, looks = _literal_prefix(text), files.cached()
    pending = [(prefix, text[len(prefix) + 1 :].split("/"))]
    while pending:
        base, (part, *rest) = pending.pop()
        if part == "**":
            rest = rest or ["*"]
            pending.append((base, rest))
            wanted = [
                (entry.name, ["**", *rest])
                for entry in looks.entries(base or "/", below=prefix) or ()
                if entry.is_directory and not entry.name.startswith(".")
            ]
        elif _is_wild(part):
            names = (entry.name for entry in looks.entries(base or "/", below=prefix) or ())
            wanted = [(name, rest) for name in names if _fits(name, part)]
        else:
            wanted = [(part, rest)]
        for name, further in wanted:
            path = f"{base}/{name}"
            if further:
                pending.append((path, further))
            elif looks.exists(path):
                yield path


def _fits(name: str, part: str) -> bool:
    hidden = name.startswith(".") and not part.startswith(".")
    return not hidden and fnmatch.fnmatchcase(name, part)
