"""What every mapping of the configuration has in common."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A mapping of the file: immutable, camelCase keys, unknown keys refused.

    Validators are built at first use, most of them within those of `Resource`. The texts below
    the fields are for `devhost.model.schema`, which reads them from the source code itself:
    pydantic would do so at each start.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        defer_build=True,
    )
