"""Strings that are valid, but mean something else than they look like.

Regular expressions or braces in globs, globs as patterns, docker's forms: they would match nothing
or name a path that does not exist. Also the names that the kernel gives in the order of discovery.
"""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Final

from devhost.model import pattern
from devhost.model.pattern import PatternError

# A set of characters as `fnmatch` reads it, or an unclosed '['.
_SET: Final = re.compile(r"\[!?+\]?+[^]]*\]|\[")
_SHELL: Final = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"})
_VARIABLE: Final = re.compile(r"\$\{?[A-Za-z_]")
_GO_TEMPLATE: Final = re.compile(r"\{\{[^{}\n]*\}\}")
_BRACES: Final = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
# What is special in regular expressions only; sets have been replaced by '[]'. udev writes a space
# in a label as '\x20', so not every backslash counts.
_REGEX: Final = re.compile(
    r"(?:\[\]|[).])(?:[+]|\{[0-9]+,?[0-9]*\})|\\[dwsDWS.*?+(\[{]|\((?:[^()|]*\||\?)"
    r"|(?<=[-_])\.[*+]|\A\^|\$\Z|\|"
)
# The same in the text of a file, where some of it is likely to be meant so.
_REGEX_OF_TEXT: Final = re.compile(
    r"\A\^|\$\Z|\.[*+]|(?<=\])[+]|\\[dwsDWS.*?+(\[{]|\([^()]*\||\(\?|(?<=\w)\|(?=\w)"
)
_DOCKER: Final = re.compile(
    r"(?P<host>(?:/|\$\{)[^:]*):"
    r"(?:(?:/|\$\{(?:real)?path\})[^:]*(?::[A-Za-z,]+)?|[rwm]+|ro)"
)
# Names that the kernel numbers in the order of discovery, so that a reboot may assign them to other
# devices, by subsystem. The first few of each, for patterns that match only some.
_FORMS: Final = {
    "tty": ("ttyUSB{}", "ttyACM{}"),
    "hidraw": ("hidraw{}",),
    "video4linux": ("video{}",),
    "media": ("media{}",),
    "gpio": ("gpiochip{}",),
    "i2c-dev": ("i2c-{}",),
    "input": ("input/event{}", "input/js{}", "input/mouse{}"),
    "usbmisc": ("usb/lp{}", "cdc-wdm{}"),
    "drm": ("dri/card{}", "dri/renderD{}"),
    "nvme": ("nvme{}",),
    "": (
        *(
            "iio:device{}",
            "v4l-subdev{}",
            "nvme{}n1",
            "nvme{}n1p1",
            "sr{}",
            "sg{}",
            "st{}",
            "nst{}",
        ),
        *("snd/controlC{}", "snd/pcmC{}D0c", "snd/pcmC{}D0p"),
    ),
}
_COUNTED: Final = {
    subsystem: [
        form.format(number)
        for form in forms
        for number in (range(128, 138) if "render" in form else range(10))
    ]
    for subsystem, forms in _FORMS.items()
}
_NAMES: Final = [name for names in _COUNTED.values() for name in names] + [
    f"sd{letter}{partition}" for letter in "abcdefghij" for partition in ("", "1")
]
_PLAIN: Final = re.compile(r"[A-Za-z0-9/_-]*")
# Escapes and character sets; else what looks like a glob.
_LOOKS: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\[pP]?.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^]\\])*\]"
    r"|(?P<before>[A-Za-z0-9/_-])(?P<mark>[*?])",
    re.DOTALL,
)
_WORD: Final = re.compile(r"[A-Za-z0-9/_.-]*[A-Za-z0-9/_-][*?][A-Za-z0-9/_.*?-]*")


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
    if docker := _DOCKER.fullmatch(text):
        return f"looks like docker's HOST:CONTAINER:MODE; write {docker['host']}"
    if re.search(r"[, ]\s*/", text):
        return "more than one path; write each as an item of a list"
    return variable_mistake(text) or _regex_mistake(text) or _braces_mistake(text)


def content_mistake(text: str) -> str | None:
    """Explain a glob for the content of a file that looks like a regular expression."""
    found = _REGEX_OF_TEXT.search(_SET.sub("[]", text))
    return found and f"a glob, not a regular expression: '{found[0]}' matches only itself"


def _regex_mistake(text: str) -> str | None:
    below = text.removeprefix("/dev/")
    in_dev = below != text
    if not _REGEX.search(_SET.sub("[]", text)) and (
        not in_dev or "." not in text or counted_by_glob(text) or not counted_by_pattern(below)
    ):
        return None
    hint = f"; for one, write dev: {below}" if in_dev and not glob_problem(below) else ""
    return f"a glob, not a regular expression{hint}"


def _braces_mistake(text: str) -> str | None:
    # '[{]' is the character itself.
    found = _BRACES.search(_SET.sub("[]", text))
    return "braces are not expanded; list each path instead" if found else None


def docker_mistake(text: str, *, mount: bool) -> str | None:
    """Explain how to write a device or mount that is in docker's form.

    Source: https://docs.docker.com/reference/cli/docker/container/run (--device, --volume).
    """
    if not _DOCKER.fullmatch(text):
        return None
    mode = "readOnly" if mount else "permissions"
    entry = f"{{hostPath: …, containerPath: …, {mode}: …}}"
    return f"looks like docker's HOST:CONTAINER:MODE; write {entry}"


def counted_by_pattern(text: str) -> str | None:
    """Return a numbered name that a pattern for the path below /dev matches."""
    beginning = _PLAIN.match(text)
    prefix = beginning[0][:-1] if beginning and "|" not in text else ""
    names = (name for name in _NAMES if name.startswith(prefix))
    return next((name for name in names if _matches(text, name)), None)


def counted_by_glob(text: str) -> str | None:
    """Return a numbered name whose path a glob matches."""
    prefix = re.split(r"[*?[]", text, maxsplit=1)[0]
    paths = (path for name in _NAMES if (path := f"/dev/{name}").startswith(prefix))
    return next((path[5:] for path in paths if glob_matches(text, path)), None)


def glob_matches(text: str, path: str) -> bool:
    """Whether a glob of whole paths matches one."""
    parts, names = text.split("/"), path.split("/")
    if "**" in parts:
        return fnmatch.fnmatchcase(path, text)
    return len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))


def counted_of(subsystem: str, globs: Iterable[str]) -> str | None:
    """Return a numbered name of a subsystem that a glob matches."""
    names = (name.rpartition("/")[2] for name in _COUNTED.get(subsystem, ()))
    return next((one for one in names if any(fnmatch.fnmatchcase(one, g) for g in globs)), None)


def glob_problem(text: str) -> str | None:
    """Explain a pattern that looks like a glob, if it does not match the same."""
    if not any(look["mark"] for look in _LOOKS.finditer(text)) or not (word := _WORD.search(text)):
        return None
    marks = {"*": ".*", "?": "."}
    regex = _LOOKS.sub(
        lambda look: look["before"] + marks[look["mark"]] if look["mark"] else look[0], text
    )
    meant = re.sub(r"[*?]", "a" if word[0].startswith("sd") else "0", word[0])
    if _matches(text, meant) or not _matches(regex, meant):
        return None
    return f"does not match {meant}: a regular expression, not a glob; write {regex}"


def _matches(text: str, name: str) -> bool:
    try:
        return pattern.fullmatch(text, name) is not None
    except PatternError:  # reported by another check
        return False
