"""The choice among a resource's free devices for a container; pure.

An error would fail the pod: there is always an answer, an empty one where there is no preference.

**Distinct devices first**, whatever the policy: no device gives a second share while another one
has a first to give, and so on. Which devices give the last share each, the **policy** decides, and
then the natural order of device IDs:

- ``packed``: the most used devices, so that others stay whole. Used are those of a device's
  ``replicas`` that are neither available nor must be included.
- ``spread``: the least used devices.
- ``numa``: devices on few NUMA nodes; one of a device's nodes is enough. First come the nodes of
  what must be included, then the node with just enough devices, if there is one, then the larger
  ones, and last devices without a node.

Of each device, the lowest shares are taken. A limit per container is thus kept wherever it can be;
where it cannot, Allocate refuses.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from devhost.model.advertised import OfferedId, sort_ids
from devhost.model.names import natural

Preference = Literal["packed", "spread", "numa"]

NumaNodes = Mapping[str, tuple[int, ...]]  # by device ID


def preferred(
    policy: Preference,
    available: Iterable[OfferedId],
    must_include: Iterable[OfferedId],
    size: int,
    *,
    replicas: int,
    numa_nodes: NumaNodes,
) -> tuple[OfferedId, ...]:
    """Return the IDs that a container should receive, as the module's docstring defines it.

    None where there is no preference, or there cannot be ``size`` distinct IDs. Else as many, in
    natural order: all that must be included, known or not, and others that are available.
    """
    must = set(must_include)
    free = set(available) - must
    if size < 1 or not len(must) <= size <= len(must) + len(free):
        return ()
    held, spare = Counter(offered.device for offered in must), _by_device(free)
    # In round k, the devices of which the answer has k shares give one more.
    rounds: dict[int, dict[str, OfferedId]] = {}
    for device, shares in spare.items():
        for level, share in enumerate(shares, held[device]):
            rounds.setdefault(level, {})[device] = share
    chosen = list(must)
    for level in sorted(rounds):
        givers, missing = rounds[level], size - len(chosen)
        if missing < len(givers):
            devices = natural(givers)
            if policy == "numa":
                settled = {offered.device for offered in chosen}
                devices.sort(key=_by_node(missing, devices, settled, numa_nodes))
            else:
                used = {device: replicas - held[device] - len(spare[device]) for device in devices}
                devices.sort(key=used.__getitem__, reverse=policy == "packed")
            chosen += (givers[device] for device in devices[:missing])
            break
        chosen += givers.values()
    return sort_ids(chosen)


def _by_device(ids: Iterable[OfferedId]) -> dict[str, list[OfferedId]]:
    """Return the IDs of each device, the lowest share first."""
    shares: dict[str, list[OfferedId]] = {}
    for offered in ids:
        shares.setdefault(offered.device, []).append(offered)
    for of_device in shares.values():
        # This is natural order, as shares have no leading zeros, and much faster.
        of_device.sort(key=lambda offered: (len(offered.id), offered.id))
    return shares


def _by_node(
    missing: int, givers: Iterable[str], settled: Iterable[str], numa_nodes: NumaNodes
) -> Callable[[str], int]:
    """Return the order in which devices are taken by their nodes; the settled ones are anyway."""
    here = {node for device in settled for node in numa_nodes.get(device, ())}
    counts = Counter(node for device in givers for node in numa_nodes.get(device, ()))

    def turn(node: int) -> tuple[bool, bool, int, int]:
        size = counts[node]
        return node not in here, size < missing, abs(size - missing), node

    place = {node: index for index, node in enumerate(sorted(counts, key=turn))}
    return lambda device: min(
        map(place.__getitem__, numa_nodes.get(device, ())), default=len(place)
    )
