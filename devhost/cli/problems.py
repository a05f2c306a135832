"""Problems of configurations: for people on a terminal, one line each for everything else."""

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

import click

from devhost.cli import output
from devhost.cli.tables import cells
from devhost.errors import Excerpt, Problem
from devhost.model.names import printable

_WIDTH_MIN: Final = 40
_WIDTH_MAX: Final = 100  # longer lines are hard to read
_TAB: Final = 4
_COLORS: Final = {"error": "red", "warning": "yellow"}


def print_problems(problems: Sequence[Problem], *, err: bool = True) -> None:
    """Print problems: with their source on a terminal, else ``file:line:column: …`` each."""
    stream: TextIO | None = sys.stderr if err else sys.stdout
    write = output.note if err else output.echo
    if stream is None or not stream.isatty():
        for problem in problems:
            write(str(problem))
    elif problems:
        columns = min(max(shutil.get_terminal_size().columns, _WIDTH_MIN), _WIDTH_MAX)
        color = output.colors()
        for problem in problems:
            click.echo("\n".join(described(problem, columns, color=color)) + "\n", err=err)
        click.echo(_bold(summary(problems), color=color), err=err)


def described(problem: Problem, columns: int, *, color: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal: what is wrong, where, and the source line with a mark."""
    tint = _COLORS[problem.severity]
    where = printable(f"{problem.file}:{problem.line}:{problem.column}: ")
    text = printable(f"{where}{problem.severity}: {problem.message}")
    wrapped = "\n".join(_wrapped(text, columns))
    start = f"{where}{problem.severity}:"
    if wrapped.startswith(start):
        rest = wrapped.removeprefix(start)
        head = click.style(f"{problem.severity}:", fg=tint, bold=True)
        wrapped = f"{_bold(where, color=True)}{head}{_bold(rest, color=True)}" if color else wrapped
    yield wrapped
    if problem.path or problem.resource:
        of = f" of {problem.resource}" if problem.resource else ""
        yield from _wrapped(printable(f"    in {problem.path}{of}"), columns)
    if problem.excerpt is not None:
        line = str(problem.excerpt.line or "")
        gutter = max(len(line), 4)
        source, mark = _marked(problem.excerpt, columns - gutter - 3)
        yield f"{line:>{gutter}} | {source}"
        shown = click.style(mark.lstrip(), fg=tint, bold=True) if color else mark.lstrip()
        yield f"{'':{gutter}} | {' ' * (len(mark) - len(mark.lstrip()))}{shown}"


def summary(problems: Sequence[Problem]) -> str:
    """Return ``3 errors, 1 warning in 2 files``."""
    found = Counter(problem.severity for problem in problems)
    counts = [f"{count} {severity}{'s' * (count > 1)}" for severity, count in sorted(found.items())]
    files = {problem.file for problem in problems}
    where = f"{len(files)} files" if len(files) > 1 else printable(files.pop())
    return f"{', '.join(counts)} in {where}"


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(
        text,
        columns,
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _bold(text: str, *, color: bool) -> str:
    return click.style(text, bold=True) if color else text


def _marked(excerpt: Excerpt, columns: int) -> tuple[str, str]:
    """Return the part of a source line that fits, and the line with the mark below it."""
    shown: list[str] = []
    widths: list[int] = []
    for character in excerpt.text:
        if character == "\t":
            shown.append(" " * (_TAB - sum(widths) % _TAB))
        else:
            shown.append(printable(character))
        widths.append(cells(shown[-1]))
    first, last = 0, len(shown)
    while sum(widths[first:last]) > columns - 2:  # what is left out becomes an ellipsis
        if first < excerpt.start and sum(widths[first : excerpt.start]) > columns // 3:
            first += 1
        else:
            last -= 1
    before = "…" if first else ""
    after = "…" if last < len(shown) else ""
    begin = len(before) + sum(widths[first : excerpt.start])
    length = sum(widths[excerpt.start : min(excerpt.end, last)])
    return f"{before}{''.join(shown[first:last])}{after}", " " * begin + "^" * max(length, 1)
