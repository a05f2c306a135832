"""Devices that cannot be offered beside each other: a container could not have both; pure."""

from devhost.allocation.rules import Rules
from devhost.allocation.variables import CONTAINER_VARIABLES
from devhost.model.allocation import Allocation
from devhost.model.device import HostDevice


def clashing_rules(rules: Rules) -> Rules:
    """Return the rules by which two devices may come to the same name or container path.

    A name that is made of the ID alone, or of the real path, is another one for each device, if no
    other rule gives names.
    """
    exclusive = tuple(rule for rule in rules if rule.exclusive)
    variables = {name for rule in exclusive for name in rule.key.names - CONTAINER_VARIABLES}
    return () if len(exclusive) == 1 and variables in ({"id"}, {"realpath"}) else exclusive


def turn(former: HostDevice | None) -> int:
    """Return the turn to get names: who was healthy keeps them; new devices come last."""
    return 2 if former is None else int(former.verdict is not None)


class TakenNames:
    """The names and container paths that devices have by the clashing rules."""

    def __init__(self) -> None:
        # By the hash of a name, that of its value, and the device.
        self._users: dict[int, tuple[int, str]] = {}

    def take(self, device_id: str, allocation: Allocation) -> str | None:
        """Add the names that a device has; return why it cannot be offered.

        A constant name or path is the author's word that a container gets one device.
        """
        named = [
            *(("env", *pair) for pair in allocation.envs.items()),
            *(("annotation", *pair) for pair in allocation.annotations.items()),
            *(("container path", spec.container_path, spec.host_path) for spec in allocation.specs),
        ]
        problem = None
        for kind, name, value in named:
            value_hash = hash(value)
            former_hash, user = self._users.setdefault(hash((kind, name)), (value_hash, device_id))
            if former_hash != value_hash:
                problem = f"{kind} {name} is used by device {user} too"
        return problem
