"""``devhost test``."""

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import click

from devhost.cli import completion
from devhost.cli import output as printer
from devhost.cli.problems import print_problems
from devhost.memory import gc_frozen

if TYPE_CHECKING:
    from devhost.testing.case_run import Outcome


@click.command("test", epilog="Exit status: 0 passed, 1 failed or invalid, 2 usage error.")
@click.argument(
    "files", nargs=-1, required=True, metavar="CASES...", shell_complete=completion.files
)
@click.option(
    "-k", "--keyword", default="", help="Run only the tests whose name contains this text."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for what is expected.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show the log of the host.")
def command(files: tuple[str, ...], keyword: str, timeout: float, verbose: bool) -> None:
    """Test a configuration against hosts that files describe ('-' is standard input).

    Each test runs the real host with a stand-in kubelet and a directory tree in place of the host's
    files. Device nodes need root, outside of user namespaces.
    """
    with gc_frozen():
        from devhost.errors import ConfigError
        from devhost.testing import case_file, case_run
        from devhost.testing.tree import NotPermittedError

    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL, format="  %(levelname)s %(message)s"
    )
    outcomes: list[Outcome] = []
    invalid = False
    for name in files:
        try:
            file = case_file.load(name)
            for index, case in enumerate(file.cases.tests):
                if keyword in case.name:
                    outcomes.append(asyncio.run(case_run.run(file, index, timeout)))
                    _show(name, outcomes[-1])
        except ConfigError as error:
            print_problems(error.problems)
            invalid = True
        except NotPermittedError as error:
            printer.note(f"{name}: {error}")
            invalid = True
    failed = sum(bool(one.failures) for one in outcomes)
    printer.note(f"{len(outcomes) - failed} passed, {failed} failed")
    if not outcomes and not invalid:
        printer.fail(f"no test has a name that contains {keyword!r}")
    sys.exit(1 if failed or invalid else 0)


def _show(file: str, outcome: "Outcome") -> None:
    if not outcome.failures:
        printer.echo(f"ok    {outcome.name}")
        return
    printer.echo(f"FAIL  {outcome.name}")
    for failure in outcome.failures:
        printer.echo(f"      {file}:{outcome.line}: {failure}")
