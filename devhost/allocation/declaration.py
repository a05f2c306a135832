"""One resource of the configuration, compiled."""

from collections.abc import Mapping
from dataclasses import dataclass

from devhost.allocation.policy import Policy
from devhost.allocation.rules import Rules
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is fixed for a resource until its declaration changes.

    Attributes:
        resource: As the configuration has it.
        rules: Its ``allocate``, bound to the resource and the node.
        files: Where the host's files are seen.
        policy: What answers may name.
        node_name: The value of ``${nodeName}``.
    """

    resource: Resource
    rules: Rules
    files: HostFiles
    policy: Policy
    node_name: str

    @property
    def self_contained(self) -> bool:
        """Whether containers are given no other host paths than those of the devices' nodes."""
        return all(rule.own or rule.target not in ("devices", "mounts") for rule in self.rules)

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return bool(self.resource.pre_start)

    @property
    def constants(self) -> Mapping[str, str]:
        """The variables that are not of a device."""
        return {"resource": self.resource.name, "nodeName": self.node_name}
