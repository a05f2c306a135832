"""What a shell completes: values of arguments and options.

Arguments that are files are no `click.Path`, which accesses the path: a hung filesystem would block
a command. So they need a word to the shell.
"""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Let the shell complete a file name."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def directories(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Let the shell complete the name of a directory."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]
