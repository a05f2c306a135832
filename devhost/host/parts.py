"""The parts of a node that all its resources use."""

from devhost.host.backend import Backends
from devhost.host.cdi_files import CdiFiles
from devhost.host.claims import Claims
from devhost.host.handouts import HandoutFile
from devhost.host.holders import Holders
from devhost.host.metrics import Metrics
from devhost.host.reconciler import Reconciler
from devhost.model.immutable import immutable


@immutable
class NodeParts:
    """The parts of a node that all its resources use."""

    backends: Backends
    reconciler: Reconciler
    holders: Holders
    handouts: HandoutFile
    claims: Claims
    cdi_files: CdiFiles
    metrics: Metrics
