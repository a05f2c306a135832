"""The JSON Schema of the configuration, generated from the model, for editors."""

import ast
import inspect
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from devhost.model.base import ConfigModel, key_of
from devhost.model.config import ACTIONS, Config
from devhost.model.sources import KINDS


class _Generator(GenerateJsonSchema):
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Add the docstrings of the fields as descriptions.

        Not by `use_attribute_docstrings`, which reads the sources in every process: 40 ms.
        """
        shown, model = super().model_schema(schema), schema["cls"]
        for key, text in _descriptions(model).items():
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
    schema = Config.model_json_schema(schema_generator=_Generator, mode="validation")
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


def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields, by the fields' keys in the file."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__[: model.__mro__.index(ConfigModel)]):
        (declared,) = ast.parse(inspect.getsource(one)).body
        assert isinstance(declared, ast.ClassDef)  # noqa: S101 (it is a class)
        for field, below in pairwise(declared.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[key_of(model, name)] = inspect.cleandoc(text)
    return found


def _one_of(*keys: str) -> list[dict[str, Any]]:
    return [{"required": [key]} for key in keys]
