"""What every mapping of the configuration has in common."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A mapping of the file: immutable, camelCase keys, unknown keys refused.

    Built when it is used first: of most, the building is done within that of `Resource`. What
    the texts below the fields say is for `devhost.model.schema`, which reads them itself: here
    they would cost each start a look at the source code.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        defer_build=True,
    )
