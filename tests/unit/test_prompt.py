"""The line that a person edits in `devhost try`."""

import pytest

from devhost.cli.prompt import Prompt
from devhost.cli.terminal import keys_of

LEFT, RIGHT, UP, DOWN = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B"
HOME, END, BACK, DELETE = "\x1b[H", "\x1b[F", "\x7f", "\x1b[3~"
NAMES = ("allocate", "free", "example.com/cola", "example.com/token")


def typed(*keys: str) -> Prompt:
    prompt = Prompt(lambda _before: NAMES)
    for key in keys:
        assert prompt.key(key) is None
    return prompt


@pytest.mark.parametrize(
    ("keys", "text", "cursor"),
    [
        (["a", "b", "é"], "abé", 3),
        (["a", "c", LEFT, "b"], "abc", 2),
        ([LEFT, "a", RIGHT, RIGHT, "b"], "ab", 2),
        (["b", HOME, "a", END, "c"], "abc", 3),
        (["b", "\x1bOH", "a", "\x05", "c"], "abc", 3),
        ([BACK, "a", "b", BACK], "a", 1),
        (["a", "b", HOME, DELETE], "b", 0),
        (["a", "b", LEFT, "\x15"], "b", 0),
        (["a", "b", LEFT, "\x0b"], "a", 1),
        ([*"ab cd ", "\x17"], "ab ", 3),
        ([*"ab", "\x17", "\x17"], "", 0),
        (["\x00", "\x1b[99~", "\x1b", "a"], "a", 1),
        (["a", "\t"], "allocate ", 9),
        ([*"free e", "\t"], "free example.com/", 17),
        ([*"free col", "\t"], "free example.com/cola ", 22),
        ([*"free o", "\t"], "free o", 6),
        ([*"free x", "\t"], "free x", 6),
    ],
)
def test_keys(keys: list[str], text: str, cursor: int) -> None:
    prompt = typed(*keys)
    assert (prompt.text, prompt.cursor) == (text, cursor)


def test_lines_are_recalled() -> None:
    prompt = Prompt(lambda _before: ())
    for line in ("one", "two", "two"):
        for key in line:
            prompt.key(key)
        assert prompt.key("\r") == line
    assert prompt.key("\n") == ""
    seen = []
    for key in (UP, UP, UP, DOWN, DOWN, DOWN):
        prompt.key(key)
        seen.append(prompt.text)
    assert seen == ["two", "one", "one", "two", "", ""]


@pytest.mark.parametrize(
    ("text", "keys", "rest"),
    [
        ("aé\r", ["a", "é", "\r"], ""),
        ("\x1b[Aa\x1bOB", [UP, "a", "\x1bOB"], ""),
        ("a\x1b[5", ["a"], "\x1b[5"),
        ("\x1b", [], "\x1b"),
        ("\x1bab", ["\x1ba", "b"], ""),
        ("\x1b\x1b[A", ["\x1b", UP], ""),
        ("\x1b[1;5\x03a", ["\x1b[1;5\x03", "a"], ""),
        ("\x1b\ra", ["\x1b\r", "a"], ""),
    ],
)
def test_what_is_typed_is_split_into_keys(text: str, keys: list[str], rest: str) -> None:
    """Whatever comes, later keys are seen."""
    assert keys_of(text) == (keys, rest)
