"""Devices as discovery finds them: immutable values, free of any protocol's types."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from devhost.model.device_node import Node


class Cause(StrEnum):
    """The cause of a verdict: code asks for it, people read the text."""

    # of a device that is unhealthy
    SOURCE_FAILED = "source failed"
    NOT_FOUND = "not found"
    NOT_OFFERED = "not offered"  # its nodes are there
    INCOMPLETE = "incomplete"
    SWAPPED = "swapped"
    RENDERING = "rendering"  # `allocate` cannot be put together for it
    CLASH = "clash"
    HOST_PATH = "host path"
    REFUSED = "refused"  # a right is missing
    WITHHELD = "withheld"  # its node may be in use under another name
    UNCHECKED = "unchecked"
    CHECK_FAILED = "check failed"
    CDI = "CDI"
    REMOVED = "removed"  # its resource
    CODE = "code"  # of the author of a plugin
    # of a candidate that is not offered; `INCOMPLETE`, too
    SETTLING = "settling"
    OWNED = "owned"
    EXCLUDED = "excluded"
    WRONG_TYPE = "wrong type"
    IN_USE = "in use"
    DANGLING = "dangling"
    UNREADABLE = "unreadable"
    BAD_NAME = "bad name"
    BAD_ID = "bad ID"
    OVER_LIMIT = "over the limit"
    ID_QUOTA = "ID quota"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause why a device is unhealthy, or a candidate is not offered, and its text."""

    cause: Cause
    text: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A device that was not found, or that lacks a node.

    Attributes:
        since: When that began, in seconds on the host's clock.
        remaining: The nodes (`Node.key`) that are there.
    """

    since: float
    remaining: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Leaving(Missing):
    """A device that has to leave the list: it exists, not offered or under another ID."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of one round of a device's health checks, and when that ended.

    Attributes:
        failure: Why a check failed; ``None`` where none did.
        unknown: The checks that were not possible, with the setting that would allow them.
    """

    at: datetime
    failure: str | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class HostDevice:
    """One distinct device of a resource.

    Attributes:
        id: Stable over reboot and replug; without the suffix of a share.
        nodes: Its files in the order of the sources; one, unless sources are grouped.
        verdict: Why it is unhealthy; ``None`` if it is healthy.
        absence: Since when it is not there, or has to leave the list; ``None``: it was found.
        swapped_at: When (on the host's clock) another device node was found in its place.
        is_rendered: Whether what it brings into a container was put together without an error; a
            scan does not do it again for the same nodes.
        places: The directories in sysfs above which the PCI functions of its nodes are sought.
        cdi_name: The name under which its CDI spec, as it is on the disk, has it.
    """

    id: str
    nodes: tuple[Node, ...]
    verdict: Verdict | None = None
    absence: Missing | None = None
    swapped_at: float | None = None
    is_rendered: bool = False
    numa_nodes: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    checked: Checked | None = None
    cdi_name: str | None = None

    @property
    def reason(self) -> str | None:
        """The text of its verdict, for people."""
        return None if self.verdict is None else self.verdict.text

    @property
    def owned_nodes(self) -> Iterator[Node]:
        """Its nodes that no other device may have: those that the kernel knows."""
        return (node for node in self.nodes if node.state or node.hardware)

    @property
    def keys(self) -> Iterable[str]:
        """The keys of its nodes (`Node.keys`), but of those that are missing."""
        keys = [key for node in self.nodes for key in node.keys]
        return self.absence.remaining.intersection(keys) if self.absence else keys

    @property
    def healthy(self) -> bool:
        """Whether containers may be given it."""
        return self.verdict is None

    @property
    def is_present(self) -> bool:
        """Whether it was found, with all its nodes."""
        return self.absence is None

    @property
    def is_leaving(self) -> bool:
        """Whether it has to leave the list."""
        return isinstance(self.absence, Leaving)

    @property
    def is_stable(self) -> bool:
        """Whether it is healthy, and neither gone nor just replaced."""
        return self.healthy and self.is_present and self.swapped_at is None

    @property
    def is_withheld(self) -> bool:
        """Whether its node may be in use under another name."""
        return self.verdict is not None and self.verdict.cause is Cause.WITHHELD

    def has(self, node: Node) -> bool:
        """Whether a node of it is there."""
        return self.absence is None or node.key in self.absence.remaining

    @property
    def numbers(self) -> dict[str, tuple[int, int]]:
        """The major and minor of its device nodes by path, or by a name that lasts in sysfs."""
        return {place: number for place, (number, _) in self.located.items()}

    @property
    def located(self) -> dict[str, tuple[tuple[int, int], str]]:
        """The number and the real path of each device node, by the place of `numbers`.

        Members of a group come and go: where several have a role, theirs are not counted together.
        """
        located: dict[str, tuple[tuple[int, int], str]] = {}
        role_counts: dict[str, int] = {}
        units = {(n.hardware.unit, n.hardware.role) for n in self.nodes if n.hardware}
        members = Counter(role for _, role in units)
        for node in self.nodes:
            place = node.path
            if node.hardware is not None and (role := node.hardware.role) is not None:
                role = f"{node.variables.get('place')} {role}" if members[role] > 1 else role
                role_counts[role] = index = role_counts.get(role, -1) + 1
                place = f"{role} {index}"
            if node.state and node.state.number:
                located[place] = node.state.number, node.state.realpath
        return located

    @property
    def paths(self) -> tuple[str, ...]:
        """The host paths of its nodes, as matched."""
        return tuple(
            node.path for node in self.nodes if node.state or (node.hardware and node.path)
        )


@dataclass(frozen=True, slots=True)
class Skipped:
    """A candidate that is not offered."""

    candidate: str
    verdict: Verdict

    @classmethod
    def because(cls, cause: Cause, candidate: str, text: str) -> "Skipped":
        """Return a candidate that is not offered for a cause."""
        return cls(candidate, Verdict(cause, text))

    @property
    def reason(self) -> str:
        """The text of its verdict, for people."""
        return self.verdict.text


def no_explanation() -> tuple[str, ...]:
    """Return nothing: there are devices, or a failure says why there are none."""
    return ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The devices of a resource at a time.

    Attributes:
        devices: By ID, in natural order.
        skipped: The candidates that are not offered; of very many, the first.
        skipped_count: The number of all of them.
        error: Why a source could not be read; its devices are kept, as unhealthy.
        notes: States that are not failures, such as a directory that does not exist yet.
        explain_empty: Returns why there are no devices, where no failure and no skipped candidate
            explains it.
        settling: First sight (seconds on the host's clock) of nodes that wait, by `Node.key`.
        again_at: When to scan again even if nothing happens, on the host's clock.
        partly_numa: Some devices are attached to NUMA nodes and others are not; none is shown with
            any.
        scanned: Whether it comes from a scan: what the first scan finds was there before.
        truncated: How many devices are left out, because the process offers enough.
    """

    devices: Mapping[str, HostDevice] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    error: str | None = None
    notes: tuple[str, ...] = ()
    explain_empty: Callable[[], tuple[str, ...]] = field(default=no_explanation, compare=False)
    settling: Mapping[str, float] = field(default_factory=dict)
    again_at: float | None = None
    partly_numa: bool = False
    scanned: bool = False
    truncated: int = 0

    @property
    def present_devices(self) -> list[HostDevice]:
        """The devices that are there; the others are missing, or leave kubelet's list."""
        return [device for device in self.devices.values() if device.is_present]
