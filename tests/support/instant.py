"""Asks the kernel for what it tells without waiting, as often as something gets in its way."""

from collections.abc import Callable
from typing import Final, TypeVar

from devhost.discovery.instant_files import WouldWait

ASKS: Final = 100

Told = TypeVar("Told")


def at_once(ask: Callable[[], Told], walk: Callable[[], object] = lambda: None) -> Told:
    """Return what is told, now or after one more ``walk`` along the way.

    While anything is mounted or renamed on the machine, the kernel says that it would have to
    wait, whatever the path; and so it does for a link that was not followed since it was made,
    as it would note when it was.

    Raises:
        WouldWait: That is said again and again.
    """
    for _ in range(ASKS):
        try:
            return ask()
        except WouldWait:
            walk()
    return ask()
