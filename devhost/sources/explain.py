"""The words for what a source selects, and for why it finds nothing."""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from devhost.hostfs.device_classes import SAFE_CLASSES, may_be_proposed
from devhost.model import names
from devhost.model.hardware_sources import PCI_CLASSES, USB_CLASSES, Pci, Sysfs, Usb
from devhost.model.sources import Kind
from devhost.model.values import ConfigModel, options_of
from devhost.sources.base import Unmatched

# Options that need no name.
_MAIN: Final = ("path", "paths", "pattern", "device", "subsystem", "kind")
# The time to find the most alike grows with both.
_COMPARED_MAX: Final = 500
_LENGTH_MAX: Final = 100


def summary(kind: Kind) -> str:
    """Return a source in words: ``usb 0403:6001, serial A1, node tty``."""
    options = options_of(kind)
    if isinstance(kind, Usb | Pci) and "class" in options:
        codes = PCI_CLASSES if isinstance(kind, Pci) else USB_CLASSES
        words = {code: word for word, code in codes.items()}
        options["class"] = [words.get(code, code) for code in options["class"]]
    text = ", ".join(_words(options, unnamed=_MAIN))
    return names.printable(f"{type(kind).__name__.lower()} {text}")


def _words(options: Mapping[str, Any], unnamed: Iterable[str]) -> list[str]:
    """Return each option in words, those that are left `unnamed` first."""
    words = [_text(value) for key, value in options.items() if key in unnamed]
    named = {key: value for key, value in options.items() if key not in unnamed}
    return words + [
        key if value is True else f"{key} {_text(value)}" for key, value in named.items()
    ]


def _text(value: object) -> str:
    """Return the value of an option in words."""
    match value:
        case ConfigModel():
            return " ".join(_words(options_of(value), unnamed=_MAIN))
        case Mapping():
            return " ".join(_words(value, unnamed=()))
        case list() | tuple():
            return " or ".join(map(_text, value))
    return str(value)


def explain_empty(kind: Kind, unmatched: Iterable[Unmatched]) -> str:
    """Return that a source finds nothing, and what comes nearest."""
    if not (candidates := closest_first(unmatched)):
        return f"{summary(kind)}: there is nothing to select"
    options, hint = options_of(kind), ""
    proposed = [candidate for candidate in candidates if _may_be_proposed(kind, candidate)]
    distances = [_distance(options, candidate) for candidate in proposed[:_COMPARED_MAX]]
    if (least := min(distances, default=math.inf)) < math.inf:
        nearest = proposed[distances.index(least)]
        hint = f"; nearest: {nearest.name} ({'; '.join(mismatch_texts(nearest))})"
    return names.printable(f"nothing matches {summary(kind)} ({len(candidates)} seen){hint}")


def closest_first(unmatched: Iterable[Unmatched]) -> list[Unmatched]:
    """Return what a source does not match, the candidates that fail the fewest options first."""
    return sorted(unmatched, key=lambda candidate: sum(map(bool, candidate.mismatches)))


def _may_be_proposed(kind: Kind, candidate: Unmatched) -> bool:
    """Return whether a hint may name it: nothing that needs a flag, such as memory or a disk."""
    name = candidate.name
    if isinstance(kind, Sysfs):  # which also selects devices that have no node
        return kind.subsystem in SAFE_CLASSES or "" in candidate.mismatches or may_be_proposed(name)
    return not name.startswith("/dev/") or may_be_proposed(name)


def _distance(options: Mapping[str, Any], candidate: Unmatched) -> float:
    """Return how unlike the values of a source and of a candidate are: each option at most 1.

    Infinite for a candidate of another vendor, or of a name that is not near.
    """
    distance = 0.0
    for option, value in candidate.mismatches.items():
        if option:
            texts = (text.rpartition("/")[2] for text in (_text(options.get(option, "")), value))
            wanted, actual = (text.lower()[:_LENGTH_MAX] for text in texts)
            matcher = difflib.SequenceMatcher(None, wanted, actual)
            distance += 1 - matcher.ratio()
            vendors = [device[:4] for device in options[option]] if option == "device" else ()
            # Much of it is alike, or half of it without a gap: `/dev/ttyACM0` is not near `rtc0`.
            gapless = matcher.find_longest_match().size >= len(actual) / 2
            is_near = matcher.ratio() >= (1 / 2 if gapless else 2 / 3)
            if (vendors and value[:4] not in vendors) or (value == candidate.name and not is_near):
                return math.inf
    return distance


def mismatch_texts(candidate: Unmatched) -> tuple[str, ...]:
    """Return how a candidate differs from what a source selects."""
    if "" in candidate.mismatches:
        return (candidate.mismatches[""],)
    if candidate.name in candidate.mismatches.values():
        return ("not matched",)
    return tuple(
        names.printable(f"{option} is {value}" if value else f"it has no {option}")
        for option, value in candidate.mismatches.items()
    )
