"""Output on a terminal: problems with their line and a mark, colors, tables."""

import contextlib
import io
import os
import pty
import re
import subprocess
import unicodedata
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.cli import output
from devhost.cli.output import format_problem, summary
from devhost.config.loader import loads
from devhost.errors import Problem
from tests.support.command import PROGRAM, environment, process
from tests.support.screen import read

HEAD = "version: v1\nresources:\n  - name: example.com/a\n"


def shown(text: str, columns: int = 80) -> list[str]:
    (problem,) = loads(text, "f.yaml").problems
    return click.unstyle("\n".join(format_problem(problem, columns))).split("\n")


def marked(lines: list[str]) -> str:
    """Return what is above the mark, by columns of ASCII."""
    source, mark = lines[-2:]
    return source[mark.index("^") : mark.rindex("^") + 1]


def test_problem_has_its_place_its_resource_and_its_line() -> None:
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
        ("id: ['\u65e5e\u0301', '$x']", "$x'"),  # of both, as many columns as characters
        ("replicas:\t-1", "-1"),
    ],
)
def test_problem_mark_is_below_what_is_wrong_and_as_long(line: str, text: str) -> None:
    source, mark = shown(f"{HEAD}    sources: [dev: kvm]\n    {line}\n")[-2:]
    assert mark.count("^") == sum(2 if ord(char) > 0x3000 else 1 for char in text)
    assert mark.index("^") == source.rindex(text)


def test_problem_line_with_control_characters_is_shown_escaped() -> None:
    escape = shown(f"{HEAD}    sources: \x1b[31m\n")
    assert "\\x1b[31m" in escape[-2]
    assert "\x1b" not in "".join(escape)


@pytest.mark.parametrize("columns", [40, 80])
def test_problem_of_a_long_line_shows_the_part_around_it(columns: int) -> None:
    filler = "x: 1, " * 100
    lines = shown(f"version: v1\nresources: []\nx-a: {{{filler}b: [}}, {filler}}}\n", columns)
    assert all(len(line) <= columns for line in lines[-2:]), lines
    assert marked(lines) == "}"
    assert lines[-2].count("…") == 2


def test_summary_counts_problems_and_files() -> None:
    def one(severity: str, file: str) -> Problem:
        return Problem(severity, file, 1, 1, "", "x")  # type: ignore[arg-type]

    assert summary([one("error", "a")]) == "1 error in a"
    assert summary([one("warning", "a"), one("error", "b"), one("error", "a")]) == (
        "2 errors, 1 warning in 2 files"
    )


def on_terminal(*arguments: object, **variables: str) -> str:
    master, terminal = pty.openpty()
    variables = {"COLUMNS": "80", "TERM": "xterm", **variables}
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment(**variables),
    ):
        os.close(terminal)
        return read(master).decode().replace("\r\n", "\n")


@pytest.mark.parametrize("command", ["validate", "plan", "try", "run"])
def test_problem_on_a_terminal_is_shown_alike_by_all_commands(command: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(f"{HEAD}    sources: [static: 1]\n    replcas: 2\n")
    flags = ("--plugin-dir", tmp_path) if command == "run" else ()
    text = on_terminal(command, file, *flags, NO_COLOR="1")
    assert f"{file}:5:5: error: unknown key 'replcas'; did you" in re.sub(r"\n +", " ", text)
    assert "   5 |     replcas: 2\n     |     ^^^^^^^\n\n1 error in " in text
    assert "\x1b[" not in text


def test_colors_are_for_terminals_that_have_them(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.yaml", tmp_path / "good.yaml"
    bad.write_text("version: v2\nresources: []\n")
    good.write_text(f"{HEAD}    sources: [static: 1]\n")
    assert "\x1b[31m" in on_terminal("validate", bad)
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}):
        for arguments in (("validate", bad), ("plan", good)):
            assert "\x1b" not in on_terminal(*arguments, **variables)
    done = process("plan", good, TERM="xterm-256color")
    assert "\x1b" not in done.stdout + done.stderr


def printed(headings: list[str], rows: list[list[str]]) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        output.print_table(headings, rows)
    return text.getvalue().splitlines()


def test_table_is_aligned_by_columns_of_a_terminal_with_a_line_for_each_row() -> None:
    rows = [["a" * 60, "Unhealthy", "a reason of words " * 9], ["世界e\u0301é", "", ""]]
    heading, first, second = printed(["DEVICE", "HEALTH", "REASON"], rows)
    assert heading == f"{'DEVICE':60}   HEALTH      REASON"
    assert first == f"{rows[0][0]}   Unhealthy   {rows[0][2]}".rstrip()
    assert second == f"{rows[1][0]}{' ' * 54}   -"


def test_table_is_folded_on_a_narrow_terminal_and_complete_elsewhere(tmp_path: Path) -> None:
    file, device = tmp_path / "f.yaml", "a" * 60
    file.write_text(f"{HEAD}    sources: [static: {{ids: [{device}]}}]\n")
    assert f"\n{device}   Healthy\n" in process("plan", file).stdout
    _, heading, *rows = on_terminal("plan", file, COLUMNS="50").splitlines()
    assert heading.split() == ["DEVICE", "HEALTH"]
    assert rows[0].endswith("a   Healthy")
    assert max(map(len, rows)) == 50
    assert "".join(row.removesuffix("Healthy").strip() for row in rows) == device


@given(st.text(st.characters(exclude_categories=())))
def test_table_has_no_character_that_moves_the_cursor(text: str) -> None:
    table = "".join(printed(["A", "B"], [[text, text]]))
    assert not {*map(unicodedata.category, table)} & {"Cc", "Cf", "Zl", "Zp"}
