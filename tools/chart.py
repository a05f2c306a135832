"""Generate files from the chart's values and from the configuration's model.

    python -m tools.chart

writes values.schema.json, and the table of values in the chart's README.md. Types and
descriptions are those of values.yaml; `config` has the schema of the configuration file.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from devhost.allocation.policy import DEVICE_PATTERN, WILD_LINK_PATTERN
from devhost.config.json_schema import json_schema
from devhost.model.names import RESOURCE_NAME_PATTERN, UNFIT_NAME_PATTERN
from devhost.model.values import AN_RE2_PATTERN

CHART: Final = Path(__file__).resolve().parents[1] / "deploy" / "helm" / "devhost"
SCHEMA: Final = CHART / "values.schema.json"
README: Final = CHART / "README.md"
_TABLE: Final = re.compile(r"(<!-- values: .*? -->\n).*(<!-- end of values -->)", re.DOTALL)

# The schemas of values whose defaults do not show their type.
_HOST_PATH: Final = {"type": "string", "pattern": "^/."}
_PORT: Final = {"type": "integer", "minimum": 1024, "maximum": 65535}
_TEXTS: Final = {"type": "array", "items": {"type": "string", "minLength": 1}}
_OBJECTS: Final = {"type": "array", "items": {"type": "object"}}
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = {"type": "string", "pattern": f"^({_LABEL})?$"}
_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
# In what a profile merges into the chart's values, null removes a key.
_REMOVABLE: Final = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
_COUNT: Final = {"type": ["integer", "null"], "minimum": 1}
_TIMES: Final = {
    "initialDelaySeconds": _COUNT | {"minimum": 0},
    **dict.fromkeys(("periodSeconds", "timeoutSeconds", "failureThreshold"), _COUNT),
}


def _map(properties: Mapping[str, Any], kind: str | list[str] = "object") -> dict[str, Any]:
    return {"type": kind, "additionalProperties": False, "properties": properties}


def _probe(option: str) -> dict[str, Any]:
    return _map(_TIMES | {option: _COUNT}, ["object", "null"])


def _list_of(pattern: str, expected: str, unless: str = "") -> dict[str, Any]:
    """Return the schema of a list of words with a pattern, and without another."""
    rule = {"pattern": pattern} | ({"not": {"pattern": unless}} if unless else {})
    return {"type": "array", "items": {"type": "string"} | _expected(rule, expected)}


def _expected(rule: Mapping[str, Any], expected: str) -> dict[str, Any]:
    """Return a rule for which Helm prints what is expected, not the rule."""
    return {"if": rule, "else": {"const": expected}}


_TOLD: Final[dict[str, dict[str, Any]]] = {
    "hostPaths": {"type": "array", "items": _HOST_PATH, "uniqueItems": True},
    # The variable that they become is split at blanks.
    "allow.paths": _list_of(r"^[/*?\[]\S*$", "a glob of absolute paths, without blanks"),
    **dict.fromkeys(
        ("allow.resources", "dra.deviceClasses.extra"),
        _list_of(RESOURCE_NAME_PATTERN, "domain/name", UNFIT_NAME_PATTERN),
    ),
    "allow.devices": _list_of(
        rf"^([*?\[]\S*/\S*|/\S*|{DEVICE_PATTERN}|[^\s/:*?\[]+)$",
        "a class, vendor:product, what a device is, or a glob of absolute paths",
        WILD_LINK_PATTERN,
    ),
    **dict.fromkeys(("allow.cdi", "allow.annotations"), _list_of(r"^\S+$", "one word")),
    "stateDir": {"type": "string", "pattern": "^(/.+)?$"},
    "cdi.dir": _HOST_PATH,
    "cdi.specDirs": {"type": "array", "items": _HOST_PATH, "uniqueItems": True},
    "dra.driver": {"type": "string", "pattern": rf"^({_LABEL}(\.{_LABEL})*)?$", "maxLength": 63},
    "dra.backend": {"enum": ["devicePlugin", "dra"]},
    "kubelet.rootDir": _HOST_PATH,
    "log.level": {"enum": ["debug", "info", "warning", "error"]},
    "log.format": {"enum": ["json", "text"]},
    "image.repository": {"type": "string", "minLength": 1},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "imagePullSecrets": _OBJECTS,
    "nameOverride": _NAME,
    "fullnameOverride": _NAME,
    "serviceAccount.name": {"type": "string", "pattern": rf"^({_LABEL}(\.{_LABEL})*)?$"},
    "serviceAccount.annotations": _STRINGS,
    "podAnnotations": _REMOVABLE,
    "podLabels": _REMOVABLE,
    "tolerations": _OBJECTS,
    "nodeSelector": _REMOVABLE,
    "updateStrategy": _map(
        {
            "type": {"enum": ["RollingUpdate", "OnDelete"]},
            "rollingUpdate": {"type": ["object", "null"]},
        }
    ),
    "terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
    "probes": _map(
        {
            "startup": _probe("terminationGracePeriodSeconds"),
            "liveness": _probe("terminationGracePeriodSeconds"),
            "readiness": _probe("successThreshold"),
        }
    ),
    "command": _TEXTS,
    "args": _TEXTS,
    "extraArgs": _TEXTS,
    "extraEnv": _OBJECTS,
    "extraVolumes": _OBJECTS,
    "extraVolumeMounts": _OBJECTS,
    "http.port": _PORT,
    "http.statusPort": _PORT,
    "metrics.podMonitor.interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
    "metrics.podMonitor.labels": _STRINGS,
    "metrics.podMonitor.relabelings": _OBJECTS,
    "metrics.prometheusRule.labels": _STRINGS,
    "metrics.prometheusRule.alertLabels": _STRINGS,
    "metrics.dashboard.labels": _STRINGS,
    "metrics.dashboard.annotations": _STRINGS,
    "networkPolicy.from": _OBJECTS,
}
# The values that a profile can override: those of one DaemonSet.
_OF_A_PROFILE: Final = (
    *("hostPaths", "hostRoot", "allow", "deviceAccess", "cdi", "kubelet", "log"),
    *("podAnnotations", "podLabels", "podSecurityContext", "securityContext", "resources"),
    *("priorityClassName", "tolerations", "nodeSelector", "affinity", "updateStrategy"),
    *("terminationGracePeriodSeconds", "probes"),
    *("command", "args", "extraArgs", "extraEnv", "extraVolumes", "extraVolumeMounts"),
)


@dataclass(frozen=True, slots=True)
class Value:
    """A key of values.yaml.

    Attributes:
        path: Its path, joined by dots.
        section: The heading above it.
        description: The comment above it; ``None`` if there is none.
        default: Its value.
        children: The keys below it that have comments.
    """

    path: str
    section: str
    description: str | None
    default: Any
    children: "tuple[Value, ...]"


def values() -> tuple[Value, ...]:
    """Read the chart's values with their comments."""
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return tuple(_read(root, yaml.safe_load(text), text.splitlines(), ""))


def _read(
    node: yaml.MappingNode, defaults: Mapping[str, Any], lines: list[str], prefix: str
) -> Iterator[Value]:
    for key, inner in node.value:
        children: tuple[Value, ...] = ()
        default = defaults[key.value]
        path = f"{prefix}{key.value}"
        if isinstance(inner, yaml.MappingNode):
            read = tuple(_read(inner, default, lines, f"{path}."))
            children = read if any(child.description or child.children for child in read) else ()
        line = key.start_mark.line
        yield Value(path, _section(lines[:line]), _comment(lines[:line]), default, children)


def _comment(above: list[str]) -> str | None:
    comment = itertools.takewhile(lambda line: line.lstrip().startswith("# "), reversed(above))
    return " ".join(line.lstrip(" #") for line in reversed(list(comment))) or None


def _section(above: list[str]) -> str:
    return next((line[3:] for line in reversed(above) if line.startswith("## ")), "")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the chart's values."""
    config = json_schema()
    config = _for_helm(config, config["$defs"])
    definitions = config.pop("$defs")
    config.pop("$schema")
    config["properties"]["existingConfigMap"] = {
        "description": "A ConfigMap with the key config.yaml.",
        "type": "string",
    }
    definitions["WholeConfig"] = config
    definitions["Config"] = config | {"required": []}
    properties = {value.path: _schema_of(value) for value in values()}
    properties["config"] = {"$ref": "#/$defs/Config"}
    properties["profiles"]["items"] = _profile(properties)
    properties["global"] = {"description": "For charts that this one is part of.", "type": "object"}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart devhost",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "$defs": definitions,
    }


def _schema_of(value: Value) -> dict[str, Any]:
    described = {"description": value.description} if value.description else {}
    if value.path in _TOLD:
        return described | _TOLD[value.path]
    if value.children:
        properties = {child.path.rpartition(".")[2]: _schema_of(child) for child in value.children}
        return described | _map(properties)
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return described | {"type": kinds[type(value.default)]}


def _profile(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A profile has no defaults to be merged with: its configuration is whole, or a ConfigMap's."""
    named = {"type": "string", "minLength": 1}
    config = {
        "if": {"required": ["existingConfigMap"], "properties": {"existingConfigMap": named}},
        "then": {"$ref": "#/$defs/Config"},
        "else": {"$ref": "#/$defs/WholeConfig"},
    }
    own_values: dict[str, Any] = {
        "name": {
            "description": "Ends the names of what is made for the profile.",
            "type": "string",
            **_expected(
                {
                    "pattern": "^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$",
                    "not": {"enum": ["default", "validation"]},
                },
                "at most 20 lower-case letters, digits and '-', not default or validation",
            ),
        },
        "config": config,
    }
    own_values |= {name: properties[name] for name in _OF_A_PROFILE}
    chosen = {"minProperties": 1, "not": {"additionalProperties": {"type": "null"}}}
    return _map(own_values) | {
        "required": ["name", "config"],
        "anyOf": [
            {"required": [key], "properties": {key: chosen}} for key in ("nodeSelector", "affinity")
        ],
    }


def _for_helm(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema without titles, of which Helm says in one line what is wrong with a value.

    Of `anyOf` and `oneOf` it would print what is wrong with each choice, of a pattern only that.
    """
    if isinstance(node, list):
        return [_for_helm(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if choices := _choices(node):
        rest = {key: item for key, item in node.items() if key not in (*_UNIONS, "title")}
        return rest | _by_type(choices, definitions)
    kept = {
        key: _for_helm(item, definitions)
        for key, item in node.items()
        if not (key == "title" and isinstance(item, str))
    }
    for union, number in (("oneOf", "exactly one"), ("anyOf", "at least one")):  # of keys
        if union in kept:
            keys = [choice["required"][0] for choice in kept[union]]
            expected = f"a mapping with {number} of {', '.join(keys)}"
            kept |= _expected({union: kept.pop(union)}, expected)
    if (expected := kept.pop("patternErrorMessage", "")) and "pattern" in kept:
        rules = {key: kept.pop(key) for key in ("pattern", "not") if key in kept}
        kept |= _expected(rules, expected)
    if expected == AN_RE2_PATTERN:  # Go's syntax is that of RE2
        kept["format"] = "regex"
    return kept


_UNIONS: Final = ("anyOf", "oneOf", "discriminator")
_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}


def _choices(node: Mapping[str, Any]) -> list[Any]:
    """Return the choices of a union, also those of unions in it; none of another schema."""
    choices = node.get("anyOf") or node.get("oneOf") or []
    if any("required" in choice for choice in choices):
        return []
    return [inner for choice in choices for inner in _choices(choice) or [choice]]


def _by_type(choices: Sequence[Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule for a value by its type."""
    by_type: dict[str, list[Any]] = {}
    for choice in choices:
        kind = "object" if "$ref" in choice else choice.get("type", "string")
        by_type.setdefault(kind, []).append(choice)
    schema: dict[str, Any] = {}
    for kind, of_type in by_type.items():
        first, *further = [_for_helm(choice, definitions) for choice in of_type]
        rule = first
        if further and kind == "object":  # a mapping of which all keys are those of the first
            keys = [*definitions[first["$ref"].rpartition("/")[2]]["properties"]]
            is_first = {"propertyNames": {"enum": keys}, "minProperties": 1}
            rule = {"if": is_first, "then": first, "else": further[0]}
        elif further:  # words, and texts with a pattern
            words = [str(word) for choice in of_type for word in _words(choice)]
            rule = _expected({"anyOf": of_type}, f"{' or '.join(words)}, or a duration such as 5m")
        schema = {"if": {"type": kind}, "then": rule, **({"else": schema} if schema else {})}
    return {"type": [*by_type], **schema}


def _words(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema lists."""
    return [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]


# Sections of values whose meaning is this chart's own; the others are as in most charts.
_OWN: Final = ("Configuration", "Permissions of devhost")


def table() -> str:
    """Return the README's lists of values, with the first sentence of each description."""
    rows: dict[str, list[str]] = {}
    for value in _rows(values()):
        if value.section not in _OWN:
            continue
        default = json.dumps(value.default, ensure_ascii=False)
        text = (value.description or "").removesuffix(".").split(". ")[0]
        row = f"- `{value.path}` (`{default}`): {text}"
        rows.setdefault(value.section, []).append(row)
    return "\n".join(f"\n### {name}\n\n" + "\n".join(rows[name]) for name in rows) + "\n"


def _rows(chart_values: tuple[Value, ...]) -> Iterator[Value]:
    for value in chart_values:
        if value.children:
            yield from _rows(value.children)
        else:
            yield value


def readme(text: str) -> str:
    """Return a README with the tables updated."""
    made, count = _TABLE.subn(lambda match: f"{match[1]}{table()}\n{match[2]}", text)
    if count != 1:
        raise ValueError(f"{README} must have one place for the values")
    return made


def schema_text() -> str:
    """Return the text of values.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
    README.write_text(readme(README.read_text()))
