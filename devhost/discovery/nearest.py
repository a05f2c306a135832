"""What was probably meant, where what is written matches nothing."""

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from devhost.model import names

if TYPE_CHECKING:
    from difflib import SequenceMatcher

_COMPARED_MAX: Final = 500  # names; it takes time
_FEW: Final = 5  # names that are all told
_NEAR: Final = 0.55  # how alike a name is, from 0 to 1
_PART_MIN: Final = 3  # letters in common: two are in every other name


def closest(written: str, found: Iterable[str], least: float = _NEAR) -> str | None:
    """Return the name that is most like what is written, if one is like it at all.

    Args:
        written: A name or a pattern.
        found: The names; of equally alike ones the first counts.
        least: How alike a name has to be, from 0 to 1.
    """
    from difflib import SequenceMatcher  # noqa: PLC0415 (300 KiB; most hosts need none)

    plain = "".join(one for one in written.lower() if one.isalnum() or one in "-_.:")
    matcher = SequenceMatcher(b=plain, autojunk=False)
    best, near = least, None
    for name in itertools.islice(dict.fromkeys(found), _COMPARED_MAX):
        ratio = _ratio(matcher, name.lower(), len(plain), best)
        if ratio > best or (near is None and ratio == best):
            best, near = ratio, name
    return near


def _ratio(matcher: "SequenceMatcher[str]", name: str, length: int, least: float) -> float:
    """Return how alike a name is: its beginning as a whole, or a part of it."""
    part = 0.0
    if len(name) > length + 2 and length:
        matcher.set_seq1(name)
        common = matcher.find_longest_match().size
        part = common / length if common >= _PART_MIN else 0.0
    matcher.set_seq1(name[: length + 2])
    if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
        return part
    return max(part, matcher.ratio())


def nearest(written: str, found: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the name that is most like what is written."""
    near = closest(written, found)
    return "" if near is None else f"; did you mean {names.printable(near)}?"


def few(found: Sequence[str]) -> str:
    """Return ``; there are X, Y`` where there is little."""
    if not 0 < len(found) <= _FEW:
        return ""
    verb = "is" if len(found) == 1 else "are"
    return f"; there {verb} {', '.join(map(names.printable, found))}"
