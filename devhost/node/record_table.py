"""The table of all records, with indexes by node and by name; pure."""

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import TypeVar

from devhost.backends.share_ids import offered_id
from devhost.model.advertised import AdvertisedName
from devhost.model.records import Changes, ClaimRecord, Handout, Record, RecordedNodes, RecordKey

_Key = TypeVar("_Key")
_Sized = TypeVar("_Sized", bound=Sized)


@dataclass(frozen=True, slots=True)
class Holding:
    """What no other pod may have, under one name, because of a record.

    Attributes:
        driver: The driver of the claim; empty for the device plugin.
        claim: The claim in messages; empty for the device plugin.
    """

    name: AdvertisedName
    nodes: RecordedNodes
    overlap: bool
    driver: str = ""
    claim: str = ""

    def node_keys(self, boot: str) -> frozenset[str]:
        """Return what identifies its nodes in a boot."""
        return frozenset[str]().union(*(node.keys(boot) for node in self.nodes))

    def __str__(self) -> str:
        return f"{self.name} with claim {self.claim}" if self.claim else str(self.name)


def holdings(record: Record) -> Iterator[Holding]:
    """Yield what no other pod may have because of a record."""
    if isinstance(record, Handout):
        yield Holding(record.name, record.nodes, record.overlap)
        return
    for device in record.devices:
        if not device.admin:
            name = offered_id(device.id).name(device.resource)
            yield Holding(name, device.nodes, device.overlap, record.driver, record.shown)


class RecordTable:
    """All records as this process has them.

    Attributes:
        claims: The records of claims, by ID.
    """

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.claims: dict[str, ClaimRecord] = {}
        self._records: dict[RecordKey, Record] = {}
        # By node key: which holdings have the node, each with the keys of its records.
        self._by_node: dict[str, dict[Holding, set[RecordKey]]] = {}
        self._by_name: dict[AdvertisedName, dict[RecordKey, Record]] = {}

    def __iter__(self) -> Iterator[Handout]:
        return (record for record in tuple(self._records.values()) if isinstance(record, Handout))

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, record: Record) -> bool:
        return self._records.get(record.key) == record

    def get(self, key: RecordKey) -> Record | None:
        """Return the record of a key."""
        return self._records.get(key)

    def find(self, key: RecordKey) -> Handout | None:
        """Return the handout of a resource and an ID."""
        record = self._records.get(key)
        return record if isinstance(record, Handout) else None

    def by_node(self, keys: Iterable[str]) -> Iterator[Holding]:
        """Yield what pods were given of a node, by its keys (`NodeId.keys`)."""
        return (holding for key in keys for holding in self._by_node.get(key, ()))

    def by_name(self, name: AdvertisedName) -> Iterable[Record]:
        """Return the records of a device under a name."""
        return self._by_name.get(name, {}).values()

    def has_nodes(self, name: AdvertisedName) -> bool:
        """Whether it is recorded which nodes a device under a name has."""
        records = self.by_name(name)
        return any(
            holding.nodes
            for record in records
            for holding in holdings(record)
            if holding.name == name
        )

    def handouts(self, name: AdvertisedName) -> list[Handout]:
        """Return the handouts of a device under a name."""
        return [record for record in self.by_name(name) if isinstance(record, Handout)]

    def of_resource(self, resource: str) -> list[Handout]:
        """Return the handouts of a resource."""
        return [handout for handout in self if handout.resource == resource]

    def snapshot(self) -> dict[RecordKey, Record]:
        """Return all records, as they are now."""
        return dict(self._records)

    def holdings(self) -> Iterator[Holding]:
        """Yield all that pods were given."""
        return (holding for record in self.snapshot().values() for holding in holdings(record))

    def apply(self, changes: Changes) -> None:
        """Set and end records."""
        for key, record in changes.items():
            if (former := self._records.pop(key, None)) is not None:
                self._index(former, remove=True)
            if record is not None:
                self._records[key] = record
                self._index(record)

    def _index(self, record: Record, *, remove: bool = False) -> None:
        if isinstance(record, ClaimRecord):
            if remove:
                del self.claims[record.id]
            else:
                self.claims[record.id] = record
        for holding in holdings(record):
            by_key = self._by_name.setdefault(holding.name, {})
            if remove:
                by_key.pop(record.key, None)
            else:
                by_key[record.key] = record
            _drop_empty(self._by_name, holding.name)
            for node_key in holding.node_keys(self.boot):
                keys = self._by_node.setdefault(node_key, {}).setdefault(holding, set())
                if remove:
                    keys.discard(record.key)
                else:
                    keys.add(record.key)
                _drop_empty(self._by_node[node_key], holding)
                _drop_empty(self._by_node, node_key)


def _drop_empty(index: dict[_Key, _Sized], key: _Key) -> None:
    if not index[key]:
        del index[key]
