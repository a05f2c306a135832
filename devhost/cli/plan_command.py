"""``devhost plan``."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devhost.allocation.policy import Policy
from devhost.cli import completion, options
from devhost.cli import output as printer
from devhost.cli.problems import print_problems
from devhost.model.config import Config
from devhost.model.names import resource_name_problem

if TYPE_CHECKING:
    from devhost.report import ResourceReport

_allocate_option = click.option(
    "--allocate",
    multiple=True,
    metavar="NAME=N|ID,ID",
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
    "--explain", is_flag=True, help="Show what each source looks at, takes and leaves out."
)
_all_option = click.option(
    "--all", "everything", is_flag=True, help="With --explain: show every candidate."
)


@click.command(
    "plan",
    cls=options.Command,
    epilog="Exit status: 0 success (also without devices), 1 invalid configuration, failed source "
    "or impossible allocation, 2 usage error.",
)
@options.config_argument
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_allocate_option
@_against_option
@_explain_option
@_all_option
@options.root_option
@options.node_name_option
@options.table_output_option
@options.trust_options
@options.as_if_allowed_option
def command(
    config: str,
    names: tuple[str, ...],
    allocate: tuple[str, ...],
    against: str | None,
    explain: bool,
    everything: bool,
    root: str,
    node_name: str,
    output: str,
    policy: Policy,
    as_if_allowed: bool,
) -> None:
    """Show what this host would advertise: devices, their health, and what is skipped.

    With NAME: only of these resources. CONFIG may then be left out.
    A device that `run` would refuse with the same flags is unhealthy, with the reason.

    With --against: what a running devhost would do if its configuration changed.
    """
    from devhost.hostfs.files import HostFiles
    from devhost.report import report

    config, names = _file_and_names(config, names)
    requests = dict(_request(text) for text in allocate)
    if against is not None:
        if requests:
            raise click.UsageError("--against cannot be combined with --allocate")
        _compare((against, config), names, policy, node_name, output)
        return
    (loaded,) = _loaded([config], policy)
    wanted = {"": names, "--allocate: ": requests}
    _check_names(wanted, loaded, node_name, config)
    judging = replace(policy, enforced=not as_if_allowed)
    files = HostFiles(options.real_root(root), judging.shown_paths)
    # All are scanned: whose a node is depends on the other resources.
    reports = report(loaded, files, judging, node_name, requests, explained=explain)
    if names:
        reports = tuple(one for one in reports if one.resource.name in {*names, *requests})
    _show(reports, node_name, output, everything=everything)
    sys.exit(1 if any(one.failed for one in reports) else 0)


def _show(
    reports: "Sequence[ResourceReport]", node_name: str, output: str, *, everything: bool
) -> None:
    if output in ("json", "yaml"):
        printer.print_value({"resources": [one.as_json() for one in reports]}, output)
    else:
        printer.print_reports(reports, node_name, everything=everything, wide=output == "wide")


def _file_and_names(config: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Tell names of resources from the file before them, which may be left out.

    Raises:
        click.UsageError: A name cannot be that of a resource.
    """
    is_file = config.endswith((".yaml", ".yml")) or os.path.lexists(config)
    if not is_file and resource_name_problem(config) is None:
        names = (config, *names)
        config = os.environ.get("DEVHOST_CONFIG") or options.DEFAULT_CONFIG
    for name in names:
        if problem := resource_name_problem(name):
            raise click.UsageError(f"only one CONFIG can be given, and {problem}")
    return config, names


def _check_names(
    wanted: Mapping[str, Iterable[str]], loaded: Config, node_name: str, file: str
) -> None:
    """Exit with status 1 if there is no resource of a name, by option, for this node."""
    known = {one.name for one in loaded.resources if one.applies_to(node_name)}
    for option, names in wanted.items():
        for name in names:
            if name not in known:
                hint = printer.resource_hint(name, known)
                printer.fail(f"{option}no resource {name} for this node in {file}{hint}")


def _loaded(files: Sequence[str], policy: Policy) -> list[Config]:
    """Load configurations and print all problems; exit with status 1 if one is invalid."""
    from devhost.loading.loader import load

    printer.print_warnings(policy.warnings)
    found = [load(file, policy) for file in files]
    print_problems([problem for loaded in found for problem in loaded.problems])
    configs = [loaded.config for loaded in found if loaded.config is not None]
    if len(configs) < len(found):
        sys.exit(1)
    return configs


def _compare(
    files: tuple[str, str],
    names: Sequence[str],
    policy: Policy,
    node_name: str,
    output: str,
) -> None:
    from devhost.plan import changes

    old, new = files
    if old == new == "-":
        raise click.UsageError("only one of CONFIG and --against can be standard input")
    before, after = _loaded(files, policy)
    found = changes(before, after, node_name)
    if missing := {*names} - {one.name for one in found}:
        hint = printer.resource_hint(min(missing), [one.name for one in found])
        printer.fail(f"no resource {min(missing)} for this node in {old} and {new}{hint}")
    found = tuple(one for one in found if not names or one.name in names)
    if output in ("json", "yaml"):
        printer.print_value(printer.changes_json(found), output)
    else:
        printer.print_changes(found)


def _request(text: str) -> tuple[str, str]:
    name, separator, request = text.partition("=")
    if not separator or not request:
        raise click.BadParameter(f"{text!r} is not NAME=N or NAME=ID,ID", param_hint="--allocate")
    return name, request
