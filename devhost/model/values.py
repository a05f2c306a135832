"""Single values of the configuration: the rules for one string or number."""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from devhost import limits
from devhost.model import names
from devhost.model.base import shorthand
from devhost.model.template import TEMPLATE_PATTERN, Template

# The default limit of a resource that finds devices on the host: encoding the list of more would
# delay kubelet's calls for other resources by more than a quarter of a second.
DEVICES_MAX: Final = 10_000
SHARES_MAX: Final = limits.DEVICE_IDS_MAX  # of a resource: devices times replicas

_NUMA_NODE_MAX: Final = 1023  # Linux's MAX_NUMNODES, at most 1 << 10; kubelet takes 64 bits

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_OTHER_DURATION: Final = re.compile(
    r"([0-9]{1,9}) *(?:(d|h|m|s|ms)(?:ay|our|in(?:ute)?|ec(?:ond)?|illis(?:econd)?)?s?)?"
)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$",
}
_PATH_PATTERN: Final = r"^/(?!(.*/)?\.\.(/|$))[^\u0000-\u001f\u007f]*$"


def _refuses(problem_of: Callable[[str], str | None]) -> AfterValidator:
    """Validate a string with a function that returns what is wrong with it."""

    def validate(text: str) -> str:
        if problem := problem_of(text):
            raise ValueError(problem)
        return text

    return AfterValidator(validate)


def _matching(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


def _template(value: object) -> Template:
    if isinstance(value, Template):  # in code
        return value
    if not isinstance(value, str):
        raise ValueError("should be a string")  # noqa: TRY004 (pydantic collects ValueErrors)
    return Template.parse(value)


def _duration(value: object) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        hint = _duration_meant(value)
        raise ValueError(
            f"should be a duration with a unit (ms, s, m or h), such as {hint or '30s'}"
        )
    return float(match[1]) * _SECONDS[match[2]]


def _duration_meant(value: object) -> str | None:
    """Return the duration that another form of it means."""
    match = _OTHER_DURATION.fullmatch(str(value).lower())
    if match is None:
        return None
    if match[2] == "d":
        return f"{int(match[1]) * 24}h"
    return f"{match[1]}{match[2] or 's'}"


def _whole(value: object) -> object:
    if isinstance(value, float):
        raise ValueError("should be an integer in plain digits, such as 10")  # noqa: TRY004 (as above)
    return value


def _removal(value: object) -> float:
    if value == "never":
        return math.inf
    try:
        return _duration(value)
    except ValueError:
        hint = _duration_meant(value)
        raise ValueError(
            f"should be never, or a duration with a unit (ms, s, m or h), such as {hint or '5m'}"
        ) from None


def _topology(value: object) -> int | Literal["auto", "none"]:
    if value == "auto" or value == "none":  # noqa: PLR1714 (narrows the type)
        return value
    if type(value) is int and 0 <= value <= _NUMA_NODE_MAX:
        return value
    raise ValueError("should be auto, none or the number of a NUMA node")


def _permissions(value: str) -> str | None:
    if value and len(value) == len(set(value) & set("rwm")):
        return None
    meant = {
        "ro": "r",
        "rwx": "rw",
        "read-write": "rw",
        "read": "r",
        "write": "w",
        "read-only": "r",
    }.get(value)
    hint = f"; write {meant}" if meant else ""
    return f"{value!r} should be one or more of the letters r (read), w (write), m (mknod){hint}"


def listed(value: object) -> object:
    """Return a single string as a list."""
    return [value] if isinstance(value, str) else value


def main_option(key: str) -> Callable[[object], object]:
    """Return a function that turns a scalar or list into ``{key: …}``."""
    return lambda value: value if isinstance(value, dict) else {key: value}


ResourceName = Annotated[
    str, _refuses(names.resource_name_problem), _matching(names.RESOURCE_NAME_PATTERN)
]
HostPath = Annotated[str, _refuses(names.path_problem), _matching(_PATH_PATTERN)]
TemplateText = Annotated[Template, PlainValidator(_template), _matching(TEMPLATE_PATTERN)]
Duration = Annotated[float, PlainValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]
Removal = Annotated[
    float,
    PlainValidator(_removal),
    WithJsonSchema({"anyOf": [{"const": "never"}, _DURATION_SCHEMA]}),
]
TopologyChoice = Annotated[
    int | Literal["auto", "none"],
    PlainValidator(_topology),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["auto", "none"]},
                {"type": "integer", "minimum": 0, "maximum": _NUMA_NODE_MAX},
            ]
        }
    ),
]
Permissions = Annotated[str, _refuses(_permissions), _matching(r"^(?!.*(.).*\1)[rwm]+$")]
Mode = Annotated[str, Field(pattern=r"^[0-7]{3,4}$")]
OwnerId = Annotated[int, Field(ge=0, le=0xFFFF_FFFE), BeforeValidator(_whole)]
FileType = Literal["file", "directory", "char", "block", "socket", "symlink"]
Count = Annotated[int, Field(ge=0, le=SHARES_MAX), BeforeValidator(_whole)]
Positive = Annotated[int, Field(ge=1, le=SHARES_MAX), BeforeValidator(_whole)]

# Lists in the file are tuples here; a single string is a list with one item.
AsTuple: Final = Field(strict=False)
NotEmpty: Final = Field(strict=False, min_length=1)
PathList = Annotated[list[HostPath], Field(min_length=1)]
Strings = Annotated[tuple[str, ...], AsTuple, shorthand(listed, str | list[str])]
NodeNames = Annotated[
    tuple[str, ...], NotEmpty, shorthand(listed, str | Annotated[list[str], Field(min_length=1)])
]
Paths = Annotated[tuple[HostPath, ...], NotEmpty, shorthand(listed, HostPath | PathList)]
Templates = Annotated[
    tuple[TemplateText, ...],
    NotEmpty,
    shorthand(listed, TemplateText | Annotated[list[TemplateText], Field(min_length=1)]),
]
FileTypes = Annotated[
    tuple[FileType, ...],
    NotEmpty,
    shorthand(listed, FileType | Annotated[list[FileType], Field(min_length=1)]),
]
