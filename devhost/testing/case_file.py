"""The file of ``devhost test``: a configuration, hosts, and what is expected of them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from devhost.errors import ConfigError, Problem
from devhost.immutable import immutable
from devhost.loading import wrong_shapes, yamltree
from devhost.loading.loaded import brief, read
from devhost.loading.spelling import did_you_mean
from devhost.loading.syntax import decoded
from devhost.loading.syntax_error import TreeError
from devhost.loading.yamltree import Tree
from devhost.model.mapping import key_of
from devhost.model.values import Count

_Text = Annotated[str, Field(min_length=1)]
# Of a device node: type and number, as `stat` and `mknod` show them.
NODE: Final = r"[cb] [0-9]{1,4}:[0-9]{1,7}"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=key_of)


class Allow(_Model):
    """What the configuration may use, like the values ``allow`` of the chart."""

    paths: list[str] = Field(default=[])
    devices: list[str] = Field(default=[])
    resources: list[str] = Field(default=[])
    cdi: list[str] = Field(default=[])
    annotations: list[str] = Field(default=[])
    exec: bool = False


class Things(_Model):
    """What is on a host, or is added to it.

    Attributes:
        directories: Paths.
        files: Path to content.
        nodes: Path to type and number, such as ``c 188:0``.
        links: Path to target.
        hardware: Devices in the notation of `devhost.testing.hardware`.
    """

    directories: list[_Text] = Field(default=[])
    files: dict[_Text, str] = Field(default={})
    nodes: dict[_Text, Annotated[str, Field(pattern=f"^{NODE}$")]] = Field(default={})
    links: dict[_Text, _Text] = Field(default={})
    hardware: str = ""


class Expected(_Model):
    """What kubelet has of a resource; only what is set is compared.

    Attributes:
        capacity: How many device IDs kubelet has.
        allocatable: How many of them are healthy.
        devices: Their IDs, all of them healthy; or ID to health.
        paths: ID to the host paths of its nodes, for some of the IDs.
        reasons: ID to a part of the reason why it is unhealthy.
        skipped: A candidate that is not offered to a part of the reason.
        error: A part of the failure of a source.
    """

    capacity: Count | None = None
    allocatable: Count | None = None
    devices: list[str] | dict[str, Literal["Healthy", "Unhealthy"]] | None = None
    paths: dict[str, list[str]] = Field(default={})
    reasons: dict[str, _Text] = Field(default={})
    skipped: dict[str, _Text] = Field(default={})
    error: _Text | None = None


class ReceivedDevice(_Model):
    """A device node that a container receives."""

    host_path: _Text
    container_path: _Text
    permissions: _Text = "rw"


class ReceivedMount(_Model):
    """A mount that a container receives."""

    host_path: _Text
    container_path: _Text
    read_only: bool = True


class Received(_Model):
    """What a container receives; only what is set is compared, in any order.

    Attributes:
        env: All environment variables.
        devices: All device nodes; a path alone is the same in the container, read and write.
        mounts: All mounts; a path alone is the same in the container, read-only.
        annotations: All annotations.
        cdi: All CDI devices.
    """

    env: dict[str, str] | None = None
    devices: list[ReceivedDevice | _Text] | None = None
    mounts: list[ReceivedMount | _Text] | None = None
    annotations: dict[str, str] | None = None
    cdi: list[_Text] | None = None


_ACTIONS: Final = ("add", "remove", "unplug", "expect", "allocate", "free", "restartKubelet")


class CaseStep(_Model):
    """One step of a test: exactly one of its actions.

    Attributes:
        add: Put things on the host, or replace them.
        remove: Remove paths; a directory with its content.
        unplug: Remove devices by their names in sysfs, with all that is below them.
        expect: What kubelet has then: resource to numbers, or to the number of healthy devices.
        allocate: Start a container: resource to the number of devices, or to the IDs.
        pod: The name of its pod; by default ``pod-N`` with N counted from 1.
        receives: What the container receives.
        fails: A part of the message with which kubelet rejects the pod.
        free: End a pod.
        restart_kubelet: Restart kubelet.
    """

    add: Things | None = None
    remove: list[_Text] | None = None
    unplug: list[_Text] | None = None
    expect: dict[str, Count | Expected] | None = None
    allocate: dict[str, Annotated[int, Field(ge=1)] | list[_Text]] | None = None
    pod: _Text | None = None
    receives: Received | None = None
    fails: _Text | None = None
    free: _Text | None = None
    restart_kubelet: Literal[True] | None = None

    @property
    def action(self) -> str:
        """The key of what it does."""
        return next(self._actions())

    def _actions(self) -> Iterator[str]:
        set_ = {type(self).model_fields[name].alias for name in self.model_fields_set}
        return (key for key in _ACTIONS if key in set_)

    @model_validator(mode="after")
    def _is_one_action(self) -> "CaseStep":
        found = list(self._actions())
        if len(found) != 1:
            named = f", not {' and '.join(found)}" if found else ""
            raise ValueError(f"should have exactly one of {', '.join(_ACTIONS)}{named}")
        if {} in (self.expect, self.allocate):
            raise ValueError(f"'{found[0]}' needs a resource")
        if self.allocate is None and (self.pod or self.receives or self.fails):
            raise ValueError("'pod', 'receives' and 'fails' belong to 'allocate'")
        if self.receives is not None and self.fails is not None:
            raise ValueError("'receives' and 'fails' exclude each other")
        return self


class Case(_Model):
    """A test: a host, and steps."""

    name: _Text
    host: Things = Things()
    steps: Annotated[list[CaseStep], Field(min_length=1)]


class Cases(_Model):
    """Tests of a configuration.

    Attributes:
        version: The version of this format.
        config: The file of the configuration, relative to this file.
        profile: Which configuration of it, if it is values of the chart with profiles.
        allow: What it may use, besides what such values allow.
        node_name: The value of ``${nodeName}``.
        tests: The tests; each begins with a host and a kubelet of its own.
    """

    version: Literal["v1"]
    config: _Text
    profile: str = ""
    allow: Allow = Allow()
    node_name: _Text = "node"
    tests: Annotated[list[Case], Field(min_length=1)]


_MODELS: Final[dict[str, type[_Model]]] = {
    "allow": Allow,
    "tests": Case,
    "host": Things,
    "add": Things,
    "steps": CaseStep,
    "expect": Expected,
    "receives": Received,
    "devices": ReceivedDevice,
    "mounts": ReceivedMount,
}


@immutable
class CaseFile:
    """A file of tests.

    Attributes:
        file: Its name as the user gave it.
        cases: The content.
        hosts: The line of each test's host.
        lines: The line of each step: by test, then by step.
    """

    file: str
    cases: Cases
    hosts: tuple[int, ...]
    lines: tuple[tuple[int, ...], ...]

    @property
    def config(self) -> Path:
        """The file of the configuration."""
        return Path(os.path.dirname(self.file), self.cases.config)


def load(file: str) -> CaseFile:
    """Read and check a file of tests; ``-`` is standard input.

    Raises:
        ConfigError: It is invalid, or cannot be read.
    """

    def problem(message: str, line: int = 1, column: int = 1, path: str = "") -> Problem:
        return Problem("error", file, line, column, path, brief(message))

    try:
        tree = yamltree.parse(decoded(read(file)))
    except OSError as error:
        raise ConfigError([problem(f"cannot be read: {error.strerror or error}")]) from error
    except TreeError as error:
        raise ConfigError([problem(str(error), error.line, error.column)]) from error
    problems = [
        problem(message, *at, wrong_shapes.shown(path))
        for path, message, at in wrong_shapes.tree_problems(tree)
    ]
    try:
        cases = Cases.model_validate(tree.data)
    except ValidationError as error:
        known = {one.path for one in problems}
        found = (problem(message, *at, path) for path, message, at in _shape(error, tree))
        problems += [one for one in found if one.path not in known]
    if problems:
        raise ConfigError(sorted(problems, key=lambda one: (one.line, one.column)))
    lines = tuple(
        tuple(tree.position(("tests", test, "steps", step)).line for step in range(len(case.steps)))
        for test, case in enumerate(cases.tests)
    )
    hosts = tuple(tree.position(("tests", test, "host")).key[0] for test in range(len(cases.tests)))
    return CaseFile(file, cases, hosts, lines)


def _shape(error: ValidationError, tree: Tree) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield path, message and position of each mistake, the first of those at one place."""
    found = [(tree.known(details["loc"]), details) for details in error.errors(include_url=False)]
    # Of the alternatives that a value may be, the one that was meant has a mistake inside.
    around = {path[:size] for path, _ in found for size in range(len(path))}
    for path, details in found:
        if path in around and len(details["loc"]) > len(path) and details["type"] != "missing":
            continue
        around.add(path)
        position = tree.position(path)
        if details["type"] == "extra_forbidden":
            names = [part for part in path[:-1] if isinstance(part, str)]
            model = next((_MODELS[name] for name in reversed(names) if name in _MODELS), Cases)
            keys = [field.alias or name for name, field in model.model_fields.items()]
            hint = did_you_mean(str(path[-1]), keys) or f"; known keys: {', '.join(keys)}"
            if path == ("resources",):
                hint = "; a configuration is a file of its own, named by 'config'"
            message = f"unknown key '{path[-1]}'{hint}"
            yield wrong_shapes.shown(path), message, position.key
            continue
        message = wrong_shapes.shape_message(details, path, position)
        if details["type"] == "string_pattern_mismatch":
            message = "should be the type and the number of a node, such as 'c 188:0'"
        yield wrong_shapes.shown(path), message, (position.line, position.column)
