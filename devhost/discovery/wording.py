"""What a source selects, and why it finds nothing, as people say it."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from devhost.allocation.policy import SAFE
from devhost.discovery.roots import Missed
from devhost.model import names
from devhost.model.hardware import PCI_CLASSES, USB_CLASSES, Pci, Sysfs
from devhost.model.sources import Kind
from devhost.model.spelling import is_proposed, nearest, nearest_name, nearest_node
from devhost.model.values import ConfigModel, options_of

_MAIN: Final = {
    "directory": "path",
    "glob": "paths",
    "dev": "pattern",
    "usb": "device",
    "pci": "device",
    "sysfs": "subsystem",
}
_NAMED_MAX: Final = 5  # that are all named
_ALIKE: Final = 0.7  # how alike a text is to be what was meant, from 0 to 1
_NO_LITERAL: Final = re.compile(r"[*?+|^$\\()\[\]{}]")


def summary(kind: Kind) -> str:
    """Return a source in words: ``usb 0403:6001, serial A1, node tty``."""
    name, given = type(kind).__name__.lower(), options_of(kind)
    if "class" in given:
        known = PCI_CLASSES if isinstance(kind, Pci) else USB_CLASSES
        by_code = {code: word for word, code in known.items()}
        given["class"] = [by_code.get(code, code) for code in given["class"]]
    main = given.pop(_MAIN.get(name, ""), None)
    words = [] if main is None else [_said(main)]
    words += [one if value is True else f"{one} {_said(value)}" for one, value in given.items()]
    return names.printable(f"{name} {', '.join(words)}")


def _said(value: object) -> str:
    if isinstance(value, ConfigModel):
        value = options_of(value)
    if isinstance(value, Mapping):
        return " ".join(
            _said(one) if key == "subsystem" else f"{key} {_said(one)}"
            for key, one in value.items()
        )
    if isinstance(value, list | tuple):
        return " or ".join(map(_said, value))
    return str(value)


def why_none(kind: Kind, missed: Iterable[Missed]) -> str:
    """Say that a source finds nothing, and what comes nearest."""
    if not (every := in_order(missed)):
        return f"{summary(kind)}: there is nothing to select"
    some = [one for one in every if _is_proposed(kind, one.name)]
    hint = _nearest(kind, some)
    if not hint and some and len(every) <= _NAMED_MAX:
        more = ["…"] if len(some) < len(every) else []
        hint = f": {', '.join([*(one.name for one in some), *more])}"
    return names.printable(f"none of {len(every)} is {summary(kind)}{hint}")


def _is_proposed(kind: Kind, name: str) -> bool:
    """Whether a hint may name something: nothing that a flag is for, such as memory or a disk."""
    if isinstance(kind, Sysfs):
        return kind.subsystem in SAFE or is_proposed(name)
    return not name.startswith("/dev/") or is_proposed(name)


def _nearest(kind: Kind, some: Sequence[Missed]) -> str:
    if not some:
        return ""
    first, last = some[0], some[-1]
    if "" in first.differs or _failed(first) < _failed(last):
        return f"; nearest: {first.name} ({'; '.join(reasons(first))})"
    (option,) = first.differs if len(first.differs) == 1 else ("",)
    found: dict[str, str] = {}
    for one in some:
        if option in one.differs:
            found.setdefault(one.differs[option], one.name)
    for glob in _wanted(kind, option):
        if value := _alike(option, glob, found):
            what = value if found[value] == value else f"{value} ({found[value]})"
            letters = fnmatch.fnmatchcase(value.lower(), glob.lower())
            return f"; did you mean {what}?{' (upper and lower case count)' if letters else ''}"
    return ""


def in_order(missed: Iterable[Missed]) -> list[Missed]:
    """Return what a source does not select, what differs least first."""
    return sorted(missed, key=lambda one: (_failed(one), "" not in one.differs))


def _failed(one: Missed) -> int:
    return len(one.differs) - ("" in one.differs)


def reasons(one: Missed) -> tuple[str, ...]:
    """Say how something differs from what a source selects."""
    if "" in one.differs:
        return (one.differs[""],)
    if one.name in one.differs.values():
        return ("not matched",)
    return tuple(
        names.printable(f"{option} is {value}" if value else f"it has no {option}")
        for option, value in one.differs.items()
    )


def _wanted(kind: Kind, option: str) -> Sequence[str]:
    found = options_of(kind).get(option, ())
    return [found] if isinstance(found, str) else [one for one in found if isinstance(one, str)]


def _alike(option: str, glob: str, found: Collection[str]) -> str:
    """Return what is most like a glob or pattern, or an empty string."""
    plain = max(_NO_LITERAL.split(glob.rpartition("/")[2]), key=len)
    match option:
        case "paths" | "pattern":
            return nearest_node(plain, found)
        case "name":
            return nearest_name(plain, found)
        case "port" | "address" | "pf":  # another one is another device
            return ""
        case "device" | "subsystem":
            found = [one for one in found if one[:5] == glob[:5]]  # of the same vendor
            return nearest(plain, found, _ALIKE if len(found) > 1 else 0.0)
    in_letters = (one for one in found if fnmatch.fnmatchcase(one.lower(), glob.lower()))
    return next(in_letters, "") or nearest(plain, found, _ALIKE)
