"""The JSON Schema of the configuration, generated from the model, for editors."""

import ast
import inspect
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from devhost.loading.shapes import adapter
from devhost.model.config import ACTIONS, Config
from devhost.model.mapping import key_of
from devhost.model.sources import KINDS


class _Generator(GenerateJsonSchema):
    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Add the docstrings of the fields as descriptions."""
        shown = super().dataclass_schema(schema)
        for key, text in _descriptions(schema["cls"]).items():
            shown["properties"][key]["description"] = text
        return shown

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Leave out null: in the file, a key without a value is an error."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Leave out defaults, which are parsed values that a file cannot contain."""
        return self.generate_inner(schema["schema"])


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    schema = adapter(Config).json_schema(schema_generator=_Generator, mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "devhost configuration"
    # For YAML anchors.
    schema["patternProperties"] = {"^x-": {}}
    definitions = schema["$defs"]
    definitions["Source"]["oneOf"] = _one_of(*KINDS)
    definitions["Static"]["oneOf"] = _one_of("count", "ids")
    definitions["Probe"]["oneOf"] = _one_of("file", "exec")
    definitions["Step"]["oneOf"] = _one_of(*ACTIONS)
    return schema


def _descriptions(model: type) -> dict[str, str]:
    """Return the docstrings of a model's fields, by the fields' keys in the file."""
    (declared,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(declared, ast.ClassDef)  # noqa: S101 (it is a class)
    base = model.__base__
    found: dict[str, str] = {}
    if is_dataclass(base):
        found |= _descriptions(base)
    for field, below in pairwise(declared.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[key_of(name)] = inspect.cleandoc(text)
    return found


def _one_of(*keys: str) -> list[dict[str, Any]]:
    return [{"required": [key]} for key in keys]
