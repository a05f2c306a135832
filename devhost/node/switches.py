"""The switch of a resource between backends: it waits for the pods of the former one.

Of two backends that offer a resource, the scheduler would count the pods of one against the devices
of the other.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from devhost.backends.backend import Publication
from devhost.devices.scan import Scanner
from devhost.model.config import Config, Resource
from devhost.node.answers import ResourceAnswers
from devhost.node.holders import Holders
from devhost.node.record_files import RecordFiles


@dataclass(slots=True)
class Switches:
    """The resources that go from one backend to the other.

    Attributes:
        successors: Those to be started, by name, when the other backend has ended.
        refused: Names of those that stay with the device plugin.
    """

    successors: dict[str, Resource] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()

    def refuse(self, config: Config, refused: Container[str]) -> Config:
        """Return a configuration in which some resources stay with the device plugin."""
        stays = {"backend": "devicePlugin"}
        self.refused = frozenset(spec.name for spec in config.resources if spec.name in refused)
        resources = (
            spec.model_copy(update=stays) if spec.name in self.refused else spec
            for spec in config.resources
        )
        return Config(version="v1", resources=tuple(resources))


def other_holders(scanner: Scanner, holders: Holders, handouts: RecordFiles) -> str | None:
    """Return who has devices of a resource by the other backend, where there is one."""
    name = scanner.resource.name
    if not scanner.policy.dra:
        return None
    if scanner.by_dra:
        pods = sorted(holders.plugin_pods(name))
        return f"held by {', '.join(pods)} by the device plugin" if pods else None
    records = handouts.table.claims.values()
    claims = sorted(record.shown for record in records if name in record.resources)
    return f"held by claim {', '.join(claims)}" if claims else None


def end_steps(answers: ResourceAnswers, publication: Publication) -> bool:
    """Register a drained resource without steps; return whether kubelet has it so.

    For minutes after the end of a device plugin with PreStart, kubelet starts no pod that got
    devices of its name by DRA (kubernetes#141426).
    """
    if answers.pre_start_required:
        answers.steps_ended = True
        publication.spec_changed()
    return not answers.steps_ended or publication.up_to_date
