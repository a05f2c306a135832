"""Which of a resource's free devices a container should receive; pure.

The kubelet asks before it allocates, and an error would fail the pod: there is always an answer,
an empty one where there is no preference.

**Distinct devices first**, whatever the policy: no device gives a share more (one that need
not be included) and so comes to k+1, while another one with a share to give is below k. What
is still open after that is which devices give the last share each. The **policy** decides
it; what it leaves open is decided by the natural order of device IDs:

- ``packed``: the most used devices, so that others stay whole. Used are those of a device's
  ``replicas`` that are neither available nor must be included.
- ``spread``: the least used devices.
- ``numa``: devices on as few NUMA nodes as possible. A set of nodes serves an answer if each
  device of the answer that has nodes has one in the set; one of a device's nodes is enough.
  Devices without a node come last: the answer has as few as possible. Then, of all sets of
  nodes that serve an answer, the smallest is taken; of several, that which leaves the fewest
  devices over (devices on its nodes that are available and of which the answer takes
  nothing); of several, the one with the lowest numbers, compared from the lowest on.
  With more than 8 nodes to choose from, the set is grown node by node instead, and may be
  larger than it has to be: each time by the node that serves most of the devices that are in
  the answer anyway; of several, that which adds most of the devices still missing; of
  several, that which has the fewest others; then the lowest.
- ``none``: no policy, the choice is kubelet's. With several replicas, or a limit per container,
  it means ``spread`` instead: kubelet picks at random, also two shares of one device, and what
  is spread leaves the most devices with a share for the next container.

Of each device, the lowest shares are taken. A limit per container is thus kept wherever it
can be; where it cannot, Allocate refuses.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Final, Literal

from devhost.immutable import immutable
from devhost.model.names import natural, without_share

Preference = Literal["packed", "spread", "numa", "none"]

_NodeSet = tuple[int, ...]

# All sets of so many NUMA nodes are tried: 256. Hardly any machine has more nodes.
_EXACT_NODES: Final = 8


@immutable
class _Request:
    """What there is to choose from, by device ID.

    Attributes:
        held: How many IDs must be included.
        spare: The other IDs that are available, the lowest share first; at least one.
        replicas: Under how many IDs each device is advertised.
        numa_nodes: The NUMA nodes of each device; one that is missing here has none.
    """

    held: Counter[str]
    spare: Mapping[str, list[str]]
    replicas: int
    numa_nodes: Mapping[str, _NodeSet]

    def total(self, device_id: str) -> int:
        """Return how many IDs of a device the answer can have."""
        return self.held[device_id] + len(self.spare[device_id])

    def count_by_nodes(self, device_ids: Iterable[str]) -> Counter[_NodeSet]:
        """Count devices with equal nodes together: they are many, and the nodes are few."""
        return Counter(nodes for one in device_ids if (nodes := self.numa_nodes.get(one, ())))


def preferred(
    policy: Preference,
    available: Iterable[str],
    must_include: Iterable[str],
    size: int,
    *,
    replicas: int,
    max_per_container: int | None,
    numa_nodes: Mapping[str, tuple[int, ...]],
) -> tuple[str, ...]:
    """Return the IDs that a container should receive, as the module's docstring defines it.

    The answer is empty if ``policy`` is ``none``, ``replicas`` 1 and ``max_per_container``
    ``None``; if ``size`` is less than 1 or than the number of IDs that must be included; or if
    it is more than there are IDs. Else it is exactly ``size`` distinct IDs in natural order: all
    that must be included, known or not, and others that are available. The order of what is
    given makes no difference, nor does an ID that is given twice.

    Args:
        policy: What the resource prefers.
        available: The free IDs as advertised: ``id``, or ``id::0`` and so on for shares.
        must_include: IDs that the kubelet has settled on.
        size: How many IDs the container asks for, those of ``must_include`` counted.
        replicas: Under how many IDs each device is advertised.
        max_per_container: How many shares of one device a container may have, if limited.
        numa_nodes: The nodes of each device, by its ID without the suffix of a share; a
            device that is missing here has none.
    """
    must = set(must_include)
    free = set(available) - must
    if size < 1 or not len(must) <= size <= len(must) + len(free):
        return ()
    if policy == "none":
        if replicas == 1 and max_per_container is None:
            return ()
        policy = "spread"
    held = Counter(without_share(one) for one in must)
    request = _Request(held, _by_device(free), replicas, numa_nodes)
    chosen = list(must)
    for level, candidates in _rounds(request):
        missing = size - len(chosen)
        if missing == 0:
            break
        givers = candidates
        if missing < len(candidates):
            # After the first round, each device is in the answer already.
            settled = {*held, *request.spare} if level else set(held)
            givers = _best(policy, candidates, settled, missing, request)
        chosen += (request.spare[one][level - held[one]] for one in givers)
    return tuple(_in_order(chosen))


def _in_order(ids: Iterable[str]) -> list[str]:
    """Return IDs in natural order."""
    # Sorted as texts first, which is nearly that order and makes the rest twice as fast.
    return natural(sorted(ids))


def _by_device(advertised_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the IDs of each device, the lowest share first."""
    shares: dict[str, list[str]] = {}
    for one in advertised_ids:
        shares.setdefault(without_share(one), []).append(one)
    for of_device in shares.values():
        # This is natural order, as shares have no leading zeros, and much faster.
        of_device.sort(key=lambda one: (len(one), one))
    return shares


def _rounds(request: _Request) -> Iterator[tuple[int, list[str]]]:
    """Yield the rounds, counted from 0, and the devices that can take part in each.

    In round k, the devices of which the answer has k shares give one more.
    """
    level = 0
    going = list(request.spare)
    while going:
        yield level, [one for one in going if request.held[one] <= level]
        level += 1
        # Looking only at those that have not run out keeps all rounds together linear.
        going = [one for one in going if request.total(one) > level]


def _best(
    policy: Preference, candidates: list[str], settled: set[str], missing: int, request: _Request
) -> list[str]:
    """Return as many of the candidates as are missing, by the policy.

    The settled devices are in the answer anyway.
    """
    ordered = _in_order(candidates)
    if policy in ("packed", "spread"):
        used = {one: request.replicas - request.total(one) for one in ordered}
        ordered.sort(key=used.__getitem__, reverse=policy == "packed")
    elif policy == "numa":
        nodes = _nodes(candidates, settled, missing, request)
        ordered.sort(key=lambda one: nodes.isdisjoint(request.numa_nodes.get(one, ())))
    return ordered[:missing]


def _nodes(
    candidates: list[str], settled: set[str], missing: int, request: _Request
) -> frozenset[int]:
    """Return the NUMA nodes to take devices from; those without a node fill up."""
    offered, fixed = request.count_by_nodes(candidates), request.count_by_nodes(settled)
    missing = min(missing, offered.total())
    some = sorted({node for nodes in (*offered, *fixed) for node in nodes})
    search = _best_nodes if len(some) <= _EXACT_NODES else _grown_nodes
    return search(some, offered, fixed, missing)


def _best_nodes(
    some: list[int], offered: Counter[_NodeSet], fixed: Counter[_NodeSet], missing: int
) -> frozenset[int]:
    """Return the smallest set of nodes that serves what is fixed and as many as are missing."""

    def score(nodes: frozenset[int]) -> tuple[int, int, list[int]]:
        return len(nodes), _served(nodes, offered), sorted(nodes)

    everything = (
        frozenset(nodes) for count in range(len(some) + 1) for nodes in combinations(some, count)
    )
    return min(
        (
            nodes
            for nodes in everything
            if _served(nodes, fixed) == fixed.total() and _served(nodes, offered) >= missing
        ),
        key=score,
    )


def _grown_nodes(
    some: list[int], offered: Counter[_NodeSet], fixed: Counter[_NodeSet], missing: int
) -> frozenset[int]:
    """Return a set of nodes that does the same, found node by node."""
    best: set[int] = set()
    while fixed or missing > 0:
        gain, more = _of_each(fixed), _of_each(offered)
        # Of nodes that each would do, the one with the fewest devices leaves the fewest over.
        node = min(some, key=lambda one: (-gain[one], -min(more[one], missing), more[one], one))
        best.add(node)
        missing -= more[node]
        offered, fixed = _without(node, offered), _without(node, fixed)
    return frozenset(best)


def _served(nodes: frozenset[int], devices: Counter[_NodeSet]) -> int:
    """Return how many of the devices have one of the nodes."""
    return sum(count for of_device, count in devices.items() if not nodes.isdisjoint(of_device))


def _of_each(devices: Counter[_NodeSet]) -> Counter[int]:
    """Return how many of the devices each node has."""
    counts: Counter[int] = Counter()
    for of_device, count in devices.items():
        for node in set(of_device):
            counts[node] += count
    return counts


def _without(node: int, devices: Counter[_NodeSet]) -> Counter[_NodeSet]:
    """Return the devices that do not have the node."""
    return Counter({nodes: count for nodes, count in devices.items() if node not in nodes})
