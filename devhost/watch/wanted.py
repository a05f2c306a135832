"""What somebody wants to be watched, and how far that is."""

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from devhost.watch.directories import Directory
from devhost.watch.spots import Spot

_LOG: Final = logging.getLogger(__name__)

LookAgain = Callable[[str | None], None]


@dataclass(slots=True, eq=False)
class Wanted:
    """A spot that somebody wants to be watched.

    Attributes:
        above: Where the way to it is watched, and by which entry.
        inside: What is watched of it, by path.
        looking: While it is looked at; done when its watches are arranged.
        again: Whether the look under way began too early.
        rounds: How often one look had to follow another.
        arranged: Whether its watches were arranged once.
        changed: Whether other directories are watched than when its subscribers were last told.
    """

    spot: Spot
    subscribers: dict[Hashable, LookAgain] = field(default_factory=dict)
    above: tuple[Directory, str] | None = None
    inside: dict[str, Directory] = field(default_factory=dict)
    looking: asyncio.Future[None] | None = None
    again: bool = False
    rounds: int = 0
    arranged: bool = False
    changed: bool = False

    @property
    def directories(self) -> list[Directory]:
        """All that are watched for it."""
        above = [] if self.above is None else [self.above[0]]
        return [*above, *self.inside.values()]

    def tell(self, path: str | None) -> None:
        """Have the subscribers look again."""
        for look_again in list(self.subscribers.values()):
            try:
                look_again(path)
            except Exception:  # noqa: BLE001 (the others are told all the same)
                _LOG.exception("telling of a change failed")

    def settle(self) -> None:
        """Its watches are arranged, or it is given up: whoever waits goes on."""
        if self.looking is not None:
            self.looking.set_result(None)
            self.looking = None
