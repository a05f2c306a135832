"""Patterns: RE2 regular expressions, which take linear time, so that none can block the process."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

_BOUND_MAX: Final = 64  # bytes
LENGTH_MAX: Final = 1000  # compiling a pattern may take far more memory than its length

# What may contain "(?P<name>" literally, and the start of a named group.
_GROUPS: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^]\\])*\]|\(\?P?<([^>]*)>", re.DOTALL
)

_PARENTHESES: Final = re.compile(rf"{_GROUPS.pattern}|[()]", re.DOTALL)


class PatternError(ValueError):
    """A string that is not a valid RE2 pattern."""


@lru_cache(maxsize=4096)
def _compiled_or_problem(text: str) -> Any:
    if len(text) > LENGTH_MAX:
        return PatternError(
            f"pattern of {len(text)} characters; at most {LENGTH_MAX} are allowed, "
            "split it into several patterns"
        )
    import re2  # noqa: PLC0415 (2.5 MiB, and most configurations have no patterns)

    options = re2.Options()
    options.log_errors = False  # otherwise the library writes to stderr
    options.max_mem = 1 << 20  # per pattern; also limits the time to compile it
    try:
        compiled = re2.compile(text, options=options)
    except re2.error as error:
        return PatternError(_explain(text, error))
    except UnicodeEncodeError:
        return PatternError(f"{text!r} is not UTF-8")
    names = Counter(match[1] for match in _GROUPS.finditer(text) if match[1] is not None)
    for name, count in names.items():
        if count > 1 and name in compiled.groupindex:
            return PatternError(f"{text!r} has several groups named {name!r}; rename them")
    return compiled


def _compiled(text: str) -> Any:
    compiled = _compiled_or_problem(text)
    if isinstance(compiled, PatternError):
        raise PatternError(str(compiled))
    return compiled


def group_names(text: str) -> tuple[str, ...]:
    """Return the names of the pattern's groups, in order.

    Raises:
        PatternError: ``text`` is not a valid pattern.
    """
    names: Mapping[str, int] = _compiled(text).groupindex
    return tuple(sorted(names, key=lambda name: names[name]))


def is_in(text: str, subject: str) -> bool:
    """Whether a valid pattern matches a part of the subject that is not empty, or all of it."""
    try:
        match = _compiled(text).search(subject)
    except UnicodeEncodeError:
        return False
    return bool(match and match[0])


def fullmatch(text: str, subject: str) -> dict[str, str] | None:
    """Match the whole of ``subject``; return the named groups that took part, else ``None``."""
    try:
        match = _compiled(text).fullmatch(subject)
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return None
    if match is None:
        return None
    return {name: value for name, value in match.groupdict().items() if value is not None}


def bounds(text: str) -> tuple[bytes, bytes]:
    """Return the least and the greatest text, in UTF-8, that a pattern may match as a whole."""
    import re2  # noqa: PLC0415 (as above)

    try:
        least, greatest = _compiled(text).possiblematchrange(_BOUND_MAX)
    except re2.error:  # it can be anything
        return b"", b"\xff"
    return least, greatest


def may_begin_with(text: str, group: str, character: str) -> bool:
    """Whether the value of a named group may begin with a character."""
    start, depth = -1, 0
    for match in _PARENTHESES.finditer(text):
        if start < 0 and match[1] == group:
            start, depth = match.end(), 1
        elif start >= 0:
            depth += (match[0][0] == "(") - (match[0] == ")")
            if not depth:
                least, greatest = bounds(text[start : match.start()])
                first = character.encode()
                return least[:1] <= first <= greatest[:1]
    return True


def _explain(text: str, error: Exception) -> str:
    reason = error.args[0] if error.args else "not a pattern"
    if isinstance(reason, bytes):
        reason = reason.decode("utf-8", "replace")
    hint = ""
    if text.startswith(("*", "?")):
        regex = text.replace(".", "\\.").replace("*", ".*").replace("?", ".")
        hint = f"; this is a regular expression, not a glob, write {regex}"
    elif any(look in text for look in ("(?=", "(?!", "(?<=", "(?<!")):
        hint = "; RE2 has no lookaround, use `exclude` for what must not match"
    return f"{text!r} is not an RE2 pattern: {reason}{hint}"
