"""The closest of the words that are known."""

from collections.abc import Iterable
from typing import Final

# The time for a hint grows with both.
_HINT_LENGTH_MAX: Final = 100
_HINT_WORDS_MAX: Final = 100


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest word, or an empty string."""
    near = nearest(word, words)
    return f"; did you mean '{near}'?" if near else ""


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the closest word, or an empty string."""
    words = list(words)
    if len(word) > _HINT_LENGTH_MAX or len(words) > _HINT_WORDS_MAX:
        return ""
    import difflib  # noqa: PLC0415 (only needed for a file with errors)

    words = [other for other in words if len(other) <= _HINT_LENGTH_MAX]
    lower = {other.lower(): other for other in words}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[near[0]] if near else ""
