"""What a CDI spec can hold: it is written before it is known what a container gets together."""

from collections.abc import Iterator

from devhost.allocation.variables import LATE_VARIABLES
from devhost.loading.finding import Finding
from devhost.loading.template_checks import path_templates
from devhost.loading.yamltree import Path
from devhost.model.config import Resource


def check_cdi(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield what does not go together with the way in which devices are injected."""
    base = (*path, "allocate")
    if resource.inject == "cdi":
        for where, template in path_templates(base, resource):
            for name in sorted(LATE_VARIABLES & template.names):
                message = (
                    f"${{{name}}} is not known when the CDI spec is written: "
                    "use a variable of the device, or `inject: deviceSpecs`"
                )
                yield "error", where, message, False
        return
    for index, node in enumerate(resource.allocate.devices or ()):
        for option, value in (("uid", node.uid), ("gid", node.gid), ("mode", node.mode)):
            if value is not None:
                message = "takes effect with `inject: cdi` only: kubelet passes the node as it is"
                yield "error", (*base, "devices", index, option), message, True
