"""The parts of a node that all its resources use."""

from dataclasses import dataclass

from devhost.backends.backend import Backends
from devhost.node.cdi_files import CdiFiles
from devhost.node.claims import Claims
from devhost.node.handouts import HandoutFile
from devhost.node.holders import Holders
from devhost.node.reconciler import Reconciler
from devhost.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of a node that all its resources use."""

    backends: Backends
    reconciler: Reconciler
    holders: Holders
    handouts: HandoutFile
    claims: Claims
    cdi_files: CdiFiles
    metrics: Metrics
