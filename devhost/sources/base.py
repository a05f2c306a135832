"""The contract of a source: where it looks, what it finds there, and what it has not matched.

Files (`file_sources`), CDI specs (`cdi_specs`), tokens (`static`), devices of the kernel (`kernel`)
and the code of a plugin are sources. `selection` decides which candidates are nodes of devices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from devhost.hostfs.files import HostFiles, Tally, describe_read_error
from devhost.model.device import Skipped
from devhost.model.device_node import NO_VARIABLES, Hardware, Node

if TYPE_CHECKING:
    from devhost.sources.file_sources import FileListing

# Filesystems that hold no devices to hand out, but may hold very many files that anybody may make.
# Only a source that names one of them as its directory looks into it.
NOT_DEVICES: Final = frozenset(
    f"/dev/{name}" for name in ("fd", "hugepages", "mqueue", "pts", "shm")
)


@dataclass(frozen=True, slots=True)
class WatchedDirectory:
    """A host directory whose events report changes of a location."""

    path: str
    recursive: bool = False
    writes: bool = False  # of a file, too


class Location:
    """A place where sources look; equal ones are the same place, and listed once for all."""

    __slots__ = ()

    @property
    def watched(self) -> WatchedDirectory | None:
        """The directory to watch, if any."""
        return None

    @property
    def subsystems(self) -> frozenset[str]:
        """The kernel's subsystems whose device events report changes of it."""
        return frozenset()

    def list(self, files: HostFiles, tally: Tally, /) -> "Listing":
        """List it, and count the entries. Blocks.

        A problem of one entry, or below it, is no failure.

        Raises:
            OSError: It cannot be listed.
        """
        raise NotImplementedError


@dataclass(eq=False)
class Listing:
    """A location as it was when it was listed.

    Attributes:
        failure: Why it could not be listed.
        missing: Why there is nothing to list, where that is no failure.
        unreadable: By host path, why an entry, or what is below it, cannot be read.
    """

    failure: str | None = None
    missing: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)


Listings = Mapping[Location, Any]
"""By location, what its `list` has returned; a source is only asked if none of its own failed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node or token that a source finds, before it is judged.

    Attributes:
        path: The host path as matched; empty for a token.
        name: The device ID that the source gives by default.
        exclusion: Why the source's own options exclude it.
        listing: The listing that has it; ``None`` for a token.
    """

    path: str
    name: str
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)
    exclusion: str | None = None
    listing: "FileListing | None" = None
    hardware: Hardware | None = None


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Something that a source has looked at and does not match.

    By option that it fails, `mismatches` has its value; an empty key has a sentence.
    """

    name: str
    mismatches: Mapping[str, str]


class NodeSource:
    """A source of devices. Its methods block, and do not raise for what the host does.

    Attributes:
        locations: Where it looks.
        empty_text: Why it finds nothing, where not what it has looked at explains it.
    """

    locations: tuple[Location, ...] = ()
    empty_text = ""

    def failure(self, _listings: Listings, /) -> str | None:
        """Return why it finds only a part."""
        return None

    def find(
        self, listings: Listings, previous: Mapping[str, Node], /
    ) -> Iterable[Candidate | Node | Skipped]:
        """Return what it finds, in natural order of the names.

        A node needs no further judgement; those of `previous`, by path, may be returned again.
        """
        raise NotImplementedError

    def unmatched(self, _listings: Listings, /) -> Iterable[Unmatched]:
        """Return what it has looked at and does not match."""
        return ()


def list_location(location: Location, files: HostFiles, tally: Tally | None = None) -> Listing:
    """List a location; where that fails, the listing says why. Blocks."""
    try:
        return location.list(files, tally or Tally())
    except OSError as error:
        return Listing(failure=describe_read_error(error))
