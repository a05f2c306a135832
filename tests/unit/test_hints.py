"""No hint leads astray: who does what messages say has a file that the loader takes.

What the messages in golden/*.txt say is done to the texts of their cases as a person would do it,
again and again. Cases with a message that does not say what to write are left out.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml

from devhost.config.loader import loads
from devhost.errors import Problem
from tests.unit.test_loading_problems import GOLDEN, cases, text_of

ROUNDS: Final = 4
# What only the author of a file knows, which may be left to say.
LEFT: Final = re.compile(
    r"should be (?!a mapping)|needs '|every device would have the same ID|only takes effect with"
)
# What a person writes for '…' at a key.
OWN: Final = {"hostPath": "${path}", "value": "x", "name": "example.com/x", "subsystem": "tty"}
# The option that a string or list stands for, where a mapping is written instead.
MAIN: Final = {"dev": "pattern", "glob": "paths", "usb": "device", "pci": "device"}

Place = tuple[Any, ...]


class Loader(yaml.SafeLoader):
    """Takes no text for a date."""


Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def at(data: Any, path: Place) -> Any:
    for part in path:
        data = data[part]
    return data


def rename(data: Any, path: Place, name: str) -> None:
    around = at(data, path[:-1])
    around[name] = around.pop(path[-1])


def replace_variable(data: Any, path: Place, variable: str, name: str) -> None:
    around = at(data, path[:-1])
    around[path[-1]] = around[path[-1]].replace(f"${{{variable}}}", f"${{{name}}}")


def move_below(data: Any, path: Place, name: str) -> None:
    around = at(data, path[:-1])
    value = around.pop(path[-1])
    inner = around.setdefault(name, {})
    if not isinstance(inner, dict):
        inner = around[name] = {MAIN[name]: inner}
    inner[path[-1]] = value


def write_below(data: Any, path: Place, keys: str, text: str) -> None:
    around = at(data, path[:-1])
    value = around.pop(path[-1])
    *parts, last = keys.split(".")
    for part in parts:
        around = around.setdefault(part, {})
    new = yaml.safe_load(text.replace("…", "null"))
    (entry,) = new if isinstance(new, list) else new.values()
    for key in entry:
        entry[key] = OWN.get(key, value) if key != path[-1] else value
    if isinstance(new, list):
        around[last] = [*around.get(last, []), entry]
    else:
        around.setdefault(last, {}).update(new)


def move_beside(data: Any, path: Place, name: str) -> None:
    value = at(data, path[:-1]).pop(path[-1])
    depth = max(depth for depth, part in enumerate(path[:-1]) if part == name)
    at(data, path[:depth])[path[-1]] = value


def write_key(data: Any, path: Place, text: str) -> None:
    """Write a key and its value instead of a key, or of the value of that key."""
    ((key, value),) = yaml.safe_load(text).items()
    path = path[: path.index(key) + 1] if key in path else path
    around = at(data, path[:-1])
    around.pop(path[-1])
    around[key] = value


def write(data: Any, path: Place, text: str) -> None:
    at(data, path[:-1])[path[-1]] = yaml.safe_load(text)


def write_command(data: Any, path: Place, text: str) -> None:
    at(data, path[:-1])[path[-1]] = {"run": yaml.safe_load(text)}


# What messages say, and what is done for it.
DEEDS: Final[tuple[tuple[str, Callable[..., None]], ...]] = (
    (r"unknown key '[^']+'; did you mean '([^']+)'\?$", rename),
    (r"unknown variable \${([\w.]+)}; did you mean '([^']+)'\?$", replace_variable),
    (r"; it belongs below '([^']+)'$", move_below),
    (r"; below '([\w.]+)', write ((?:- |NAME: )\{.*\})$", write_below),
    (r"; it belongs beside '([^']+)'$", move_beside),
    (r"; write (device: \S+|backend: \w+)$", write_key),
    (r'should be a string; quote it: ("[^"]*")$', write),
    (r"; remove the quotes of '(\w+)'$", write),
    (r"; for a command, below 'run' write (\[.*\]); there is no shell$", write_command),
    (r"; write (\[.*\]); there is no shell$", write),
    (r"has no domain; write (\S+)$", write),
    (r"should be domain/name, such as (\S+): ", write),
    (r"does not begin with '/'; write (\S+)$", write),
    (r"ends with '/'; write (\S+)$", write),
)


def find_deed(problem: Problem) -> Callable[[Any], None] | None:
    """Return what a problem's message says to do to the data of a file."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", problem.path)
    path = tuple(int(index) if index else key for index, key in parts)
    for pattern, do in DEEDS:
        if match := re.search(pattern, problem.message):
            return lambda data: do(data, path, *match.groups())
    return None


def errors_of(text: str) -> list[Problem]:
    return [problem for problem in loads(text).problems if problem.severity == "error"]


def hinted() -> list[str]:
    """Return the texts whose messages all say what to do."""
    files = (golden for golden in GOLDEN if golden.stem != "files")
    texts = [text_of(case) for golden in files for case, _ in cases(golden)]
    return [text for text in texts if (errors := errors_of(text)) and all(map(find_deed, errors))]


@pytest.mark.parametrize("text", hinted())
def test_file_is_right_after_what_its_messages_say(text: str) -> None:
    for _ in range(ROUNDS):
        data = yaml.load(text, Loader)
        for problem in reversed(errors_of(text)):  # so that those before stay where they are
            if (do := find_deed(problem)) is not None:
                do(data)
            else:
                assert LEFT.search(problem.message), f"{text}\n{problem.message}"
        before, text = text, yaml.safe_dump(data, sort_keys=False)
        if text == before or not errors_of(text):
            return
    pytest.fail(text)


def test_each_way_to_say_what_to_write_is_in_a_case() -> None:
    messages = [problem.message for text in hinted() for problem in errors_of(text)]
    for pattern, _ in DEEDS:
        assert any(re.search(pattern, message) for message in messages), pattern
