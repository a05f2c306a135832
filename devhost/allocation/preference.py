"""Which of a resource's free devices a container should receive; pure.

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

from devhost.model.names import natural, without_share

Preference = Literal["packed", "spread", "numa"]

NumaNodes = Mapping[str, tuple[int, ...]]  # by device ID


def preferred(
    policy: Preference,
    available: Iterable[str],
    must_include: Iterable[str],
    size: int,
    *,
    replicas: int,
    numa_nodes: NumaNodes,
) -> tuple[str, ...]:
    """Return the IDs that a container should receive, as the module's docstring defines it.

    None where there is no preference, or there cannot be ``size`` distinct IDs. Else as many, in
    natural order: all that must be included, known or not, and others that are available.
    """
    must = set(must_include)
    free = set(available) - must
    if size < 1 or not len(must) <= size <= len(must) + len(free):
        return ()
    held, spare = Counter(map(without_share, must)), _by_device(free)
    # In round k, the devices of which the answer has k shares give one more.
    rounds: dict[int, dict[str, str]] = {}
    for device, shares in spare.items():
        for level, share in enumerate(shares, held[device]):
            rounds.setdefault(level, {})[device] = share
    chosen = list(must)
    for level in sorted(rounds):
        givers, missing = rounds[level], size - len(chosen)
        if missing < len(givers):
            devices = natural(givers)
            if policy == "numa":
                settled = set(map(without_share, chosen))
                devices.sort(key=_by_node(missing, devices, settled, numa_nodes))
            else:
                used = {one: replicas - held[one] - len(spare[one]) for one in devices}
                devices.sort(key=used.__getitem__, reverse=policy == "packed")
            chosen += (givers[one] for one in devices[:missing])
            break
        chosen += givers.values()
    return tuple(natural(chosen))


def _by_device(advertised_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the IDs of each device, the lowest share first."""
    shares: dict[str, list[str]] = {}
    for one in advertised_ids:
        shares.setdefault(without_share(one), []).append(one)
    for of_device in shares.values():
        # This is natural order, as shares have no leading zeros, and much faster.
        of_device.sort(key=lambda one: (len(one), one))
    return shares


def _by_node(
    missing: int, givers: Iterable[str], settled: Iterable[str], numa_nodes: NumaNodes
) -> Callable[[str], int]:
    """Return the order in which devices are taken by their nodes; the settled ones are anyway."""
    here = {node for one in settled for node in numa_nodes.get(one, ())}
    counts = Counter(node for one in givers for node in numa_nodes.get(one, ()))

    def turn(node: int) -> tuple[bool, bool, int, int]:
        size = counts[node]
        return node not in here, size < missing, abs(size - missing), node

    place = {node: index for index, node in enumerate(sorted(counts, key=turn))}
    return lambda one: min(map(place.__getitem__, numa_nodes.get(one, ())), default=len(place))
