"""Names that need a flag: those that are known without a device; the others are known at a scan."""

from collections.abc import Iterator

from devhost.allocation import name_policy
from devhost.allocation.policy import Policy
from devhost.errors import Severity
from devhost.loading.collision_checks import Entries
from devhost.loading.yamltree import Finding, Path
from devhost.model.config import Resource


def check_names(
    path: Path, resource: Resource, entries: Entries, policy: Policy
) -> Iterator[Finding]:
    """Yield the names of a resource, and of what it gives to containers, that need a flag."""
    severity: Severity = "error" if policy.enforced else "warning"
    if reason := name_policy.resource_refusal(policy, resource.name):
        yield severity, (*path, "name"), reason, False
    for where, rule in entries:
        if rule.key.names <= {"resource"}:
            name = rule.key.render({"resource": resource.name})
            if reason := name_policy.refusal(policy, resource.name, rule.target, name):
                yield severity, where, reason, rule.target != "cdi"
        elif rule.target == "cdi" and not policy.allow_cdi:
            yield severity, where, "CDI devices need --allow-cdi 'GLOB'", False
