"""Which of the kernel's device names patterns and globs match."""

import fnmatch
import re
from collections.abc import Iterable
from itertools import chain
from typing import Final

from devhost.model import pattern
from devhost.model.pattern import PatternError

# Names that the kernel numbers in the order of discovery, so that a reboot may assign them to other
# devices. The first few of each, for patterns that match only some.
_COUNTED: Final = tuple(
    name.format(number)
    for name in (
        *("ttyUSB{}", "ttyACM{}", "usb/lp{}", "hidraw{}", "gpiochip{}", "i2c-{}", "iio:device{}"),
        *("input/event{}", "input/js{}", "input/mouse{}", "video{}", "media{}", "v4l-subdev{}"),
        *("nvme{}", "nvme{}n1", "nvme{}n1p1", "sr{}", "sg{}", "st{}", "nst{}"),
        *("dri/card{}", "dri/renderD{}", "snd/controlC{}", "snd/pcmC{}D0c", "snd/pcmC{}D0p"),
    )
    for number in (range(128, 138) if "render" in name else range(10))
) + tuple(chain.from_iterable((f"sd{letter}", f"sd{letter}1") for letter in "abcdefghij"))

# Of each subsystem, the names that are counted up.
_OF_SUBSYSTEM: Final = {
    "tty": ("ttyUSB", "ttyACM"),
    "hidraw": ("hidraw",),
    "video4linux": ("video",),
    "media": ("media",),
    "gpio": ("gpiochip",),
    "i2c-dev": ("i2c-",),
    "input": ("event", "js", "mouse"),
    "usbmisc": ("lp", "cdc-wdm"),
    "drm": ("card", "renderD"),
    "nvme": ("nvme",),
}

_PLAIN: Final = re.compile(r"[A-Za-z0-9/_-]*")
# Escapes and character sets; else what looks like a glob.
_LOOKS: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\[pP]?.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^]\\])*\]"
    r"|(?P<before>[A-Za-z0-9/_-])(?P<mark>[*?])",
    re.DOTALL,
)
_WORD: Final = re.compile(r"[A-Za-z0-9/_.-]*[A-Za-z0-9/_-][*?][A-Za-z0-9/_.*?-]*")


def counted_by_pattern(text: str) -> str | None:
    """Return a numbered name that a pattern for the path below /dev matches."""
    beginning = _PLAIN.match(text)
    prefix = beginning[0][:-1] if beginning and "|" not in text else ""
    names = (name for name in _COUNTED if name.startswith(prefix))
    return next((name for name in names if _matches(text, name)), None)


def counted_by_glob(text: str) -> str | None:
    """Return a numbered name whose path a glob matches."""
    prefix = re.split(r"[*?[]", text, maxsplit=1)[0]
    return next(
        (
            name
            for name in _COUNTED
            if (path := f"/dev/{name}").startswith(prefix) and glob_matches(text, path)
        ),
        None,
    )


def glob_matches(text: str, path: str) -> bool:
    """Whether a glob of whole paths matches one."""
    parts, names = text.split("/"), path.split("/")
    if "**" in parts:
        return fnmatch.fnmatchcase(path, text)
    return len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))


def counted_of(subsystem: str, globs: Iterable[str]) -> str | None:
    """Return a numbered name of a subsystem that a glob matches."""
    stems = _OF_SUBSYSTEM.get(subsystem, ())
    found = (
        f"{stem}{number + (128 if stem == 'renderD' else 0)}"
        for stem in stems
        for number in range(10)
    )
    return next((one for one in found if any(fnmatch.fnmatchcase(one, g) for g in globs)), None)


def glob_problem(text: str) -> str | None:
    """Explain what a pattern that looks like a glob matches, if not the same as the glob."""
    if not any(look["mark"] for look in _LOOKS.finditer(text)) or not (word := _WORD.search(text)):
        return None
    regex = _rewritten(text, {"*": ".*", "?": "."})
    end = "a" if word[0].startswith("sd") else "0"
    meant = re.sub(r"[*?]", end, word[0])
    if _matches(text, meant) or not _matches(regex, meant):
        return None
    fewer = re.sub(r".[*?]", "", word[0])
    more = re.sub(r"(.)\*", r"\1\1", word[0]).replace("?", "")
    found = [name for name in (fewer, more) if name and _matches(text, name)]
    found += ["…"] if "*" in word[0] else []
    return (
        f"matches {', '.join(found)} but not {meant}: a regular expression, not a glob; "
        f"write {regex}"
    )


def _matches(text: str, name: str) -> bool:
    try:
        return pattern.fullmatch(text, name) is not None
    except PatternError:  # reported by another check
        return False


def _rewritten(text: str, marks: dict[str, str]) -> str:
    return _LOOKS.sub(
        lambda look: look["before"] + marks[look["mark"]] if look["mark"] else look[0], text
    )
