"""What the mappings of the configuration have in common."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel


class ConfigModel(BaseModel):
    """A mapping of the file: immutable, with camelCase keys, and no others."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,  # in code
        extra="forbid",
        frozen=True,
        strict=True,
    )


def shorthand(expand: Callable[[Any], object], accepts: Any) -> BeforeValidator:
    """Let a value be written in a shorter form, which a function expands.

    Args:
        expand: Returns the value to validate. A `ValueError` is a problem of the file.
        accepts: What the JSON Schema accepts.
    """
    return BeforeValidator(expand, json_schema_input_type=accepts)


def key_of(model: type[BaseModel], attribute: str) -> str:
    """Return the key of an attribute in the file."""
    return model.model_fields[attribute].alias or attribute


def options_of(value: BaseModel) -> dict[str, Any]:
    """Return the options of a mapping that are not their defaults, by key."""
    return {
        key_of(type(value), name): getattr(value, name)
        for name, field in type(value).model_fields.items()
        if getattr(value, name) != field.get_default(call_default_factory=True)
    }
