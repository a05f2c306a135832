"""``devhost plan``."""

import sys

import click

from devhost.cli import options
from devhost.cli import output as printer


@click.command(
    "plan",
    epilog="Exit status: 0 (no devices is no error), 1 an invalid configuration, a failed "
    "source, an impossible allocation, 2 usage.",
)
@options.config_argument
@click.option(
    "--allocate",
    multiple=True,
    metavar="NAME=N|ID,ID",
    help="Show exactly what a container with so many, or these, devices would receive.",
)
@options.root_option
@options.node_name_option
@options.output_option
@options.trust_options
def command(
    config: str,
    allocate: tuple[str, ...],
    root: str,
    node_name: str,
    output: str,
    allow_paths: tuple[str, ...],
    allow_exec: bool,
) -> None:
    """Show what this host would advertise: devices, health, what was skipped and why."""
    from devhost.discovery.host_files import HostFiles
    from devhost.loading.loader import load
    from devhost.report import report
    from devhost.trust import Policy

    wanted = dict(_wish(text) for text in allocate)
    policy = Policy(allow_paths, allow_exec, enforced=False)
    loaded = load(config, policy)
    printer.print_problems(loaded.problems)
    if loaded.config is None:
        sys.exit(1)
    known = {one.name for one in loaded.config.resources if one.applies_to(node_name)}
    for name in wanted:
        if name not in known:
            printer.fail(f"--allocate: {config} declares no resource {name} for this node")
    files = HostFiles(options.real_root(root))
    reports = report(loaded.config, files, policy, node_name, wanted)
    if output == "json":
        printer.print_json({"resources": [one.as_json() for one in reports]})
    else:
        printer.print_reports(reports)
    sys.exit(1 if any(one.failed for one in reports) else 0)


def _wish(text: str) -> tuple[str, str]:
    name, separator, wish = text.partition("=")
    if not separator or not wish:
        raise click.BadParameter(f"{text!r} is not NAME=N or NAME=ID,ID", param_hint="--allocate")
    return name, wish
