"""The parts of the host that sources look at: each is read once for all sources that name it."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from devhost.hostfs.files import CachedFiles, HostFiles, Tally, Walk, failure, is_wild
from devhost.hostfs.mounts import BlockUse
from devhost.model import names
from devhost.model.device import NO_VARIABLES, FileState, Hardware
from devhost.model.immutable import immutable
from devhost.model.spelling import did_you_mean, is_proposed

# Filesystems that hold no devices to hand out, but may hold very many files that anybody may make.
# Only a source that names one of them as its directory looks into it.
NOT_DEVICES: Final = frozenset(
    f"/dev/{name}" for name in ("fd", "hugepages", "mqueue", "pts", "shm")
)


@immutable
class WatchRoot:
    """A host directory whose events report changes of a root."""

    path: str
    recursive: bool = False


class Root:
    """A part of the host; equal ones are the same part."""

    __slots__ = ()

    @property
    def base(self) -> str:
        """The host path, without a slash at its end, before the names that are read."""
        return ""

    @property
    def watched(self) -> WatchRoot | None:
        """The directory to watch, if any."""
        return None

    @property
    def subsystems(self) -> frozenset[str]:
        """The subsystems whose device events report changes of it."""
        return frozenset()

    def read(self, files: HostFiles, tally: Tally, /) -> "Reading":
        """Read it, and count what is read. Blocks.

        What is wrong with one entry, or below it, is no failure.
        """
        raise NotImplementedError


class Reading:
    """What one reading of a root has found.

    A name is read when the first source asks for it, once for all sources.

    Attributes:
        names: The paths below its base, in natural order; `links` are those that are links.
        unreadable: Why entries, or what is below them, cannot be read.
        beside: What is there instead of a single path.
        missing: Why there is nothing to read, where that is no failure.
    """

    def __init__(
        self,
        root: Root,
        files: HostFiles,
        found: Iterable[str] = (),
        *,
        links: Iterable[str] = (),
        unreadable: Mapping[str, str] | None = None,
        missing: str | None = None,
        failure: str | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        self.root, self._files, self._looks = root, files, CachedFiles(files)
        self._base = root.base
        self.names: Sequence[str] = names.natural(found)
        self.links = frozenset(links)
        self.unreadable = unreadable or {}
        self.beside = beside
        self.missing, self.failure = missing, failure
        self._states: dict[str, FileState | None] = {}

    @functools.cached_property
    def block_use(self) -> BlockUse:
        """What uses block devices."""
        return BlockUse(self._files)

    def path(self, name: str) -> str:
        """Return the host path of a name."""
        return f"{self._base}/{name}"

    def state(self, name: str) -> FileState | None:
        """Return what is at a name; ``None`` where it leads nowhere, or an `OSError`. Blocks."""
        try:
            return self._states[name]
        except KeyError:
            state = self._states[name] = self._looks.stat(self.path(name))
            return state


@immutable
class DirectoryRoot(Root):
    """What matches a glob below a directory; wildcards match `hidden` names if that is set."""

    path: str
    glob: str = "*"
    hidden: bool = True

    @property
    def base(self) -> str:
        """The directory."""
        return self.path.rstrip("/")

    @property
    def watched(self) -> WatchRoot:
        """The directory, and where the glob leads further, all below it."""
        return WatchRoot(self.path, self.glob == "**" or "/" in self.glob)

    def read(self, files: HostFiles, tally: Tally) -> Reading:
        """Find what matches."""
        walk = Walk(files, self.base, self.glob, tally, hidden=self.hidden, leave_out=NOT_DEVICES)
        beside = [] if walk.found else files.entries(self.path)
        return Reading(
            self,
            files,
            walk.found,
            links=(name for name, is_link in walk.found.items() if is_link),
            unreadable=walk.unreadable,
            missing=_absent(files, self.path) if beside is None else None,
            beside=[] if is_wild(self.glob) else [one.name for one in beside or ()],
        )


def read(root: Root, files: HostFiles, tally: Tally | None = None) -> Reading:
    """Read a root; where that fails, the reading says why. Blocks."""
    try:
        return root.read(files, tally or Tally())
    except OSError as error:
        return Reading(root, files, failure=failure(error))


def _absent(files: HostFiles, directory: str) -> str:
    """Say why there is no such directory."""
    if files.stat(directory) is not None:
        return f"{directory} is not a directory"
    hint = ""
    if directory.startswith("/dev/"):
        above, _, name = directory.rstrip("/").rpartition("/")
        beside = (one.name for one in files.entries(above) or ())
        hint = did_you_mean(name, (one for one in beside if is_proposed(f"{above}/{one}")))
    if files.is_host:
        return f"{directory} does not exist yet{hint}"
    why = "it is not there yet, or not mounted (the chart's hostPaths)"
    return f"{directory} does not exist below {files.root}: {why}{hint}"


def is_silent(path: str) -> bool:
    """Whether there are no events at a path: the kernel makes up what is there."""
    return f"{path}/".startswith(("/sys/", "/proc/"))


Readings = Mapping[Root, Reading]


@immutable
class Match:
    """What a source finds, before it is judged.

    Attributes:
        path: The host path as matched; empty for a token.
        name: The device ID that the source gives by default.
        excluded: Why it is not to be offered, by the source's own options.
        at: What was read, and its name there; ``None`` for a token.
    """

    path: str
    name: str
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)
    excluded: str | None = None
    at: tuple[Reading, str] | None = None
    hardware: Hardware | None = None


@immutable
class Missed:
    """What a source has looked at and does not select.

    By option that it fails, `differs` says what it has instead; an empty key has a sentence.
    """

    name: str
    differs: Mapping[str, str]
