"""The nearest of the words that are known, for hints."""

import difflib
from collections.abc import Iterable
from typing import Final

# The time for a hint grows with both.
_HINT_LENGTH_MAX: Final = 100
_HINT_WORDS_MAX: Final = 500


def did_you_mean(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``; did you mean 'x'?`` for the nearest word, or an empty string."""
    near = nearest(word, words, cutoff)
    return f"; did you mean '{near}'?" if near else ""


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the nearest word, or an empty string if none is so much alike, from 0 to 1."""
    lower = {near.lower(): near for near in words if len(near) <= _HINT_LENGTH_MAX}
    if len(word) > _HINT_LENGTH_MAX or len(lower) > _HINT_WORDS_MAX:
        return ""
    near = difflib.get_close_matches(word.lower(), lower, 1, cutoff)
    return lower[near[0]] if near else ""
