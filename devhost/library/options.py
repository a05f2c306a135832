"""The options of a resource, as keywords: the same as in YAML, and checked by the same code."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import yaml
from pydantic.alias_generators import to_camel, to_snake

from devhost.allocation.policy import Policy
from devhost.loading.loader import loads
from devhost.model.config import Resource
from devhost.model.template import Template

ID_VARIABLE: Final = "device.id"  # of a node: joins the nodes of a device
# Of this kind a device has all variables that code can give; nothing is looked for there.
_PLACEHOLDER: Final = "/dev/*"
# Code may do what it likes in the process; to forbid it to ask for something would be in vain.
TRUSTED: Final = Policy(("*",), allow_exec=True, enforced=False)


class Options(TypedDict, total=False):
    """What stands beside ``sources`` in YAML, in snake case, with values as YAML has them."""

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
    """Return the resource that is declared by a name and options, and warnings.

    Raises:
        TypeError: There is no such option.
        ValueError: The name or a value is wrong; the text says what would be right.
    """
    known = Options.__annotations__
    for option in options:
        if option not in known:
            raise TypeError(f"no option {option!r}; there are interval, {', '.join(known)}")
    values = {to_camel(key): value for key, value in options.items() if value is not None}
    resource = {"name": name, "sources": [_PLACEHOLDER], **values}
    try:
        text = yaml.safe_dump({"version": "v1", "resources": [resource]}, sort_keys=False)
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: an option holds what YAML cannot: {error}") from None
    loaded = loads(text, policy=TRUSTED)
    said = {
        severity: tuple(
            f"{name}: {_option(problem.path)}: {problem.message}"
            for problem in loaded.problems
            if problem.severity == severity and not problem.path.startswith("resources[0].sources")
        )
        for severity in ("error", "warning")
    }
    if loaded.config is None:
        raise ValueError("\n".join(said["error"]))
    group = Template.parse(f"${{{ID_VARIABLE}}}")
    return loaded.config.resources[0].model_copy(update={"group": group}), said["warning"]


def _option(path: str) -> str:
    """Return a place in YAML as the option and what is below it."""
    option, dot, rest = path.removeprefix("resources[0].").partition(".")
    return to_snake(option) + dot + rest
