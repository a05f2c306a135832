"""``devhost validate``."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devhost.cli import completion, options
from devhost.cli import output as printer
from devhost.memory import gc_frozen

if TYPE_CHECKING:
    from devhost.allocation.policy import Policy


@click.command("validate", epilog="Exit status: 0 valid, 1 invalid, 2 usage error.")
@click.argument(
    "configs", nargs=-1, required=True, metavar="CONFIG...", shell_complete=completion.files
)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--enforce",
    is_flag=True,
    help="Treat what needs a flag --allow-… as an error, as `run` does.",
)
@options.output_option
@options.trust_options
def command(
    configs: tuple[str, ...],
    strict: bool,
    enforce: bool,
    output: str,
    policy: "Policy",
) -> None:
    """Check configuration files ('-' is standard input) without reading the host.

    Prints one line per problem: file:line:column: severity: path: message.
    """
    with gc_frozen():
        from devhost.loading.loader import load

    printer.print_warnings(policy.warnings)
    policy = replace(policy, enforced=enforce)
    problems = [problem for config in configs for problem in load(config, policy).problems]
    errors = sum(problem.severity == "error" or strict for problem in problems)
    if output == "json":
        shown = printer.problems_json(problems)
        printer.print_json({**shown, "valid": not errors})
    else:
        printer.print_problems(problems, err=False)
        if not errors:
            files = f"{len(configs)} files are" if len(configs) > 1 else f"{configs[0]} is"
            printer.note(f"{files} valid")
    sys.exit(1 if errors else 0)
