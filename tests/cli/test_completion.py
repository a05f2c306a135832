"""Completion in a shell: which words of a command line are files, and which are directories."""

import pytest
from click.shell_completion import BashComplete

from devhost.cli import main


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("run", "file"),
        ("validate a", "file"),
        ("convert -o", "file"),
        ("plan --against", "file"),
        ("run --plugin-dir", "dir"),
        ("run --state-dir", "dir"),
        ("run --cdi-dir", "dir"),
    ],
)
def test_completion_of_paths_is_left_to_the_shell(line: str, kind: str) -> None:
    shell = BashComplete(main, {}, "devhost", "_DEVHOST_COMPLETE")
    (completion,) = shell.get_completions(line.split(), "x")
    assert (completion.type, completion.value) == (kind, "x")
