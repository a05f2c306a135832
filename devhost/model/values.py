"""Single values of the configuration: the rules for one string or number."""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from devhost import limits
from devhost.model import names
from devhost.model.mapping import Before, Limits, Parsed
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


def _text(check: Callable[[str], str | None], pattern: str) -> Parsed:
    """Validate a string with a function that returns what is wrong with it."""

    def validate(value: object) -> str:
        text = _string(value)
        if problem := check(text):
            raise ValueError(problem)
        return text

    return Parsed(validate, {"type": "string", "pattern": pattern})


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("should be a string")  # noqa: TRY004 (pydantic collects ValueErrors)
    return value


def _template(value: object) -> Template:
    return Template.parse(_string(value))


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


ResourceName = Annotated[str, _text(names.resource_name_problem, names.RESOURCE_NAME_PATTERN)]
HostPath = Annotated[str, _text(names.path_problem, _PATH_PATTERN)]
TemplateText = Annotated[
    Template, Parsed(_template, {"type": "string", "pattern": TEMPLATE_PATTERN})
]
Duration = Annotated[float, Parsed(_duration, _DURATION_SCHEMA)]
Removal = Annotated[float, Parsed(_removal, {"anyOf": [{"const": "never"}, _DURATION_SCHEMA]})]
TopologyChoice = Annotated[
    int | Literal["auto", "none"],
    Parsed(
        _topology,
        {
            "anyOf": [
                {"enum": ["auto", "none"]},
                {"type": "integer", "minimum": 0, "maximum": _NUMA_NODE_MAX},
            ]
        },
    ),
]
Permissions = Annotated[str, _text(_permissions, r"^(?!.*(.).*\1)[rwm]+$")]
Mode = Annotated[str, Limits(pattern=r"^[0-7]{3,4}$")]
OwnerId = Annotated[int, Limits(ge=0, le=0xFFFF_FFFE), Before(_whole)]
FileType = Literal["file", "directory", "char", "block", "socket", "symlink"]
Count = Annotated[int, Limits(ge=0, le=SHARES_MAX), Before(_whole)]
Positive = Annotated[int, Limits(ge=1, le=SHARES_MAX), Before(_whole)]

# Lists in the file are tuples here; a single string is a list with one item.
AsTuple: Final = Limits(strict=False)
NotEmpty: Final = Limits(strict=False, min_length=1)
PathList = Annotated[list[HostPath], Limits(min_length=1)]
Strings = Annotated[
    tuple[str, ...],
    AsTuple,
    Before(listed, str | list[str]),
]
NodeNames = Annotated[
    tuple[str, ...],
    NotEmpty,
    Before(listed, str | Annotated[list[str], Limits(min_length=1)]),
]
Paths = Annotated[
    tuple[HostPath, ...],
    NotEmpty,
    Before(listed, HostPath | PathList),
]
Templates = Annotated[
    tuple[TemplateText, ...],
    NotEmpty,
    Before(
        listed,
        TemplateText | Annotated[list[TemplateText], Limits(min_length=1)],
    ),
]
FileTypes = Annotated[
    tuple[FileType, ...],
    NotEmpty,
    Before(listed, FileType | Annotated[list[FileType], Limits(min_length=1)]),
]
