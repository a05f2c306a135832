"""The record of a claim: what Dynamic Resource Allocation has given to the pods of one."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from devhost.model.device import NodeId

CLAIM: Final = "claim"  # in the key of a claim, in the place of a resource's name


def claim_id(driver: str, uid: str) -> str:
    """Return the ID of the record of a claim, by its UID."""
    return f"{driver} {uid}"


class StateEntry(BaseModel):
    """A part of an entry of the state file."""

    # After a rollback, the fields that a newer version has added are kept.
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


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
        places: By path in the container, the place of its node in `HostDevice.located`.
    """

    resource: str
    id: str
    request: str
    pool: str
    device: str
    share: str | None = None
    cdi: list[str]
    scope: int
    admin: bool = False
    nodes: tuple[HandedNode, ...] = ()
    overlap: bool = False
    places: Mapping[str, str] = {}


class ClaimRecord(StateEntry):
    """The devices and edits that a claim was given; no edit of the configuration changes them.

    Attributes:
        claim: Its UID.
        driver: Which of the drivers that the claim has devices of.
        boot: The kernel's ID of the boot in which its nodes were looked up.
        state: Whether its devices are only reserved, and the steps still to be run.
        entries: The edits of its CDI file, by name.
    """

    claim: str
    driver: str
    namespace: str
    name: str
    boot: str
    state: Literal["started", "completed"] = "completed"
    devices: list[ClaimedDevice]
    entries: Mapping[str, Mapping[str, Any]]

    @property
    def id(self) -> str:
        """Its driver and UID: a claim may have devices of two drivers."""
        return claim_id(self.driver, self.claim)

    @property
    def key(self) -> tuple[str, str]:
        """Its key in the state file: no resource has this name, which lacks a slash."""
        return CLAIM, self.id

    @property
    def resources(self) -> set[str]:
        """The resources of its devices."""
        return {device.resource for device in self.devices}

    def held_ids(self, resource: str) -> set[str]:
        """Return the IDs of a resource that no other claim may have."""
        devices = (device for device in self.devices if device.resource == resource)
        return {device.id for device in devices if not device.admin}

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return f"{self.namespace}/{self.name}"
