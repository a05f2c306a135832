"""The switch of a resource between backends: it waits for the pods of the former one.

Of two backends that offer a resource, the scheduler would count the pods of one against the devices
of the other.
"""

from devhost.backends.backend import Publication
from devhost.devices.scan import Scanner
from devhost.node.answers import ResourceAnswers
from devhost.node.holders import Holders
from devhost.node.record_files import RecordFiles


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
