"""What a source of hardware selects, and why it finds nothing, as people say it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Final, Protocol

from devhost.discovery.hardware import any_matches
from devhost.discovery.match import LETTERS, Finder, Readings, distance
from devhost.discovery.nearest import closest
from devhost.model.class_codes import PCI_CLASSES, USB_CLASSES
from devhost.model.hardware import NodeChoice, PciSelector, Sysfs, UsbSelector
from devhost.model.mapping import options_of

_PLAIN: Final = ("class", "interface", "subsystem")  # options whose values need no quotes


def in_words(kind: str, options: UsbSelector | PciSelector | Sysfs) -> str:
    """Return the options of a source as people say them."""
    given = options_of(options)
    for left_out in ("node", "exclude"):
        given.pop(left_out, None)
    main = ("subsystem",) if isinstance(options, Sysfs) else ("device",)
    first = [f"{kind} {_in_words(given.pop(name))}" for name in main if name in given]
    words = []
    for name, value in given.items():
        shown = [_class_name(kind, one) for one in value] if name == "class" else value
        words.append(f"{name} {_in_words(shown, quoted=name not in _PLAIN)}")
    return ", ".join([*first, *words]) if first else f"{kind} {', '.join(words)}"


def nodes_in_words(choices: Sequence[NodeChoice]) -> str:
    """Return which nodes a source wants as people say it."""
    texts = (
        f"{one.subsystem}/{'|'.join(one.name)}" if one.name else one.subsystem for one in choices
    )
    return f"node {' and '.join(texts)}"


def _class_name(kind: str, code: str) -> str:
    known = USB_CLASSES if kind == "usb" else PCI_CLASSES
    return next((name for name, digits in known.items() if digits == code), code)


def _in_words(value: object, *, quoted: bool = False) -> str:
    if is_dataclass(value):
        value = options_of(value)
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_in_words(one, quoted=quoted)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " or ".join(_in_words(one, quoted=quoted) for one in value)
    return f"'{value}'" if quoted and isinstance(value, str) else str(value)


class HardwareFinder(Finder, Protocol):
    """A source of hardware."""

    def texts(self, readings: Readings) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
        """Yield the globs of options, and the texts of all devices by the devices' names."""
        ...


def unmatched(found: HardwareFinder, readings: Readings, listed: str) -> str:
    """Say how many devices there are, and which one comes nearest.

    Args:
        found: The source.
        readings: Of its roots.
        listed: The command that lists all there is.
    """
    looked = found.looked(readings)
    if looked.startswith("0 "):  # of anything, whatever is asked for
        return f"{looked.partition(':')[0]}, so none is {found.summary}"
    said = f"{looked}; none is {found.summary}"
    for globs, texts in found.texts(readings):
        if any(any_matches(globs, text) for text in texts.values()):
            continue
        near = closest(globs[0], texts.values())
        name = next((name for name, text in texts.items() if text == near), None)
        if name is not None:
            what = near if name == near else f"{near!r} ({name})"
            letters = any_matches([one.lower() for one in globs], str(near).lower())
            return f"{said}; did you mean {what}?{f' ({LETTERS})' if letters else ''}"
    left = min(found.left(readings), key=distance, default=None)
    if left is not None:
        return f"{said}; {left[0]}: {left[1][0]}"
    return f"{said}; `{listed}` lists what there is"
