"""``devhost plan``."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

import click

from devhost.allocation.policy import Policy
from devhost.cli import completion, options
from devhost.cli import output as printer
from devhost.cli.problems import print_problems
from devhost.model.config import Config

_allocate_option = click.option(
    "--allocate",
    multiple=True,
    metavar="NAME=N|ID,ID",
    shell_complete=completion.requests,
    help="Show what a container with N devices, or with these devices, would receive.",
)
_against_option = click.option(
    "--against",
    metavar="OLD",
    shell_complete=completion.files,
    help="Show what a change of the configuration from OLD to CONFIG would do to each resource, "
    "without reading the host.",
)
_explain_option = click.option(
    "--explain",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    shell_complete=completion.resources,
    help="Show what each source looks at, takes and leaves out, of all resources or of one.",
)
_all_option = click.option(
    "--all", "everything", is_flag=True, help="With --explain: show every candidate."
)


@click.command(
    "plan",
    epilog="Exit status: 0 success (also without devices), 1 invalid configuration, failed source "
    "or impossible allocation, 2 usage error.",
)
@options.config_argument
@_allocate_option
@_against_option
@_explain_option
@_all_option
@options.root_option
@options.node_name_option
@options.output_option
@options.trust_options
@options.as_if_allowed_option
def command(
    config: str,
    allocate: tuple[str, ...],
    against: str | None,
    explain: str | None,
    everything: bool,
    root: str,
    node_name: str,
    output: str,
    policy: Policy,
    as_if_allowed: bool,
) -> None:
    """Show what this host would advertise: devices, their health, and what is skipped.

    A device that `run` would refuse with the same flags is unhealthy, with the reason.

    With --against: what a running devhost would do if its configuration changed.
    """
    from devhost.hostfs.files import HostFiles
    from devhost.report import report

    requests = dict(_request(text) for text in allocate)
    if against is not None:
        if requests:
            raise click.UsageError("--against cannot be combined with --allocate")
        _compare(against, config, policy, node_name, output)
        return
    printer.print_warnings(policy.warnings)
    (loaded,) = _loaded([config], policy)
    _check_names("--allocate", requests, loaded, node_name, config)
    _check_names("--explain", [explain] if explain else [], loaded, node_name, config)
    files = HostFiles(options.real_root(root))
    judging = replace(policy, enforced=not as_if_allowed)
    reports = report(loaded, files, judging, node_name, requests, explain)
    if output == "json":
        printer.print_json({"resources": [one.as_json() for one in reports]})
    else:
        printer.print_reports(reports, node_name, everything=everything)
    sys.exit(1 if any(one.failed for one in reports) else 0)


def _check_names(
    option: str, names: Iterable[str], loaded: Config, node_name: str, file: str
) -> None:
    """Exit with status 1 if there is no resource of a name for this node."""
    known = {one.name for one in loaded.resources if one.applies_to(node_name)}
    for name in names:
        if name not in known:
            printer.fail(f"{option}: no resource {name} for this node in {file}")


def _loaded(files: Sequence[str], policy: Policy) -> list[Config]:
    """Load configurations and print all problems; exit with status 1 if one is invalid."""
    from devhost.loading.loader import load

    found = [load(file, policy) for file in files]
    print_problems([problem for loaded in found for problem in loaded.problems])
    configs = [loaded.config for loaded in found if loaded.config is not None]
    if len(configs) < len(found):
        sys.exit(1)
    return configs


def _compare(old: str, new: str, policy: Policy, node_name: str, output: str) -> None:
    from devhost.plan import changes

    if old == new == "-":
        raise click.UsageError("only one of CONFIG and --against can be standard input")
    before, after = _loaded([old, new], policy)
    found = changes(before, after, node_name)
    if output == "json":
        printer.print_json(printer.changes_json(found))
    else:
        printer.print_changes(found)


def _request(text: str) -> tuple[str, str]:
    name, separator, request = text.partition("=")
    if not separator or not request:
        raise click.BadParameter(f"{text!r} is not NAME=N or NAME=ID,ID", param_hint="--allocate")
    return name, request
