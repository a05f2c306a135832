"""The table of all records, with indexes by node and by name; pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from devhost.backends.share_ids import offered_id
from devhost.model.advertised import AdvertisedName
from devhost.model.device import HostDevice
from devhost.model.records import (
    Changes,
    ClaimRecord,
    Handout,
    Record,
    RecordedNodes,
    RecordKey,
    Steps,
    nodes_of,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Holding:
    """Nodes that no other pod may have, under one name, because of a record."""

    record: RecordKey
    name: AdvertisedName
    nodes: RecordedNodes
    overlap: bool
    driver: str = ""  # of the claim; empty for the device plugin
    claim: str = ""  # in messages; empty for the device plugin

    def node_keys(self, boot: str) -> frozenset[str]:
        """Return what identifies its nodes in a boot."""
        return frozenset[str]().union(*(node.keys(boot) for node in self.nodes))

    def __str__(self) -> str:
        return f"{self.name} with claim {self.claim}" if self.claim else str(self.name)


def holdings(record: Record) -> Iterator[Holding]:
    """Yield what no other pod may have because of a record."""
    if isinstance(record, Handout):
        yield Holding(record.key, record.name, record.nodes, record.overlap)
        return
    for device in record.devices:
        if not device.admin:
            name = offered_id(device.id).name(device.resource)
            claim = record.driver, record.shown
            yield Holding(record.key, name, device.nodes, device.overlap, *claim)


class Index(dict[K, dict[V, None]]):
    """Values in order, by keys of which each has one."""

    def add(self, key: K, value: V) -> None:
        """Add a value of a key."""
        self.setdefault(key, {})[value] = None

    def remove(self, key: K, value: V) -> None:
        """Remove a value of a key."""
        values = self[key]
        del values[value]
        if not values:
            del self[key]


@dataclass(slots=True)
class HoldingIndex:
    """An index of what no other pod may have, by node (`RecordedNode.keys`) and by name."""

    boot: str
    by_node: Index[str, Holding] = field(default_factory=Index)
    by_name: Index[AdvertisedName, Holding] = field(default_factory=Index)

    def add(self, holding: Holding) -> None:
        """Add a holding."""
        self.by_name.add(holding.name, holding)
        for key in holding.node_keys(self.boot):
            self.by_node.add(key, holding)

    def remove(self, holding: Holding) -> None:
        """Remove a holding."""
        self.by_name.remove(holding.name, holding)
        for key in holding.node_keys(self.boot):
            self.by_node.remove(key, holding)


class RecordTable:
    """All records as this process has them."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.claims: dict[str, ClaimRecord] = {}  # by ID
        self.index = HoldingIndex(boot)  # what no other pod may have because of records
        self._records: dict[RecordKey, Record] = {}

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

    def by_name(self, name: AdvertisedName) -> list[Record]:
        """Return the records of a device under a name."""
        return [
            self._records[key]
            for key in {holding.record for holding in self.index.by_name.get(name, ())}
        ]

    def has_nodes(self, name: AdvertisedName) -> bool:
        """Whether it is recorded which nodes a device under a name has."""
        return any(holding.nodes for holding in self.index.by_name.get(name, ()))

    def handouts(self, name: AdvertisedName) -> list[Handout]:
        """Return the handouts of a device under a name."""
        return [record for record in self.by_name(name) if isinstance(record, Handout)]

    def renew(
        self,
        resource: str,
        advertised_id: str,
        device: HostDevice,
        overlap: bool,
        steps: Steps | None = None,
    ) -> Handout:
        """Return the record of an ID that a pod is given, or has.

        Nodes that it had before stay; so do its steps, without others.
        """
        former = self.find((resource, advertised_id))
        nodes = (*(former.nodes if former else ()), *nodes_of(device, self.boot))
        return Handout(
            resource=resource,
            id=advertised_id,
            device=device.id,
            nodes=tuple({(node.boot, node.id.lasting): node for node in nodes}.values()),
            overlap=overlap,
            steps=steps or (former.steps if former else "none"),
        )

    def snapshot(self) -> dict[RecordKey, Record]:
        """Return all records, as they are now."""
        return dict(self._records)

    def apply(self, changes: Changes) -> None:
        """Set and end records."""
        for key, record in changes.items():
            if (former := self._records.pop(key, None)) is not None:
                for holding in {*holdings(former)}:
                    self.index.remove(holding)
                if isinstance(former, ClaimRecord):
                    del self.claims[former.id]
            if record is not None:
                self._records[key] = record
                for holding in holdings(record):
                    self.index.add(holding)
                if isinstance(record, ClaimRecord):
                    self.claims[record.id] = record
