"""The records of what pods were given, and the table of them with those of claims; pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from pydantic import RootModel

from devhost.model.advertised import AdvertisedName
from devhost.model.claim_record import CLAIM, ClaimRecord, StateEntry
from devhost.model.device import NodeId

_Key = TypeVar("_Key")
Steps = Literal["none", "pending", "done"]
HandoutKey = tuple[str | None, str]
"""The resource and the advertised ID."""


class HandedNode(StateEntry):
    """A node that a pod was given (`NodeId`), and the kernel's ID of the boot in which it was."""

    entity: str
    names: frozenset[str]
    boot: str

    @classmethod
    def of(cls, node_id: NodeId, boot: str) -> "HandedNode":
        """Return the record of a node in a boot."""
        return cls(entity=node_id.entity, names=node_id.names, boot=boot)

    @property
    def id(self) -> NodeId:
        """Its identity."""
        return NodeId(self.entity, self.names)

    def keys(self, boot: str) -> frozenset[str]:
        """Return what identifies it in a boot."""
        return self.id.keys_in(same_boot=boot == self.boot)


class Handout(StateEntry):
    """The record of an Allocate: what a pod was given under one advertised ID.

    Attributes:
        id: The advertised ID.
        device: The ID of the device: another one where it is advertised as shares.
        nodes: Those that no other pod may have; also those of a former Allocate that did not end
            yet.
        overlap: Whether the resource had ``overlap: allow``.
        steps: Whether the `preStart` steps for a holder are to be run, or done.
        holder: The pod or claim, where the backend knows it.
    """

    resource: str
    id: str
    device: str
    nodes: tuple[HandedNode, ...]
    overlap: bool
    steps: Steps = "none"
    holder: str | None = None

    @property
    def key(self) -> HandoutKey:
        """Its resource and ID: there is one record of each."""
        return self.resource, self.id

    @property
    def name(self) -> AdvertisedName:
        """The name of the device."""
        return AdvertisedName(self.resource, self.device, shared=self.id != self.device)

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


Record = Handout | ClaimRecord
Changes = Mapping[HandoutKey, Record | None]
"""Records to set; ``None`` to end one."""


class HandoutTable:
    """All handouts as this process knows them, with indexes by node and by name; and all claims.

    Attributes:
        claims: The records of claims, by ID.
        preparing: The IDs of claims that have no record yet, but are being given devices.
    """

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.claims: dict[str, ClaimRecord] = {}
        self.preparing: set[str] = set()
        self._by_id: dict[HandoutKey, Handout] = {}
        self._by_node: dict[str, dict[HandoutKey, Handout]] = {}
        self._by_name: dict[AdvertisedName, dict[HandoutKey, Handout]] = {}

    def __iter__(self) -> Iterator[Handout]:
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, record: Record) -> bool:
        if isinstance(record, ClaimRecord):
            return self.claims.get(record.id) == record
        return self._by_id.get(record.key) == record

    def find(self, key: HandoutKey) -> Handout | None:
        """Return the handout of a resource and an ID."""
        return self._by_id.get(key)

    def by_node(self, keys: Iterable[str]) -> list[Handout]:
        """Return the handouts of a node, by its keys (`NodeId.keys`)."""
        if not self._by_node:
            return []
        handouts: dict[HandoutKey, Handout] = {}
        for key in keys:
            handouts |= self._by_node.get(key, {})
        return list(handouts.values())

    def by_name(self, name: AdvertisedName) -> list[Handout]:
        """Return the handouts of a device under a name."""
        return list(self._by_name.get(name, {}).values())

    def of_resource(self, resource: str) -> list[Handout]:
        """Return the handouts of a resource."""
        return [handout for handout in self if handout.resource == resource]

    def has_claim(self, handout: Handout) -> bool:
        """Whether a claim has what was handed out, or is being prepared with it."""
        return handout.holder in self.claims or handout.holder in self.preparing

    def snapshot(self) -> dict[HandoutKey, Record]:
        """Return all records, as they are now."""
        return {**self._by_id, **{claim.key: claim for claim in self.claims.values()}}

    def apply(self, changes: Changes) -> None:
        """Set and end records."""
        for key, handout in changes.items():
            if key[0] == CLAIM:
                self.claims.pop(key[1], None)
            if isinstance(handout, ClaimRecord):
                self.claims[handout.id] = handout
                continue
            if (former := self._by_id.pop(key, None)) is not None:
                _remove(self._by_name, former.name, key)
                for node_key in former.node_keys(self.boot):
                    _remove(self._by_node, node_key, key)
            if handout is not None:
                self._by_id[key] = handout
                self._by_name.setdefault(handout.name, {})[key] = handout
                for node_key in handout.node_keys(self.boot):
                    self._by_node.setdefault(node_key, {})[key] = handout


def _remove(
    index: dict[_Key, dict[HandoutKey, Handout]], key: _Key, handout_key: HandoutKey
) -> None:
    del index[key][handout_key]
    if not index[key]:
        del index[key]
