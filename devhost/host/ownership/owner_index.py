"""The records of node owners in memory, by owner and by node."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from devhost.host.ownership.owner_file import NodeIdentity, Owner, OwnerRecord, boot_id

K = TypeVar("K")


@dataclass(eq=False, slots=True)
class Entry:
    """A record, and what this process knows about it.

    Attributes:
        record: The record on the disk, or about to be.
        former: Whether the device no longer has the node, as far as this process knows.
        since: On the event loop's clock, since when kubelet cannot allocate the node by it.
        listed: Whether kubelet's list of this process had the device when that was last checked.
        gone: Whether a scan has not found the node.
        unknown: Whether kubelet cannot know the device, except from this process.
    """

    record: OwnerRecord
    former: bool = False
    since: float = 0.0
    listed: bool = False
    gone: bool = False
    unknown: bool = False


class OwnerIndex:
    """All known records.

    Attributes:
        boot: The ID of this boot of the machine.
        former: The entries of devices that no longer have the node.
    """

    def __init__(self) -> None:
        self.boot = boot_id()
        self.former: set[Entry] = set()
        self._entries: dict[str, dict[Owner, tuple[Entry, ...]]] = {}  # by resource
        self._by_key: dict[NodeIdentity | str, tuple[Entry, ...]] = {}

    def realpaths(self) -> dict[str, frozenset[str]]:
        """Return, by resource, the real paths of nodes that no other resource may offer."""
        return {
            resource: frozenset(
                entry.record.realpath
                for entries in owners.values()
                for entry in entries
                if not entry.record.overlap
            )
            for resource, owners in self._entries.items()
        }

    def owners(self, resource: str) -> Collection[Owner]:
        """Return the devices of a resource that have records."""
        return self._entries.get(resource, {}).keys()

    def of(self, owner: Owner) -> tuple[Entry, ...]:
        """Return the entries of a device, one for each real path of its nodes."""
        return self._entries.get(owner.resource, {}).get(owner, ())

    def has_left(self, owner: Owner) -> bool:
        """Whether a device is gone; else it may have only lost a node."""
        return all(one.former for one in self.of(owner))

    def known(self, record: OwnerRecord) -> Entry | None:
        """Return the entry of a record's owner and real path."""
        entries = self.of(record.owner)
        return next((one for one in entries if one.record.realpath == record.realpath), None)

    def at(self, keys: Iterable[NodeIdentity | str]) -> Iterator[Entry]:
        """Yield the entries of a node, by its keys."""
        return (entry for key in keys for entry in self._by_key.get(key, ()))

    def add(self, entry: Entry) -> None:
        """Add an entry; there is none of its owner and real path."""
        record = entry.record
        owners = self._entries.setdefault(record.owner.resource, {})
        owners[record.owner] = (*owners.get(record.owner, ()), entry)
        for key in record.keys(self.boot):
            self._by_key[key] = (*self._by_key.get(key, ()), entry)
        if entry.former:
            self.former.add(entry)

    def forget(self, entry: Entry) -> None:
        """Remove an entry."""
        record = entry.record
        self.former.discard(entry)
        for key in record.keys(self.boot):
            _remove(self._by_key, key, entry)
        owners = self._entries[record.owner.resource]
        _remove(owners, record.owner, entry)
        if not owners:
            del self._entries[record.owner.resource]


def _remove(entries: dict[K, tuple[Entry, ...]], key: K, entry: Entry) -> None:
    before = entries[key]
    place = before.index(entry)  # not by comparing in Python: a device may have 10,000 nodes
    if rest := before[:place] + before[place + 1 :]:
        entries[key] = rest
    else:
        del entries[key]
