"""The source ``glob``: each path that matches is a device."""

import fnmatch
from collections.abc import Iterator

from devhost.discovery.host_files import HostFiles
from devhost.discovery.match import Match, WatchRoot, absent
from devhost.immutable import immutable
from devhost.model.sources import Glob


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

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """Return the directories in front of the wildcards."""
        roots = []
        for text in self.options.paths:
            prefix = _literal_prefix(text)
            roots.append(WatchRoot(prefix or "/", "/" in text[len(prefix) + 1 :]))
        return tuple(roots)


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
    prefix = _literal_prefix(text)
    return _below(files, prefix, text[len(prefix) + 1 :].split("/"))


def _below(files: HostFiles, base: str, parts: list[str]) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _any_depth(files, base, rest or ["*"])
        return
    if not _is_wild(part):
        yield from _continued(files, f"{base}/{part}", rest)
        return
    for entry in files.entries(base or "/") or ():
        if _fits(entry.name, part):
            yield from _continued(files, f"{base}/{entry.name}", rest)


def _fits(name: str, part: str) -> bool:
    hidden = name.startswith(".") and not part.startswith(".")
    return not hidden and fnmatch.fnmatchcase(name, part)


def _continued(files: HostFiles, path: str, rest: list[str]) -> Iterator[str]:
    if rest:
        yield from _below(files, path, rest)
    elif files.is_link(path) or files.look(path) is not None:
        yield path


def _any_depth(files: HostFiles, base: str, rest: list[str]) -> Iterator[str]:
    yield from _below(files, base, rest)
    for entry in files.entries(base or "/") or ():
        if entry.is_directory and not entry.name.startswith("."):
            yield from _any_depth(files, f"{base}/{entry.name}", rest)
