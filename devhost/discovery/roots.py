"""The parts of the host that sources look at: each is read once for all sources that name it."""

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from devhost.hostfs.block_use import BlockUse
from devhost.hostfs.files import HostFiles
from devhost.hostfs.tally import Tally, TooManyEntriesError
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.device import FileState
from devhost.model.spelling import nearest_node

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


class Root(Protocol):
    """A part of the host; equal ones are the same part."""

    @property
    def watched(self) -> WatchRoot | None:
        """The directory to watch, if any."""
        ...

    @property
    def subsystems(self) -> frozenset[str]:
        """The subsystems whose device events report changes of it."""
        ...

    @property
    def base(self) -> str:
        """The host path, without a slash at its end, before the names that are read."""
        ...

    def read(self, files: HostFiles, tally: Tally, /) -> "Reading":
        """Read it, and count what is read. Blocks.

        Raises:
            OSError: The host cannot say, or there is too much. What is wrong with one entry, or
                below it, is no failure.
        """
        ...


class BaseRoot:
    """What most roots have in common: nothing is watched, and all is read when a source asks."""

    __slots__ = ()

    @property
    def watched(self) -> WatchRoot | None:
        """No directory."""
        return None

    @property
    def subsystems(self) -> frozenset[str]:
        """No subsystem, unless a root has one."""
        return frozenset()


class Reading:
    """What one reading of a root has found.

    A name is read when the first source asks for it, once for all sources.

    Attributes:
        root: What was read.
        names: The paths below its base, in natural order.
        links: Those of the names that are links.
        unreadable: Why entries, or what is below them, cannot be read.
        beside: What is there instead of a single path.
        missing: Why there is nothing to read, where that is no failure.
        failure: Why it could not be read.
        block_use: What uses block devices.
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
        self.root, self._looks = root, files.cached()
        self.names: Sequence[str] = names.natural(found)
        self.links = frozenset(links)
        self.unreadable = unreadable or {}
        self.beside = beside
        self.missing, self.failure = missing, failure
        self.block_use = BlockUse(files)
        self._states: dict[str, FileState | None] = {}

    def path(self, name: str) -> str:
        """Return the host path of a name."""
        return f"{self.root.base}/{name}"

    def state(self, name: str) -> FileState | None:
        """Return what is at a name; ``None`` where it leads nowhere. Blocks.

        Raises:
            OSError: The host cannot say.
        """
        try:
            return self._states[name]
        except KeyError:
            state = self._states[name] = self._looks.stat(self.path(name))
            return state


@immutable
class DirectoryRoot(BaseRoot):
    """The entries of a directory, or all that is below it; links below it are not followed.

    Attributes:
        path: The directory.
        recursive: Whether all that is below it counts.
        hidden: If so, whether names that begin with a dot count.
    """

    path: str
    recursive: bool = False
    hidden: bool = False

    @property
    def base(self) -> str:
        """The directory."""
        return self.path.rstrip("/")

    @property
    def watched(self) -> WatchRoot:
        """The directory."""
        return WatchRoot(self.path, self.recursive)

    def read(self, files: HostFiles, tally: Tally) -> Reading:
        """Read the directory, and those below it."""
        looks = files.cached()
        entries = looks.entries(self.path, tally=tally)
        if entries is None:
            return Reading(self, files, missing=absent(files, self.path))
        found: list[str] = []
        links: list[str] = []
        unreadable: dict[str, str] = {}
        pending = [("", entries)]
        while pending:
            below, some = pending.pop()
            for entry in some:
                if self.recursive and entry.name.startswith(".") and not self.hidden:
                    continue
                name = f"{below}{entry.name}"
                found.append(name)
                if entry.is_link:
                    links.append(name)
                path = f"{self.base}/{name}"
                if self.recursive and entry.is_directory and path not in NOT_DEVICES:
                    try:
                        inside = looks.entries(path, below=self.path, tally=tally)
                    except TooManyEntriesError:
                        raise
                    except OSError as error:
                        unreadable[name], inside = failure(error), None
                    pending.append((f"{name}/", inside or []))
        return Reading(self, files, found, links=links, unreadable=unreadable)


def read(root: Root, files: HostFiles, tally: Tally | None = None) -> Reading:
    """Read a root; where that fails, the reading says why. Blocks."""
    try:
        return root.read(files, tally or Tally())
    except OSError as error:
        return Reading(root, files, failure=failure(error))


def failure(error: OSError) -> str:
    """Return why the host could not say something."""
    where = f" ({error.filename})" if error.filename else ""
    return names.printable(f"{error.strerror or error}{where}")


def unusable(*texts: str) -> str | None:
    """Say that a name cannot be handed out, whatever it is."""
    for text in texts:
        if "\n" in text or "\t" in text or names.text_problem(text):
            return "unusable name: it is not UTF-8, or has control characters"
    return None


def is_too_long(error: OSError) -> bool:
    """Whether a path is longer than the kernel takes."""
    return error.errno == errno.ENAMETOOLONG


def absent(files: HostFiles, directory: str) -> str:
    """Say why there is no such directory."""
    if files.stat(directory) is not None:
        return f"{directory} is not a directory"
    near = _beside(files, directory) if directory.startswith("/dev/") else ""
    hint = f"; did you mean {near}?" if near else ""
    if files.is_host:
        return f"{directory} does not exist yet{hint}"
    return (
        f"{directory} does not exist below {files.root}: it is not there yet, or not mounted "
        f"(the chart's hostPaths){hint}"
    )


def _beside(files: HostFiles, directory: str) -> str:
    """Return what is most like a directory, beside the first part of it that does not exist."""
    above, _, name = directory.rstrip("/").rpartition("/")
    try:
        while (entries := files.entries(above or "/")) is None:
            above, _, name = above.rpartition("/")
    except OSError:
        return ""
    return nearest_node(name, (f"{above}/{one.name}" for one in entries))


def is_silent(path: str) -> bool:
    """Whether there are no events at a path: the kernel makes up what is there."""
    return f"{path}/".startswith(("/sys/", "/proc/"))
