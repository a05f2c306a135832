"""The records of what was given to pods: by a device plugin, and with ResourceClaims."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from devhost.model.advertised import AdvertisedName
from devhost.model.device import HostDevice
from devhost.model.device_node import NodeId

CLAIM: Final = "claim"  # in the key of a claim, in the place of a resource's name
Steps = Literal["none", "pending", "done"]
RecordKey = tuple[str, str]
"""The resource and the advertised ID of a handout; `CLAIM` and the ID of a claim."""


def claim_id(driver: str, uid: str) -> str:
    """Return the ID of the record of a claim, by its UID."""
    return f"{driver} {uid}"


class StateEntry(BaseModel):
    """A part of a file of the state directory."""

    # After a rollback, the fields that a newer version has added are kept.
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


class RecordedNode(StateEntry):
    """A node that a pod was given (`NodeId`), and the kernel's ID of the boot in which it was."""

    entity: str
    names: frozenset[str]
    boot: str

    @classmethod
    def of(cls, node_id: NodeId, boot: str) -> "RecordedNode":
        """Return the record of a node in a boot."""
        return cls(entity=node_id.entity, names=node_id.names, boot=boot)

    @property
    def id(self) -> NodeId:
        """Its identity."""
        return NodeId(self.entity, self.names)

    def keys(self, boot: str) -> frozenset[str]:
        """Return what identifies it in a boot."""
        return self.id.keys_in(same_boot=boot == self.boot)


RecordedNodes = tuple[RecordedNode, ...]


def nodes_of(device: HostDevice, boot: str) -> RecordedNodes:
    """Return the nodes of a device in a boot."""
    return tuple(RecordedNode.of(node.id, boot) for node in device.owned_nodes)


def with_new_nodes(former: RecordedNodes, device: HostDevice, boot: str) -> RecordedNodes:
    """Return nodes with those of a device, in a boot, that are none of them."""
    keys = frozenset[str]().union(*(node.keys(boot) for node in former))
    return (*former, *(node for node in nodes_of(device, boot) if keys.isdisjoint(node.keys(boot))))


class Handout(StateEntry):
    """The record of an Allocate: what a pod was given under one advertised ID.

    Attributes:
        resource: The resource, which its file names once.
        id: The advertised ID.
        device: The ID of the device: another one where it is advertised as shares.
        nodes: Those that no other pod may have; also those of a former Allocate that did not end
            yet.
        overlap: Whether the resource had ``overlap: allow``.
        steps: Whether the `preStart` steps for a holder are to be run, or done.
    """

    resource: str = Field(exclude=True)
    id: str
    device: str
    nodes: RecordedNodes
    overlap: bool
    steps: Steps = "none"

    @property
    def key(self) -> RecordKey:
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


class ClaimedDevice(StateEntry):
    """A device that a claim was given.

    Attributes:
        id: The advertised ID.
        pool: The pool in which it was published, as `device`.
        share: Which of the device's shares it is, where the API server has made them.
        cdi: The qualified names that the container runtime gets.
        scope: The devices of one scope were allocated together, as for one container.
        admin: Whether it is access beside the pod that holds the device.
        nodes: Those that no other pod may have.
        overlap: Whether the resource had ``overlap: allow``.
        naming: The definition of IDs, as a hash: by another one, the ID may be another device's.
        places: By path in the container, the place of its node in `HostDevice.located`.
        moved: Whether it has other numbers than when its containers were made.
    """

    resource: str
    id: str
    request: str
    pool: str
    device: str
    share: str | None = None
    cdi: list[str] = []
    scope: int
    admin: bool = False
    nodes: RecordedNodes = ()
    overlap: bool = False
    naming: str = ""
    places: Mapping[str, str] = {}
    moved: bool = False


class ClaimRecord(StateEntry):
    """The devices and edits that a claim was given; no edit of the configuration changes them.

    Attributes:
        claim: Its UID.
        driver: Which of the drivers that the claim has devices of.
        boot: The kernel's ID of the boot in which its nodes were looked up.
        pod: The UID of the pod, of a claim that was made for its requests by resource name.
        state: Whether its devices are only reserved, and the steps still to be run.
        entries: The edits of its CDI file, by name.
    """

    claim: str
    driver: str
    namespace: str
    name: str
    boot: str
    pod: str = ""
    state: Literal["started", "completed"]
    devices: list[ClaimedDevice]
    entries: Mapping[str, Mapping[str, Any]] = {}

    @property
    def id(self) -> str:
        """Its driver and UID: a claim may have devices of two drivers."""
        return claim_id(self.driver, self.claim)

    @property
    def key(self) -> RecordKey:
        """Its key among all records: no resource has this name, which lacks a slash."""
        return CLAIM, self.id

    @property
    def resources(self) -> set[str]:
        """The resources of its devices."""
        return {device.resource for device in self.devices}

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return f"{self.namespace}/{self.name}"


Record = Handout | ClaimRecord
Changes = Mapping[RecordKey, Record | None]
"""Records to set; ``None`` to end one."""
