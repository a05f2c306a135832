"""Warnings of what a configuration uses and the chart's values beside it do not give it."""

from collections.abc import Iterable, Iterator

from devhost.config.chart_values import InstanceValues, fixed_directory
from devhost.config.yaml_tree import CheckProblem, Path, warning
from devhost.model.config import Probe, Resource
from devhost.model.sources import Directory, Glob


def check(
    resources: Iterable[tuple[Path, Resource]], values: InstanceValues
) -> Iterator[CheckProblem]:
    """Yield what resources need from the values of their instance."""
    for base, resource in resources:
        yield from (problem.below(base) for problem in _check(resource, values))


def _check(resource: Resource, values: InstanceValues) -> Iterator[CheckProblem]:
    if resource.inject == "cdi" and not values.cdi.enabled:
        yield warning(("inject",), "needs cdi.enabled in the values")
    for index, step in enumerate(resource.pre_start):
        if step.mode is not None and not values.device_access.writable:
            message = "changing a node's mode needs deviceAccess.writable in the values"
            yield warning(("preStart", index, "mode"), message, on_key=True)
    opens_devices = any(isinstance(check, str) for check in resource.checks)
    if opens_devices and not values.device_access.privileged:
        message = "the result is unknown without deviceAccess.privileged in the values"
        yield warning(("health",), message, on_key=True)
    for path, used in _used_paths(resource):
        if not values.sees(directory := fixed_directory(used)):
            yield warning(path, f"{directory} is not mounted; add it to hostPaths in the values")


def _used_paths(resource: Resource) -> Iterator[tuple[Path, str]]:
    """Yield the host paths where a resource looks for something."""
    for index, source in enumerate(resource.sources):
        match source.kind:
            case Directory(path=directory):
                yield ("sources", index, "directory", "path"), directory
            case Glob(paths=globs):
                for number, glob in enumerate(globs):
                    yield ("sources", index, "glob", "paths", number), f"{glob}*"
    for index, step in enumerate(resource.pre_start):
        if step.wait_for is not None:
            yield ("preStart", index, "waitFor"), f"{step.wait_for}*"
    for index, probe in enumerate(resource.checks):
        if isinstance(probe, Probe) and probe.file is not None:
            yield ("health", "checks", index, "file", "path"), f"{probe.file.path}*"
