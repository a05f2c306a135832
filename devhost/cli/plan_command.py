"""``devhost plan``."""

import os
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from devhost.allocation.policy import Policy
from devhost.cli import options
from devhost.cli import output as printer
from devhost.model.config import DraNodes, Resource
from devhost.model.names import resource_name_problem

if TYPE_CHECKING:
    from devhost.config.loader import Loaded


@click.command(
    "plan",
    epilog="Exit status: 0 success (also without devices), 1 invalid configuration, failed source "
    "or impossible allocation, 2 usage error.",
)
@options.config_argument
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--allocate",
    multiple=True,
    metavar="NAME=N|ID,ID",
    help="Show what a container with N devices, or with these devices, would receive.",
)
@click.option(
    "--against",
    metavar="OLD",
    type=options.FILE,
    help="Show what a change of the configuration from OLD to CONFIG would do to each resource, "
    "without reading the host.",
)
@click.option(
    "--explain", is_flag=True, help="Show what each source looks at, takes and leaves out."
)
@options.host_files_option
@options.node_name_option
@options.dra_driver_option
@options.table_output_option
@options.trust_options
def command(
    config: str,
    names: tuple[str, ...],
    allocate: tuple[str, ...],
    against: str | None,
    explain: bool,
    root: str,
    cdi_dirs: tuple[str, ...],
    node_name: str,
    dra_driver: str,
    output: str,
    policy: Policy,
) -> None:
    """Show what this host would advertise: devices, their health, and what is skipped.

    With NAME: only of these resources. CONFIG may then be left out.
    A device that `run` would refuse with the same flags is unhealthy, with the reason.

    With --against: what a running devhost would do if its configuration changed.

    Example: `devhost plan first.yaml --allocate example.com/serial=1`
    """
    from devhost.backends.dra.planned_pool import PlannedDriver
    from devhost.backends.share_ids import offered_ids
    from devhost.devices.dry_run import report
    from devhost.hostfs.files import HostFiles

    config, names = _file_and_names(config, names)
    requests = dict(_request(text) for text in allocate)
    if against is not None:
        if requests:
            raise click.UsageError("--against cannot be combined with --allocate")
        _compare((against, config), names, policy, node_name, output)
        return
    (loaded,) = _load_all([config], policy)
    resources = loaded.require().resources
    on_node = [resource.name for resource in resources if resource.applies_to(node_name)]
    names = _full_names(names, on_node)
    requests = dict(zip(_full_names(requests, on_node), requests.values(), strict=True))
    printer.check_names([*names, *requests], on_node, f" for this node in {config}")
    judging = replace(loaded.policy, enforced=True)
    files = HostFiles(root, judging.shown_paths, cdi_dirs)
    driver = PlannedDriver(dra_driver, node_name)
    # All are scanned: which resource offers a node depends on the other resources.
    reports = report(
        loaded.require(),
        files,
        judging,
        node_name,
        requests,
        explained=explain,
        offer=offered_ids,
        claim=driver.claim,
    )
    if names:
        shown = {*names, *requests}
        reports = tuple(report for report in reports if report.resource.name in shown)
    if not reports and output in ("text", "wide"):
        printer.print_nothing(node_name, listed=bool(resources))
    values = [
        report.as_json() | driver.offer(report.resource, report.snapshot) for report in reports
    ]
    if output in ("json", "yaml"):
        printer.print_value({"resources": values}, output)
    else:
        _print([report.resource for report in reports], values, wide=output == "wide")
    sys.exit(1 if any(report.failed for report in reports) else 0)


def _file_and_names(config: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the file, by default that of the environment, and the names of resources after it."""
    is_file = config.endswith((".yaml", ".yml")) or os.path.lexists(config)
    if not is_file and resource_name_problem(config) is None:
        names = (config, *names)
        config = os.environ.get("DEVHOST_CONFIG") or options.DEFAULT_CONFIG
    for name in names:
        is_part = "/" not in name and not name.endswith((".yaml", ".yml"))
        if problem := None if is_part else resource_name_problem(name):
            raise click.UsageError(f"only one CONFIG can be given, and {problem}")
    return config, names


def _load_all(files: Sequence[str], policy: Policy) -> "list[Loaded]":
    """Load configurations and print all problems; exit with status 1 if one is invalid."""
    from devhost.config.loader import load

    printer.print_warnings(policy.warnings)
    results = [load(file, replace(policy, adds_values=True)) for file in files]
    printer.print_problems([problem for loaded in results for problem in loaded.problems])
    if any(loaded.config is None for loaded in results):
        printer.exit_without_config(files[-1])
    return results


def _compare(
    files: tuple[str, str], names: Sequence[str], policy: Policy, node_name: str, output: str
) -> None:
    from devhost.config.diff import changes

    old, new = files
    if old == new == "-":
        raise click.UsageError("only one of CONFIG and --against can be standard input")
    before, after = (loaded.require() for loaded in _load_all(files, policy))
    differences = {change.name: change for change in changes(before, after, node_name)}
    names = _full_names(names, differences)
    printer.check_names(names, differences, f" for this node in {old} and {new}")
    values: list[dict[str, Any]] = [
        {"name": name, "action": change.action.value, "reasons": list(change.reasons)}
        for name, change in differences.items()
        if not names or name in names
    ]
    if output in ("json", "yaml"):
        printer.print_value(values, output)
        return
    rows = [(row["name"], row["action"], why) for row in values for why in row["reasons"] or ("",)]
    printer.print_table(["RESOURCE", "ACTION", "REASON"], rows)


def _request(text: str) -> tuple[str, str]:
    name, separator, request = text.partition("=")
    if not separator or not request:
        raise click.BadParameter(f"{text!r} is not NAME=N or NAME=ID,ID", param_hint="--allocate")
    return name, request


def _full_names(names: Iterable[str], existing: Collection[str]) -> tuple[str, ...]:
    """Return names of resources, also for the part behind a domain that no other resource has."""
    ends = [name.rpartition("/")[2] for name in existing]
    full = {end: name for end, name in zip(ends, existing, strict=True) if ends.count(end) == 1}
    return tuple(full.get(name, name) for name in names)


def _print(
    resources: Sequence[Resource], values: Sequence[Mapping[str, Any]], *, wide: bool
) -> None:
    """Print resources, with the candidates of their sources and allocations where present."""
    for number, (resource, shown) in enumerate(zip(resources, values, strict=True)):
        if number:
            printer.echo("")
        printer.print_resource(shown, wide=wide)
        if "dra" in shown:
            printer.print_slice_devices(shown["dra"]["slices"])
        elif isinstance(resource.backend, DraNodes):
            printer.echo(f"  by DRA on nodes {', '.join(resource.backend.dra)} (--node-name)")
        for source in shown.get("explain", ()):
            printer.echo(f"  sources[{source['source']}]: {source['summary']}")
            for row in source["candidates"]:
                sign, paths = ("+", ", ".join(row["paths"])) if row["taken"] else ("-", "")
                text = ": ".join(filter(None, (paths, "; ".join(row["reasons"]))))
                printer.echo(f"  {sign} {row['candidate']}  {text}".rstrip())
            if source["other"]:
                printer.echo(f"  and {source['other']} more")
        if allocation := shown.get("allocation"):
            _print_allocation(allocation)


def _print_allocation(allocation: Mapping[str, Any]) -> None:
    """Print what a container would receive."""
    if allocation["error"]:
        printer.echo(f"  allocation: {allocation['error']}")
        return
    ids = ", ".join(allocation["deviceIds"]) or "no devices"
    printer.echo(f"  a container with {ids} receives")
    printer.echo(*(f"    {line}" for line in printer.allocation_lines(allocation)))
    for step in allocation["preStart"]:
        how = "once per pod" if step["every"] == "holder" else "at every start"
        value = step["value"] if isinstance(step["value"], str) else shlex.join(step["value"])
        printer.echo(f"    before the start, {how}: {step['device']}: {step['step']} {value}")
