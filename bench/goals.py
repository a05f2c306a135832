"""The figures that devhost is to reach. Whether it does is printed and fails nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.scene import Shape


@dataclass(frozen=True)
class Goal:
    """What is to be reached by one figure.

    Attributes:
        what: The figure.
        text: The goal, in words.
        most: The maximum.
        least: No less than this.
        ratio: The maximum, over the reference.
        shape: To which shapes it applies.
    """

    what: str
    text: str
    most: float | None = None
    least: float | None = None
    ratio: float | None = None
    shape: Callable[[Shape], bool] = lambda _: True

    def met(self, value: float, ratio: float | None) -> bool | None:
        """Say whether it is reached; ``None`` where that cannot be told."""
        if self.ratio is not None and ratio is None:
            return None
        return (
            (self.most is None or value <= self.most)
            and (self.least is None or value >= self.least)
            and (self.ratio is None or (ratio is not None and ratio <= self.ratio))
        )


def _with(resources: int, *, devices: int | None = 10) -> Callable[[Shape], bool]:
    return lambda shape: (
        shape.resources == resources
        and not shape.shared
        and (devices is None or shape.devices == devices)
    )


def _each(what: str, unit: str, most: dict[int, float]) -> list[Goal]:
    return [
        Goal(what, f"≤ {value:g} {unit}".strip(), most=value, shape=_with(count))
        for count, value in most.items()
    ]


def _short(shape: Shape) -> bool:
    return shape.devices == 10 and not shape.shared


GOALS: Final = [
    Goal("device comes p50", "≤ 2x, < 1 ms", most=1.0, ratio=2.0, shape=_short),
    Goal("device goes p50", "≤ 2x, < 1 ms", most=1.0, ratio=2.0, shape=_short),
    Goal("device comes p50", "≤ 1x", ratio=1.0, shape=lambda shape: shape.devices == 10_000),
    Goal("device goes p50", "≤ 1x", ratio=1.0, shape=lambda shape: shape.devices == 10_000),
    Goal("Allocate p50", "≤ 4x", ratio=4.0),
    Goal("Allocate, 16 callers: calls", "≥ 3,500 /s", least=3500),
    *_each("RSS", "MiB", {1: 52, 100: 58, 1000: 112}),
    *_each("start CPU", "ms", {1: 350, 100: 500, 1000: 2000}),
    Goal("kubelet restart", "≤ 15 ms", most=15.0, shape=_with(1)),
    Goal("kubelet restart", "≤ 2x", ratio=2.0, shape=_with(100)),
    Goal("kubelet restart", "≤ 2x", ratio=2.0, shape=_with(1000)),
    Goal("100 kubelet restarts: backed off", "none", most=0),
    Goal("reload of 1", "≤ 250 ms", most=250, shape=_with(1000)),
    Goal("reload of 1: streams ended", "none", most=0),
    *_each("at rest: CPU a minute", "ms", {100: 20, 1000: 40}),
    Goal("at rest: wake-ups a second", "≤ 6", most=6, shape=_with(100)),
    Goal("at rest: wake-ups a second", "≤ 6", most=6, shape=_with(1000)),
    Goal("at rest: messages", "none", most=0),
    Goal("inotify instances", "1", most=1),
    Goal("threads", "≤ 16", most=16, shape=lambda shape: shape.shared or shape.resources == 1),
    Goal("threads", "≤ 32", most=32, shape=_with(1000)),
    *_each("descriptors", "", {count: 2 * count + 30 for count in (1, 10, 100, 1000)}),
    Goal("burst of 100: after the last", "≤ 5 ms", most=5),
    Goal("validate: CPU", "≤ 250 ms", most=250, shape=_with(1, devices=None)),
    Goal("validate: CPU", "≤ 600 ms", most=600, shape=_with(1000, devices=None)),
    Goal("validate: imports grpc", "no", most=0),
    Goal("validate: imports watchdog", "no", most=0),
]


def goal_of(what: str, shape: Shape | None) -> Goal | None:
    return next((one for one in GOALS if one.what == what and shape and one.shape(shape)), None)
