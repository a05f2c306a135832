"""What a source finds, before it is judged."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Protocol

from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable


@immutable
class Match:
    """A candidate.

    Attributes:
        path: The host path as matched; empty for a token.
        name: The device ID that the source gives by default.
        variables: The pattern's named groups.
        excluded: Why it is not to be offered, by the source's own options.
    """

    path: str
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    excluded: str | None = None


@immutable
class WatchRoot:
    """A host directory whose changes may change what a source finds."""

    path: str
    recursive: bool = False


class Finder(Protocol):
    """One kind of source."""

    def find(self, files: HostFiles) -> Iterator[Match]:
        """Yield every candidate; raise `OSError` where the host cannot say."""
        ...

    @property
    def by_path(self) -> bool:
        """Whether `one` can tell: what is at a path depends on nothing else."""
        ...

    def one(self, path: str) -> Match | None:
        """Return the candidate at a path below a watched directory, where something is.

        It is what `find` yields for the path, if no link is on the way to it.
        """
        ...

    def missing(self, files: HostFiles) -> str | None:
        """Say what is not there yet, where that explains that nothing is found."""
        ...

    def unmatched(self, files: HostFiles) -> str:
        """Say why nothing is found where nothing is missing."""
        ...

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """Return the directories to watch."""
        ...


def contents(files: HostFiles, directory: str) -> str:
    """Say how many entries a directory has."""
    count = len(files.entries(directory) or ())
    if count == 0:
        return f"{directory} is empty"
    return f"{directory} has {count} {'entry' if count == 1 else 'entries'}"


def absent(files: HostFiles, directory: str) -> str | None:
    """Say that a directory is not there, or return ``None``."""
    if files.entries(directory) is not None:
        return None
    if files.stat(directory) is not None:
        return f"{directory} is not a directory"
    if files.is_host:
        return f"{directory} does not exist yet"
    return (
        f"{directory} does not exist below {files.root}: it is not there yet, or not mounted "
        "(the chart's hostPaths)"
    )
