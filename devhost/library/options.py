"""The options of a resource as keywords: the same as in YAML, with the same checks."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import yaml
from pydantic.alias_generators import to_camel, to_snake

from devhost.allocation.policy import Policy
from devhost.loading.loader import loads
from devhost.model.config import Resource
from devhost.model.template import Template

ID_VARIABLE: Final = "device.id"  # of a node: the ID of its device
# A source with all variables that a device in code has; it is not used to find devices.
_PLACEHOLDER: Final = "/dev/*"
# Code in the process can do anything, so restricting its options would be pointless.
TRUSTED: Final = Policy(
    ("*",),
    allow_exec=True,
    trusted=True,
    allow_cdi=("*",),
    allow_annotations=("*",),
)


class Options(TypedDict, total=False):
    """The options of a resource but ``sources``: in snake case, with the same values as in YAML."""

    allocate: Mapping[str, Any]
    inject: Literal["deviceSpecs", "cdi"]
    max_devices: int | None
    min_devices: int | None
    overlap: Literal["allow", "deny"]
    replicas: int
    max_per_container: int | None
    prefer: Literal["packed", "spread", "numa", "none"]
    topology: int | Literal["auto", "none"]
    remove_missing_after: str
    health: Mapping[str, Any] | Sequence[Any] | None
    pre_start: Sequence[Mapping[str, Any]]
    node_names: str | Sequence[str] | None


def declared(name: str, options: Mapping[str, Any]) -> tuple[Resource, tuple[str, ...]]:
    """Return the resource with a name and options, and warnings.

    Raises:
        TypeError: There is no such option.
        ValueError: The name or a value is invalid; the message says what would be right.
    """
    known = Options.__annotations__
    for option in options:
        if option not in known:
            raise TypeError(
                f"unknown option {option!r}; known options: interval, {', '.join(known)}"
            )
    values = {to_camel(key): value for key, value in options.items() if value is not None}
    resource = {"name": name, "sources": [_PLACEHOLDER], **values}
    try:
        text = yaml.safe_dump({"version": "v1", "resources": [resource]}, sort_keys=False)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{name}: an option has a value that YAML cannot represent: {error}"
        ) from None
    loaded = loads(text, policy=TRUSTED)
    messages = {
        severity: tuple(
            f"{name}: {_option(problem.path)}: {problem.message}"
            for problem in loaded.problems
            if problem.severity == severity and not problem.path.startswith("resources[0].sources")
        )
        for severity in ("error", "warning")
    }
    if loaded.config is None:
        raise ValueError("\n".join(messages["error"]))
    group = Template.parse(f"${{{ID_VARIABLE}}}")
    return loaded.config.resources[0].model_copy(update={"group": group}), messages["warning"]


def _option(path: str) -> str:
    """Return a path in YAML as a path in the options."""
    option, dot, rest = path.removeprefix("resources[0].").partition(".")
    return to_snake(option) + dot + rest
