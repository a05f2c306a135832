"""What every mapping of the configuration has in common."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A mapping of the file: immutable, camelCase keys, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        use_attribute_docstrings=True,
    )
