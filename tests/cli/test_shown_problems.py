"""Problems on a terminal: the line, a mark below it, and how many there are."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from devhost.cli.output import described, summary
from devhost.errors import Problem
from devhost.loading.loader import loads

HEAD = "version: v1\nresources:\n  - name: example.com/a\n"


def shown(text: str, columns: int = 80) -> list[str]:
    (problem,) = loads(text, "f.yaml").problems
    return click.unstyle("\n".join(described(problem, columns))).split("\n")


def marked(lines: list[str]) -> str:
    """Return what is above the mark, by columns of ASCII."""
    source, mark = lines[-2:]
    return source[mark.index("^") : mark.rindex("^") + 1]


def test_a_problem_has_its_place_its_resource_and_its_line() -> None:
    assert shown(f"{HEAD}    sources: [static: 1]\n    replicas: 0 # none\n") == [
        "f.yaml:5:15: error: should be at least 1, not '0'",
        "    in resources[0].replicas of example.com/a",
        "   5 |     replicas: 0 # none",
        "     |               ^",
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("replcas: 2", "replcas"),
        ("overlap: 'some times'", "'some times'"),
        ("overlap: some times # c", "some times"),
        ("id: x${foo}", "x${foo}"),
        ("\u65e5\u672c: 1", "\u65e5\u672c"),
        ("health: {checks: [readable], interval: 5}", "5"),
    ],
)
def test_the_mark_is_as_long_as_what_is_wrong(line: str, text: str) -> None:
    lines = shown(f"{HEAD}    sources: [dev: kvm]\n    {line}\n")
    source, mark = lines[-2:]
    width = sum(2 if ord(one) > 0x3000 else 1 for one in text)
    assert mark.count("^") == width
    assert mark.index("^") == source.rindex(text)


def test_tabs_and_control_characters_are_shown_and_counted() -> None:
    tab = shown(f"{HEAD}    sources:\t[static: -1]\n")
    assert marked(tab) == "-1"
    escape = shown(f"{HEAD}    sources: \x1b[31m\n")
    assert "\\x1b[31m" in escape[-2]
    assert "\x1b" not in "".join(escape)


def test_wide_characters_and_marks_keep_the_columns() -> None:
    """A wide character takes two columns, a combining one none."""
    lines = shown(f"{HEAD}    sources: [static: 1] \n    id: ['\u65e5e\u0301', '$x']\n")
    source, mark = lines[-2:]
    assert mark.index("^") == source.index("$x")  # of both, as many columns as characters


@pytest.mark.parametrize("columns", [40, 80])
def test_everything_fits(columns: int) -> None:
    """Of a long line the part around the problem is shown."""
    filler = "x: 1, " * 100
    text = f"version: v1\nresources: []\nx-a: {{{filler}b: [}}, {filler}}}\n"
    lines = shown(text, columns)
    assert all(len(line) <= columns for line in lines), lines
    assert marked(lines) == "}"
    assert lines[-2].count("…") == 2
    long = shown(f"{HEAD}    sources: [dev: kvm]\n    description: a\n", columns)
    assert all(len(line) <= columns for line in long), long


def test_the_end_counts() -> None:
    def one(severity: str, file: str) -> Problem:
        return Problem(severity, file, 1, 1, "", "x")  # type: ignore[arg-type]

    assert summary([one("error", "a")]) == "1 error in a"
    assert summary([one("warning", "a"), one("error", "b"), one("error", "a")]) == (
        "2 errors, 1 warning in 2 files"
    )


def on_terminal(*arguments: str, **environment: str) -> str:
    """Run a command on a terminal of 80 columns, and return what it prints."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "devhost", *arguments]
    with subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm", **environment},
    ):
        os.close(slave)
        output = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            output += part
    os.close(master)
    return output.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("command", ["validate", "plan", "try", "run"])
def test_all_commands_show_problems_alike(command: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(f"{HEAD}    sources: [static: 1]\n    replcas: 2\n")
    more = ("--plugin-dir", str(tmp_path)) if command == "run" else ()
    output = on_terminal(command, str(file), *more, NO_COLOR="1")
    assert f"{file}:5:5: error: unknown key 'replcas'; did you".replace("\n", " ") in re.sub(
        r"\n +", " ", output
    )
    assert "   5 |     replcas: 2\n     |     ^^^^^^^\n\n1 error in " in output
    assert "\x1b[" not in output


def test_colors_are_for_terminals(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("version: v2\nresources: []\n")
    assert "\x1b[31m" in on_terminal("validate", str(file), NO_COLOR="")
    assert "\x1b[31m" not in on_terminal("validate", str(file), NO_COLOR="", TERM="dumb")
