"""Patterns: RE2 regular expressions, linear in time, so that no pattern can stop the process."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

LENGTH_MAX: Final = 1000  # before it is compiled, a pattern may take far more memory than that

# What may hold "(?P<name>" as a text, and the beginning of a named group.
_GROUPS: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^]\\])*\]|\(\?P?<([^>]*)>", re.DOTALL
)


class PatternError(ValueError):
    """A text that is not an RE2 pattern."""


@lru_cache(maxsize=4096)
def _compiled_or_problem(text: str) -> Any:
    if len(text) > LENGTH_MAX:
        return PatternError(
            f"a pattern of {len(text)} characters: at most {LENGTH_MAX} are allowed; "
            "several patterns may be shorter than one"
        )
    import re2  # noqa: PLC0415 (2.5 MiB, and most configurations have no patterns)

    options = re2.Options()
    options.log_errors = False  # or the library writes its own lines to stderr
    options.max_mem = 1 << 20  # for one pattern, which also bounds how long compiling it takes
    try:
        compiled = re2.compile(text, options=options)
    except re2.error as error:
        return PatternError(_explain(text, error))
    except UnicodeEncodeError:
        return PatternError(f"{text!r} is not UTF-8")
    names = Counter(match[1] for match in _GROUPS.finditer(text) if match[1] is not None)
    for name, count in names.items():
        if count > 1 and name in compiled.groupindex:
            return PatternError(f"{text!r} has several groups of the name {name!r}: rename them")
    return compiled


def _compiled(text: str) -> Any:
    compiled = _compiled_or_problem(text)
    if isinstance(compiled, PatternError):
        raise PatternError(str(compiled))
    return compiled


def group_names(text: str) -> tuple[str, ...]:
    """Return the names of the pattern's groups, in order.

    Raises:
        PatternError: ``text`` is not a pattern.
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
