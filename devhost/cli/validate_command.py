"""``devhost validate`` and ``devhost schema``: configuration files without a host."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devhost.cli import options
from devhost.cli import output as printer

if TYPE_CHECKING:
    from devhost.allocation.policy import Policy


@click.command("validate", epilog="Exit status: 0 valid, 1 invalid, 2 usage error.")
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG...", type=options.FILE)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--enforce", is_flag=True, help="Treat a flag --allow-… or --dra that is missing as an error."
)
@options.output_option("text", "json")
@options.trust_options
def command(
    configs: tuple[str, ...], strict: bool, enforce: bool, output: str, policy: "Policy"
) -> None:
    """Check configuration files ('-' is standard input) without reading the host.

    A file may also be a manifest with ConfigMaps, such as what `helm template` prints, or the
    values of the chart, with what they allow.

    Prints one line per problem: file:line:column: severity: path: message. On a terminal, prints
    also the line of the file, and how many problems there are.

    Example: `devhost validate first.yaml --strict`
    """
    from devhost.config.loader import load_all

    policy = replace(policy, enforced=enforce, adds_values=True)
    printer.print_warnings(policy.warnings)
    results = [(config, loaded) for config in configs for loaded in load_all(config, policy)]
    problems = [problem for _, loaded in results for problem in loaded.problems]
    failing = ("error", "warning") if strict else ("error",)
    valid = not any(problem.severity in failing for problem in problems)
    if output == "json":
        values = [problem.as_json() for problem in problems]
        printer.print_json({"valid": valid, "problems": values})
    else:
        printer.print_problems(problems, err=False)
        if valid:
            for file, loaded in results:
                printer.note(f"{file}{loaded.name and f': {loaded.name}'} is valid")
    sys.exit(0 if valid else 1)


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors and other tools.

    Example: `devhost schema > devhost.schema.json`
    """
    from devhost.config.json_schema import json_schema

    printer.print_json(json_schema())
