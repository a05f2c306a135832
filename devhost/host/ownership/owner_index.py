"""The records of nodes in memory, looked up by who has them and by what a node is known by."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from devhost.host.ownership.owner_file import Identity, Owner, Record, boot_id


@dataclass(eq=False, slots=True)
class Entry:
    """A record, and what this process knows of it.

    Attributes:
        record: What is on the disk, or should be.
        former: Whether the device has the node no more, as far as this process knows.
        since: On the event loop's clock, since when kubelet cannot hand out the node that way.
        gone: Whether the node was looked for and is not there.
        unknown: Whether nobody but this process can have told the kubelet of the device.
    """

    record: Record
    former: bool = False
    since: float = 0.0
    gone: bool = False
    unknown: bool = False


class OwnerIndex:
    """All records that are known.

    Attributes:
        boot: This boot of the machine.
        former: Those of devices that have the node no more.
    """

    def __init__(self) -> None:
        self.boot = boot_id()
        self.former: set[Entry] = set()
        self._entries: dict[str, dict[Owner, dict[str, Entry]]] = {}  # by resource; by realpath
        self._by_key: dict[Identity | str, tuple[Entry, ...]] = {}

    def owners(self, resource: str) -> Collection[Owner]:
        """Return the devices of a resource of which there are records."""
        return self._entries.get(resource, {}).keys()

    def of(self, owner: Owner) -> Mapping[str, Entry]:
        """Return the nodes of a device, by their real paths."""
        return self._entries.get(owner.resource, {}).get(owner, {})

    def at(self, keys: Iterable[Identity | str]) -> Iterator[Entry]:
        """Yield what is recorded of a node."""
        return (entry for key in keys for entry in self._by_key.get(key, ()))

    def add(self, entry: Entry) -> None:
        """Enter a record; there is none of its place."""
        record = entry.record
        owned = self._entries.setdefault(record.owner.resource, {}).setdefault(record.owner, {})
        owned[record.realpath] = entry
        for key in record.keys(self.boot):
            self._by_key[key] = (*self._by_key.get(key, ()), entry)
        if entry.former:
            self.former.add(entry)

    def forget(self, entry: Entry) -> None:
        """Undo `add`."""
        record = entry.record
        self.former.discard(entry)
        for key in record.keys(self.boot):
            if rest := tuple(one for one in self._by_key.get(key, ()) if one is not entry):
                self._by_key[key] = rest
            else:
                self._by_key.pop(key, None)
        owners = self._entries[record.owner.resource]
        del owners[record.owner][record.realpath]
        if not owners[record.owner]:
            del owners[record.owner]
        if not owners:
            del self._entries[record.owner.resource]
