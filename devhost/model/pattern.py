"""Patterns, which are RE2 regular expressions as these take linear time, and globs.

A glob that looks like a regular expression, or like the form of another tool, would match nothing:
such a mistake is explained, as are those that are not valid.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

LENGTH_MAX: Final = 1000  # compiling a pattern may take far more memory than its length
_GLOB_MAX: Final = 1000  # Python takes quadratic time for a glob
# A path glob reads the same directories again for each part, and for each '**'.
_PARTS_MAX: Final = 100
_ANY_DEPTHS_MAX: Final = 3

_NO_REGEX: Final = "a glob, not a regular expression"
_GROUP: Final = re.compile(r"\(\?P?<(\w+)>")
# A set of characters as `fnmatch` reads it; in what follows each is '[]', or '[^]'.
_SET: Final = re.compile(r"\[(\^?)!?+\]?+[^]]*\]")
_UNCLOSED: Final = re.compile(r"\[(?!\^?\])"), "unclosed '['; write '[[]' for the character itself"
_NEGATED: Final = re.compile(r"\[\^"), "a glob negates a set with '!', not '^'"
_PATHS: Final = re.compile(r"[, ]\s*/"), "more than one path; write each as an item of a list"
_VARIABLE: Final = (
    re.compile(r"\$\{?[A-Za-z_]|\{\{[^{}\n]*\}\}"),
    "variables are not expanded in sources; write the name on the host",
)
_BRACES: Final = (
    re.compile(r"\{(?=[^{}]*\})[^{}]*?(?:,|\.\.)"),
    "braces are not expanded; list each path instead",
)
# What is special in regular expressions only. udev writes a space in a label as '\x20', so not
# every backslash counts.
_REGEX: Final = (
    re.compile(
        r"(?:\[\]|[).])(?:[+]|\{[0-9]+,?[0-9]*\})|\\[dwsDWS.*?+(\[{]|\((?:[^()|]*\||\?)"
        r"|(?<=[-_])\.[*+]|\A/dev/\w+\.[*+]|\A\^|\$\Z|\|"
    ),
    _NO_REGEX,
)
_GLOB_MARK: Final = re.compile(r"(?<=[A-Za-z0-9/_-])[*?]")  # in a pattern
# docker's form of a device or mount: docs.docker.com/reference/cli/docker/container/run
DOCKER_PATTERN: Final = (
    r"^((?:/|\$\{)[^:]*):(?:(?:/|\$\{(?:real)?path\})[^:]*(?::[A-Za-z,]+)?|[rwm]+|ro)$"
)
_DOCKER: Final = re.compile(DOCKER_PATTERN)


class PatternError(ValueError):
    """A string that is not a valid RE2 pattern."""


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Any:
    if len(text) > LENGTH_MAX:
        raise PatternError(
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
        reason = error.args[0]
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        hint = ""
        if text.startswith(("*", "?")):
            regex = text.replace(".", "\\.").replace("*", ".*").replace("?", ".")
            hint = f"; this is a regular expression, not a glob, write {regex}"
        elif any(look in text for look in ("(?=", "(?!", "(?<=", "(?<!")):
            hint = "; RE2 has no lookaround, use `exclude` for what must not match"
        raise PatternError(f"{text!r} is not an RE2 pattern: {reason}{hint}") from None
    for name, count in Counter(_GROUP.findall(text)).items():
        if count > 1 and name in compiled.groupindex:
            raise PatternError(f"{text!r} has several groups named {name!r}; rename them")
    return compiled


def group_names(text: str) -> tuple[str, ...]:
    """Return the names of a pattern's groups, in order; a `PatternError` if it is not valid."""
    names: Mapping[str, int] = _compiled(text).groupindex
    return tuple(sorted(names, key=lambda name: names[name]))


def matches_part(text: str, subject: str) -> bool:
    """Return whether a pattern matches a part of the subject that is not empty, or all of it."""
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


def matches_path(path: str, glob: str) -> bool:
    """Return whether a glob of whole paths matches a path."""
    parts, names = glob.split("/"), path.split("/")
    if "**" in parts:
        return fnmatch.fnmatchcase(path, glob)
    return len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))


def matches_name(name: str, glob: str, *, hidden: bool = False) -> bool:
    """Return whether a glob matches a name; unless `hidden`, a dot at its front needs one there."""
    if not hidden and name.startswith(".") and not glob.startswith("."):
        return False
    return glob == "*" or fnmatch.fnmatchcase(name, glob)


def matches_any(text: str, globs: Iterable[str]) -> bool:
    """Return whether a glob matches the whole of a text; upper and lower case count."""
    return any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def matches_name_or_path(path: str, name: str, globs: Iterable[str]) -> bool:
    """Return whether a glob matches a path or, if it has no slash, the last part of the path."""
    return any(matches_any(path if "/" in glob else name, (glob,)) for glob in globs)


def length_problem(text: str) -> str | None:
    """Refuse a long glob."""
    if len(text) > _GLOB_MAX:
        return f"glob of {len(text)} characters; at most {_GLOB_MAX} are allowed"
    return None


def glob_problem(text: str) -> str | None:
    """Explain what is not valid in a glob, or surely not meant as one."""
    if problem := length_problem(text):
        return problem
    if docker := _DOCKER.fullmatch(text):
        return f"looks like docker's HOST:CONTAINER:MODE; write {docker[1]}"
    return _problem(text, _UNCLOSED, _NEGATED, _PATHS, _VARIABLE, _REGEX, _BRACES)


def path_glob_problem(text: str) -> str | None:
    """Explain a glob of paths; also refuse one that reads the same directories many times."""
    if problem := glob_problem(text):
        below = text.removeprefix("/dev/")
        hint = f"; for one, write dev: {below}" if problem == _NO_REGEX and below != text else ""
        return problem + hint
    parts = text.split("/")
    if len(parts) > _PARTS_MAX:
        return f"path of {len(parts)} parts; at most {_PARTS_MAX} are allowed"
    deep = parts.count("**") > _ANY_DEPTHS_MAX
    return f"more than {_ANY_DEPTHS_MAX} '**' in the path" if deep else None


def directory_problem(path: str) -> str | None:
    """Explain that the path of a directory cannot be a glob or contain a variable."""
    if any(character in path for character in "*?["):
        return f"a directory cannot be a glob; write the source as {path.rstrip('/')}/*"
    return _problem(path, _VARIABLE, _BRACES)


def dev_problem(text: str) -> str | None:
    """Explain what a pattern for the path below /dev cannot be."""
    if len(text) > LENGTH_MAX:
        return None  # compiling it says so; to search it takes quadratic time
    if text.startswith("/"):
        better = "remove the leading '/dev/'"
        if _GLOB_MARK.search(text):
            better = f"for a glob, write the source as {text}"
        return f"a dev pattern matches the path below /dev; {better}"
    return _problem(text, _VARIABLE)


def _problem(text: str, *mistakes: tuple[re.Pattern[str], str]) -> str | None:
    """Return the message of the first of the mistakes that is in a text."""
    plain = _SET.sub(r"[\1]", text)
    return next((message for mistake, message in mistakes if mistake.search(plain)), None)


def docker_problem(text: str) -> str | None:
    """Explain how to write a device or mount that is in docker's form."""
    if _DOCKER.fullmatch(text):
        return "looks like docker's HOST:CONTAINER:MODE; write {hostPath: …, containerPath: …}"
    return None
