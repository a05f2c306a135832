"""The base class of the configuration's mappings."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A mapping of the file: immutable, with camelCase keys, without unknown keys.

    Validators are built on first use, most of them together with `Resource`. The docstrings of
    the fields are read by `devhost.model.schema`: pydantic would parse the source at every start.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        defer_build=True,
    )
