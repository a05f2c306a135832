"""``devhost deviceclasses``: what a cluster needs for resources that DRA offers."""

import json
from collections.abc import Sequence
from typing import Any

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.model.names import driver_name_problem


@click.command(
    "deviceclasses", epilog="Exit status: 0 success, 1 invalid configuration, 2 usage error."
)
@options.config_argument
@options.option(
    "--dra-driver",
    "Name of a driver that offers the resources, as `run` has it: of the chart, the DaemonSet's. "
    "Repeatable, for classes of the devices of several drivers. Default: devhost.",
    default=["devhost"],
    multiple=True,
    metavar="NAME",
    callback=options.refuses(driver_name_problem),
)
def command(config: str, dra_driver: Sequence[str]) -> None:
    """Print a DeviceClass for each resource with `backend: dra`, as YAML for kubectl.

    By the class, pods that request the resource by its name get a device from DRA. The chart
    creates these classes itself; this is for those without Helm, and for a resource that is added
    to a ConfigMap. CONFIG may also be values of the chart.

    Example: `devhost deviceclasses first.yaml | kubectl apply -f -`
    """
    from devhost.allocation.policy import Policy
    from devhost.config.loader import load_all

    loaded = load_all(config, Policy(dra=True, adds_values=True))
    problems = [problem for part in loaded for problem in part.problems]
    printer.print_problems([problem for problem in problems if problem.severity == "error"])
    if any(part.config is None for part in loaded):
        printer.exit_without_config(config)
    resources = [resource for part in loaded for resource in part.require().resources]
    names = dict.fromkeys(resource.name for resource in resources if resource.uses_dra())
    for name in names:
        printer.echo("---")
        printer.print_value(device_class(name, dra_driver), "yaml")
    if not names:
        printer.note("devhost: no resource has `backend: dra`")


def device_class(resource: str, drivers: Sequence[str]) -> dict[str, Any]:
    """Return the class of a resource that these drivers offer."""
    from devhost.backends.dra.pool import plain_name

    # Of several drivers, each has the attribute under its own name. An error of the expression, as
    # for a device without the attribute, would end the scheduling of every pod that it concerns.
    listed = json.dumps(list(drivers), separators=(",", ":"))
    attribute = 'device.attributes[device.driver].?resource.orValue("")'
    expression = f'device.driver in {listed} && {attribute} == "{resource}"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"{plain_name(resource)}.{resource.partition('/')[0]}"},
        "spec": {
            "extendedResourceName": resource,
            "selectors": [{"cel": {"expression": expression}}],
        },
    }
