"""The records of what pods were given, and the table of them with those of claims; pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import RootModel

from devhost.backends.share_ids import offered_id
from devhost.model.advertised import AdvertisedName
from devhost.model.claim_record import ClaimRecord, HandedNode, StateEntry

_Key = TypeVar("_Key")
Steps = Literal["none", "pending", "done"]
HandoutKey = tuple[str | None, str]
"""The resource and the advertised ID."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a pod was given under one advertised ID, by a device plugin or with a claim.

    Attributes:
        publisher: The driver of the claim; empty for the device plugin.
        claim: The ID of the record of the claim.
        shown: The claim in messages.
    """

    name: AdvertisedName
    id: str
    nodes: tuple[HandedNode, ...]
    overlap: bool
    publisher: str = ""
    claim: str = ""
    shown: str = ""

    def node_keys(self, boot: str) -> frozenset[str]:
        """Return what identifies its nodes in a boot."""
        return frozenset[str]().union(*(node.keys(boot) for node in self.nodes))

    def __str__(self) -> str:
        return f"{self.name} with claim {self.shown}" if self.claim else str(self.name)


class Handout(StateEntry):
    """The record of an Allocate: what a pod was given under one advertised ID.

    Attributes:
        id: The advertised ID.
        device: The ID of the device: another one where it is advertised as shares.
        nodes: Those that no other pod may have; also those of a former Allocate that did not end
            yet.
        overlap: Whether the resource had ``overlap: allow``.
        steps: Whether the `preStart` steps for a holder are to be run, or done.
    """

    resource: str
    id: str
    device: str
    nodes: tuple[HandedNode, ...]
    overlap: bool
    steps: Steps = "none"

    @property
    def key(self) -> HandoutKey:
        """Its resource and ID: there is one record of each."""
        return self.resource, self.id

    @property
    def name(self) -> AdvertisedName:
        """The name of the device."""
        return AdvertisedName(self.resource, self.device, shared=self.id != self.device)

    @property
    def held(self) -> Sequence[Held]:
        """What no other pod may have by it."""
        return [Held(self.name, self.id, self.nodes, self.overlap)]

    def with_steps(self, steps: Steps) -> "Handout":
        """Return it with other steps."""
        return self.model_copy(update={"steps": steps})

    def node_keys(self, boot: str) -> frozenset[str]:
        """Return what identifies its nodes in a boot."""
        return frozenset[str]().union(*(node.keys(boot) for node in self.nodes))


class Foreign(RootModel[Any]):
    """An entry of a newer version, which stays in the file as it is."""

    @property
    def key(self) -> HandoutKey:
        """Its content."""
        return None, json.dumps(self.root, sort_keys=True)


def held_by_claim(claim: ClaimRecord) -> Sequence[Held]:
    """Return what no other pod may have by a claim."""
    return [
        Held(
            offered_id(device.id).name(device.resource),
            device.id,
            device.nodes,
            device.overlap,
            claim.driver,
            claim.id,
            claim.shown,
        )
        for device in claim.devices
        if not device.admin
    ]


Record = Handout | ClaimRecord
Changes = Mapping[HandoutKey, Record | None]
"""Records to set; ``None`` to end one."""


def held_by(record: Record) -> Sequence[Held]:
    """Return what no other pod may have by a record."""
    return record.held if isinstance(record, Handout) else held_by_claim(record)


class HandoutTable:
    """All records as this process knows them, with indexes by node and by name.

    Attributes:
        claims: The records of claims, by ID.
    """

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.claims: dict[str, ClaimRecord] = {}
        self._records: dict[HandoutKey, Record] = {}
        self._by_node: dict[str, dict[HandoutKey, list[Held]]] = {}
        self._by_name: dict[AdvertisedName, dict[HandoutKey, list[Held]]] = {}

    def __iter__(self) -> Iterator[Handout]:
        return (one for one in tuple(self._records.values()) if isinstance(one, Handout))

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, record: Record) -> bool:
        return self._records.get(record.key) == record

    def find(self, key: HandoutKey) -> Handout | None:
        """Return the handout of a resource and an ID."""
        record = self._records.get(key)
        return record if isinstance(record, Handout) else None

    def by_node(self, keys: Iterable[str]) -> list[Held]:
        """Return what pods were given of a node, by its keys (`NodeId.keys`)."""
        held: dict[Held, None] = {}
        for key in keys if self._by_node else ():
            for holdings in self._by_node.get(key, {}).values():
                held |= dict.fromkeys(holdings)
        return list(held)

    def by_name(self, name: AdvertisedName) -> list[Held]:
        """Return what pods were given of a device under a name."""
        return [one for holdings in self._by_name.get(name, {}).values() for one in holdings]

    def handouts(self, name: AdvertisedName) -> list[Handout]:
        """Return the handouts of a device under a name."""
        found = map(self.find, self._by_name.get(name, ()))
        return [handout for handout in found if handout is not None]

    def of_resource(self, resource: str) -> list[Handout]:
        """Return the handouts of a resource."""
        return [handout for handout in self if handout.resource == resource]

    def snapshot(self) -> dict[HandoutKey, Record]:
        """Return all records, as they are now."""
        return dict(self._records)

    def held(self) -> Iterator[Held]:
        """Yield all that pods were given."""
        return (held for record in tuple(self._records.values()) for held in held_by(record))

    def apply(self, changes: Changes) -> None:
        """Set and end records."""
        for key, record in changes.items():
            if (former := self._records.pop(key, None)) is not None:
                self.claims.pop(former.id, None) if isinstance(former, ClaimRecord) else None
                for held in held_by(former):
                    _remove(self._by_name, held.name, key)
                    for node_key in held.node_keys(self.boot):
                        _remove(self._by_node, node_key, key)
            if record is not None:
                self._records[key] = record
                if isinstance(record, ClaimRecord):
                    self.claims[record.id] = record
                for held in held_by(record):
                    self._by_name.setdefault(held.name, {}).setdefault(key, []).append(held)
                    for node_key in held.node_keys(self.boot):
                        self._by_node.setdefault(node_key, {}).setdefault(key, []).append(held)


def _remove(
    index: dict[_Key, dict[HandoutKey, list[Held]]], key: _Key, handout_key: HandoutKey
) -> None:
    index.get(key, {}).pop(handout_key, None)
    if not index.get(key, True):
        del index[key]
