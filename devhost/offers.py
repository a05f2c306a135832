"""Which resources of a configuration offer a device of the host, and why others do not."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

from devhost.discovery.hardware import KernelNode
from devhost.immutable import immutable
from devhost.model.device import HostDevice, Node
from devhost.report import ResourceReport


@immutable
class Offer:
    """A device of a resource.

    Attributes:
        resource: The resource's name.
        device: The device's ID.
        reason: Why it is unhealthy.
        paths: The nodes that a container gets.
        files: The same with links resolved.
    """

    resource: str
    device: str
    reason: str | None
    paths: tuple[str, ...]
    files: frozenset[str]


class Offers:
    """What the resources of a configuration offer.

    Args:
        reports: Of all resources, with what their sources have looked at.
    """

    def __init__(self, reports: Sequence[ResourceReport]) -> None:
        self._reports = reports
        self._offers: dict[Hashable, dict[Offer, None]] = {}
        for report in reports:
            for device in report.snapshot.devices.values():
                offer = _offer(report.resource.name, device)
                for node in device.nodes:
                    for key in _keys(node):
                        self._offers.setdefault(key, {})[offer] = None

    def of(self, nodes: Iterable[KernelNode], syspath: str = "") -> list[Offer]:
        """Return what offers any of some nodes, or a device that has none, by its directory."""
        keys: list[Hashable] = [syspath]
        for node in nodes:
            kind = "block" if node.subsystem == "block" else "char"
            keys += [(kind, node.number), node.syspath, f"/dev/{node.file}"]
        return list(dict.fromkeys(one for key in keys for one in self._offers.get(key, ())))

    def left_out(
        self, called: Collection[str], offers: Iterable[Offer]
    ) -> Iterator[tuple[str, str]]:
        """Yield the other resources that have looked at these names, and why they leave them."""
        offered = {one.resource for one in offers}
        for report in self._reports:
            reasons = {
                "; ".join(candidate.reasons): None
                for explanation in report.explained or ()
                for candidate in explanation.candidates
                if not candidate.taken and candidate.candidate in called
            }
            if reasons and report.resource.name not in offered:
                yield report.resource.name, "; ".join(reasons)


def _keys(node: Node) -> Iterator[Hashable]:
    """Yield by what a node is found: its number, its directory in sysfs, what it claims."""
    if node.state is not None and node.state.number is not None:
        yield node.state.kind.value, node.state.number
    if node.hardware is not None:
        yield node.hardware.syspath
        yield from node.hardware.claims


def _offer(resource: str, device: HostDevice) -> Offer:
    paths = tuple(node.shown for node in device.nodes if node.shown)
    files = frozenset(node.key for node in device.nodes)
    return Offer(resource, device.id, device.reason, paths, files)
