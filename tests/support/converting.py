"""Runs `devhost convert` on settings of another device plugin."""

from click.testing import CliRunner

from devhost.cli import main
from devhost.testing import HostTree


def convert(text: str, tree: HostTree, *arguments: str) -> tuple[str, str]:
    """Convert what is on standard input; return stdout and stderr."""
    result = CliRunner().invoke(
        main, ["convert", "-", "--root", str(tree.root), *arguments], input=text
    )
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr
