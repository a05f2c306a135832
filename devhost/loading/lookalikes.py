"""Strings in another tool's syntax: regular expressions or braces in globs, docker's forms.

They would be valid, but match nothing or name a path that does not exist. Each function returns
what to write instead.
"""

import re
from collections.abc import Sequence
from typing import Final

from devhost.loading.kernel_names import counted_by_glob, counted_by_pattern, glob_problem

# A set of characters as `fnmatch` reads it, or an unclosed '['.
_SET: Final = re.compile(r"\[!?+\]?+[^]]*\]|\[")
_SHELL: Final = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"})
_VARIABLE: Final = re.compile(r"\$\{?[A-Za-z_]")
_GO_TEMPLATE: Final = re.compile(r"\{\{[^{}\n]*\}\}")
_LISTED_MAX: Final = 10  # paths in a message
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
# What is special in regular expressions only; sets have been replaced by '[]'. udev writes a space
# in a label as '\x20', so not every backslash counts.
_REGEX: Final = re.compile(
    r"(?:\[\]|[).])(?P<repeat>[+])|(?:\[\]|[).])(?P<count>\{[0-9]+,?[0-9]*\})"
    r"|(?P<escape>\\[dwsDWS.*?+(\[{])|(?P<group>\()(?:[^()|]*\||\?)"
    r"|(?<=[-_])(?P<any>\.)[*+]|\A(?P<start>\^)|(?P<end>\$)\Z|(?P<or>\|)"
)
# The same in the text of a file, where some of it is likely to be meant so.
_REGEX_OF_TEXT: Final = re.compile(
    r"\A\^|\$\Z|\.[*+]|(?<=\])[+]|\\[dwsDWS.*?+(\[{]|\([^()]*\||\(\?|(?<=\w)\|(?=\w)"
)
# Simple replacements from a regular expression to a glob.
_AS_GLOB: Final = (
    (re.compile(r"\\d"), "[0-9]"),
    (re.compile(r"\\\."), "."),
    (re.compile(r"\.[*+]"), "*"),
    (re.compile(r"\][+]|\]\{[0-9,]+\}"), "]*"),
    (re.compile(r"\A\^|\$\Z"), ""),
)
_DOCKER: Final = re.compile(
    r"(?P<host>(?:/|\$\{)[^:]*):"
    r"(?:(?P<container>(?:/|\$\{(?:real)?path\})[^:]*)(?::(?P<mode>[A-Za-z,]+))?|(?P<only>[rwm]+|ro))"
)


def variable_mistake(text: str) -> str | None:
    """Explain that a source cannot contain variables."""
    if _VARIABLE.search(text) or _GO_TEMPLATE.search(text):
        return "variables are not expanded in sources; write the name on the host"
    return None


def go_template_mistake(text: str) -> str | None:
    """Explain that templates of Go and Helm are handed over as they are."""
    found = _GO_TEMPLATE.search(text)
    return f"{found[0]} is not replaced; write a variable, such as ${{name}}" if found else None


def command_mistake(arguments: Sequence[str]) -> tuple[int, str] | None:
    """Explain a command as a shell takes it; return which argument it is, and why."""
    words = arguments[0].split()
    if len(words) > 1 and words[1].startswith(("-", "/", "$")):
        better = ", ".join(words)
        return 0, f"no program is called {arguments[0]!r}; there is no shell: write {better}"
    at = next((index for index, one in enumerate(arguments) if one in _SHELL), None)
    return None if at is None else (at, f"'{arguments[at]}' is an argument: there is no shell")


def directory_mistake(path: str) -> str | None:
    """Explain that the path of a directory cannot be a glob or contain a variable."""
    if any(character in path for character in "*?["):
        return f"a directory cannot be a glob; write the source as {path.rstrip('/')}/*"
    return variable_mistake(path) or _braces_mistake(path)


def glob_mistake(text: str) -> str | None:
    """Explain what is not valid in a glob."""
    for found in _SET.finditer(text):
        if found[0] == "[":
            return "unclosed '['; write '[[]' for the character itself"
        if found[0].startswith("[^"):
            return f"a glob negates a set with '!'; write [!{found[0][2:]}"
    docker = _DOCKER.fullmatch(text)
    if docker:
        return f"looks like docker's HOST:CONTAINER:MODE; write {docker['host']}"
    if re.search(r"[, ]\s*/", text):
        return "more than one path; write each as an item of a list"
    return variable_mistake(text) or _regex_mistake(text) or _braces_mistake(text)


def content_mistake(text: str) -> str | None:
    """Explain a glob for the content of a file that looks like a regular expression."""
    found = _REGEX_OF_TEXT.search(_SET.sub("[]", text))
    if found is None:
        return None
    parts = _as_glob(text).split("|")
    clear = not any(_REGEX_OF_TEXT.search(_SET.sub("[]", part)) or "(" in part for part in parts)
    hint = f"; write {parts if len(parts) > 1 else repr(parts[0])}" if clear else ""
    return f"a glob, not a regular expression: '{found[0]}' matches only itself{hint}"


def _regex_mistake(text: str) -> str | None:
    found, below = _REGEX.search(_SET.sub("[]", text)), text.removeprefix("/dev/")
    mark = next(filter(None, found.groups())) if found else "."
    if found is None and (
        below == text or "." not in text or counted_by_glob(text) or not counted_by_pattern(below)
    ):
        return None
    glob = _as_glob(text)
    better = [] if _REGEX.search(_SET.sub("[]", glob)) else [glob]
    if below != text and not glob_problem(below):
        better.append(f"dev: {below}")
    hint = f"; write {' or '.join(better)}" if better else ""
    return f"a glob, not a regular expression: '{mark}' matches only itself{hint}"


def _as_glob(text: str) -> str:
    for regex, replacement in _AS_GLOB:
        text = regex.sub(replacement, text)
    return text


def _braces_mistake(text: str) -> str | None:
    masked = _SET.sub(lambda found: "\0" * len(found[0]), text)  # '[{]' is the character itself
    pairs = [found for found in _BRACES.finditer(masked) if "," in found[1] or ".." in found[1]]
    if not pairs:
        return None
    start, end = pairs[0].span()
    parts = text[start + 1 : end - 1].split(",")
    each = "each path"
    if len(pairs) == 1 and 1 < len(parts) <= _LISTED_MAX:
        each = ", ".join(f"{text[:start]}{part}{text[end:]}" for part in parts)
    return f"braces are not expanded; list {each} instead"


def docker_mistake(text: str, *, mount: bool) -> str | None:
    """Explain how to write a device or mount that is in docker's form.

    Source: https://docs.docker.com/reference/cli/docker/container/run (--device, --volume).
    """
    found = _DOCKER.fullmatch(text)
    if found is None:
        return None
    mode = found["mode"] or found["only"]
    entry = {"hostPath": found["host"], "containerPath": found["container"]}
    if mount:
        entry["readOnly"] = "true" if mode and "ro" in mode.split(",") else "false"
    elif mode:
        entry["permissions"] = mode
    shown = (f"{key}: {_quoted(value)}" for key, value in entry.items() if value)
    return f"looks like docker's HOST:CONTAINER:MODE; write {{{', '.join(shown)}}}"


def _quoted(text: str) -> str:
    return f'"{text}"' if "$" in text else text
