"""Patterns: RE2 regular expressions, linear in time, so that no pattern can stop the process."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import re2

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False  # or the library writes its own lines to stderr


class PatternError(ValueError):
    """A text that is no RE2 pattern."""


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Any:
    try:
        return re2.compile(text, options=_OPTIONS)
    except re2.error as error:
        raise PatternError(_explain(text, error)) from None


def check(text: str) -> None:
    """Raise `PatternError` unless ``text`` is a pattern."""
    _compiled(text)


def group_names(text: str) -> tuple[str, ...]:
    """Return the names of the pattern's groups, in order.

    Raises:
        PatternError: ``text`` is no pattern.
    """
    names: Mapping[str, int] = _compiled(text).groupindex
    return tuple(sorted(names, key=lambda name: names[name]))


def fullmatch(text: str, subject: str) -> dict[str, str] | None:
    """Match the whole of ``subject``; return the named groups that took part, else ``None``."""
    try:
        match = _compiled(text).fullmatch(subject)
    except UnicodeEncodeError:  # a file's name that is not UTF-8
        return None
    if match is None:
        return None
    return {name: value for name, value in match.groupdict().items() if value is not None}


def _explain(text: str, error: Exception) -> str:
    reason = error.args[0] if error.args else "not a pattern"
    if isinstance(reason, bytes):
        reason = reason.decode("utf-8", "replace")
    hint = ""
    if text.startswith(("*", "?")):
        regex = text.replace(".", "\\.").replace("*", ".*").replace("?", ".")
        hint = f"; this is a regular expression, not a glob: write {regex}"
    elif any(look in text for look in ("(?=", "(?!", "(?<=", "(?<!")):
        hint = "; RE2 has no look-around: use `exclude` for what must not match"
    return f"{text!r} is not an RE2 pattern: {reason}{hint}"
