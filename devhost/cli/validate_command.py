"""``devhost validate`` and ``devhost schema``: configuration files without a host."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devhost.allocation.policy import Policy
    from devhost.config.loader import Loaded


@click.command("validate", epilog="Exit status: 0 valid, 1 invalid, 2 usage error.")
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG...", type=options.FILE)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--enforce", is_flag=True, help="Treat a flag --allow-… or --dra that is missing as an error."
)
@click.option(
    "--root",
    type=options.ROOT,
    help="With --enforce: also judge the devices of a host, such as one of `devhost capture`.",
)
@options.output_option("text", "json")
@options.trust_options
def command(
    configs: tuple[str, ...],
    strict: bool,
    enforce: bool,
    root: str | None,
    output: str,
    policy: "Policy",
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
    if enforce and root is not None:
        problems += [
            refusal for file, loaded in results for refusal in _refusals(file, loaded, root)
        ]
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


def _refusals(file: str, loaded: "Loaded", root: str) -> "Iterator[Problem]":
    """Yield a problem for each device of a host that needs a right."""
    from devhost.devices.dry_run import report
    from devhost.hostfs.files import HostFiles
    from devhost.model.device import Cause

    files = HostFiles(root, loaded.policy.shown_paths)
    for result in report(loaded.config, files, loaded.policy, "") if loaded.config else ():
        for device in result.snapshot.devices.values():
            if device.verdict is not None and device.verdict.cause is Cause.REFUSED:
                text, name = f"device {device.id}: {device.reason}", result.resource.name
                yield Problem("error", file, 1, 1, "", f"{name}: {text}", name)


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors and other tools.

    Example: `devhost schema > devhost.schema.json`
    """
    from devhost.config.json_schema import json_schema

    printer.print_json(json_schema())
