"""Names of devices that never have a node below /dev, but are asked for there."""

from collections.abc import Callable
from typing import Final

# A name, and the subsystem that has such devices.
_SUBSYSTEMS: Final = {
    "hci0": "bluetooth",
    "eth0": "net",
    "wlan0": "net",
    "hwmon0": "hwmon",
}


def check(matches: Callable[[str], bool]) -> None:
    """Raise `ValueError` if what selects names below /dev selects such a name."""
    for name, subsystem in _SUBSYSTEMS.items():
        if matches(name):
            raise ValueError(
                f"{name} never has a node below /dev: write "
                f"`sysfs: {{subsystem: {subsystem}, node: none}}`"
            )
