"""What a source selects, and why it finds nothing, as people say it."""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from devhost.discovery.sources.base import Unmatched
from devhost.hostfs.device_classes import SAFE_CLASSES, may_be_proposed
from devhost.model import names
from devhost.model.hardware_sources import PCI_CLASSES, USB_CLASSES, Pci, Sysfs, Usb
from devhost.model.sources import Kind
from devhost.model.values import ConfigModel, options_of

_MAIN: Final = ("path", "paths", "pattern", "device", "subsystem")  # options that need no name
# The time to find the most alike grows with both.
_COMPARED_MAX: Final = 500
_LENGTH_MAX: Final = 100
_FAR: Final = 0.5  # how unlike another name may be to be what was meant, from 0 to 1


def summary(kind: Kind) -> str:
    """Return a source in words: ``usb 0403:6001, serial A1, node tty``."""
    options = options_of(kind)
    if isinstance(kind, Usb | Pci) and "class" in options:
        known = PCI_CLASSES if isinstance(kind, Pci) else USB_CLASSES
        words = {code: word for word, code in known.items()}
        options["class"] = [words.get(code, code) for code in options["class"]]
    return names.printable(f"{type(kind).__name__.lower()} {_said(kind, ', ', options)}")


def _said(value: object, between: str = " ", options: object = None) -> str:
    if options is None:
        options = options_of(value) if isinstance(value, ConfigModel) else value
    if isinstance(options, Mapping):
        plain = _MAIN if value is not options else ()
        words = [_said(options[key]) for key in options if key in plain]
        others = {key: one for key, one in options.items() if key not in plain}
        words += [key if one is True else f"{key} {_said(one)}" for key, one in others.items()]
        return between.join(words)
    if isinstance(options, list | tuple):
        return " or ".join(map(_said, options))
    return str(options)


def explain_empty(kind: Kind, missed: Iterable[Unmatched]) -> str:
    """Say that a source finds nothing, and what comes nearest."""
    if not (every := closest_first(missed)):
        return f"{summary(kind)}: there is nothing to select"
    options = options_of(kind)
    some = [one for one in every if _is_proposed(kind, one)][:_COMPARED_MAX]
    far = {one.name: _distance(options, one) for one in some}
    near = min(some, key=lambda one: far[one.name], default=None)
    hint = ""
    if near is not None and far[near.name] < math.inf:
        hint = f"; nearest: {near.name} ({'; '.join(mismatch_texts(near))})"
    return names.printable(f"none of {len(every)} is {summary(kind)}{hint}")


def closest_first(missed: Iterable[Unmatched]) -> list[Unmatched]:
    """Return what a source does not select, what fails the fewest options first."""
    return sorted(missed, key=lambda one: sum(map(bool, one.mismatches)))


def _is_proposed(kind: Kind, one: Unmatched) -> bool:
    """Whether a hint may name something: nothing that a flag is for, such as memory or a disk."""
    if isinstance(kind, Sysfs):  # which selects what has no node
        return kind.subsystem in SAFE_CLASSES or "" in one.mismatches or may_be_proposed(one.name)
    return not one.name.startswith("/dev/") or may_be_proposed(one.name)


def _distance(options: Mapping[str, Any], one: Unmatched) -> float:
    """Return how unlike what a source says and what something has are: each option at most 1.

    What is called quite otherwise, or is of another vendor, is not near at all.
    """
    far: dict[str, float] = {}
    for option, value in one.mismatches.items():
        if option:
            texts = (_said(options.get(option, "")), value)
            said, has = (text.rpartition("/")[2].lower()[:_LENGTH_MAX] for text in texts)
            far[option] = 1 - difflib.SequenceMatcher(None, said, has).ratio()
            if option == "device" and value[:4] not in [it[:4] for it in options[option]]:
                return math.inf
            if far[option] > _FAR and value == one.name:
                return math.inf
    return sum(far.values())


def mismatch_texts(one: Unmatched) -> tuple[str, ...]:
    """Say how something differs from what a source selects."""
    if "" in one.mismatches:
        return (one.mismatches[""],)
    if one.name in one.mismatches.values():
        return ("not matched",)
    return tuple(
        names.printable(f"{option} is {value}" if value else f"it has no {option}")
        for option, value in one.mismatches.items()
    )
