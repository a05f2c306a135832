"""The JSON Schema of the configuration, generated from the model, for editors."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from devhost.model.config import Config, Probe, Step
from devhost.model.hardware_sources import PciSelector, UsbSelector
from devhost.model.sources import Source, Static
from devhost.model.values import key_of


class _Generator(GenerateJsonSchema):
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
    for definition in definitions.values():
        for option in definition["properties"].values():
            if "patternProperties" in option:
                option["additionalProperties"] = False
    for name, selector in (("Usb", UsbSelector), ("Pci", PciSelector)):
        keys = [key_of(selector, option) for option in selector.model_fields]
        definitions[name]["anyOf"] = [{"required": [key]} for key in keys]
    for name in ("UsbSelector", "PciSelector", "SysfsSelector"):  # of what is left out
        definitions[name]["minProperties"] = 1
    for model in (Source, Static, Probe, Step):
        keys = [key_of(model, option) for option in model.one_of]
        definitions[model.__name__]["oneOf"] = [{"required": [key]} for key in keys]
    return schema
