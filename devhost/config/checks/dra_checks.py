"""Checks of what Dynamic Resource Allocation cannot do, or does otherwise than a device plugin."""

from collections.abc import Iterator
from typing import Final

from devhost.config.yaml_tree import CheckProblem, error
from devhost.model.config import Resource
from devhost.model.limits import ATTRIBUTE_BYTES_MAX

_ANNOTATIONS: Final = "DRA has no way to annotate a container: use env, or `backend: devicePlugin`"
_EVERY_START: Final = (
    "DRA prepares devices for a pod, not at each start of a container: use `every: holder`, or "
    "`backend: devicePlugin`"
)
_EVICT: Final = (
    "only DRA evicts pods: write `backend: dra`; by a device plugin, the status of the pod and an "
    "alert tell of a lost device"
)


def check_dra(resource: Resource) -> Iterator[CheckProblem]:
    """Yield what a resource asks for that DRA, which offers it on some nodes, does not do."""
    if not resource.evict and "evict_after" in resource.model_fields_set:
        yield error(("evictAfter",), "has no effect without `evict: true`", on_key=True)
    if not resource.uses_dra():
        if resource.evict:
            yield error(("evict",), _EVICT, on_key=True)
        return
    if len(resource.name.encode()) > ATTRIBUTE_BYTES_MAX:
        yield error(("name",), f"longer than {ATTRIBUTE_BYTES_MAX} bytes, the most with DRA")
    for key in resource.allocate.annotations:
        yield error(("allocate", "annotations", key), _ANNOTATIONS, on_key=True)
    for index, step in enumerate(resource.pre_start):
        if step.repeat == "start":
            yield error(("preStart", index, "every"), _EVERY_START)
