"""Types of the mappings, strings and numbers of a configuration; one rule for each value."""

import math
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from devhost.model import limits, names, pattern
from devhost.model.template import TEMPLATE_PATTERN, VARIABLE_PATTERN, Template

# The default limit of a resource that finds devices on the host: encoding the list of more would
# delay kubelet's calls for other resources by more than a quarter of a second.
DEVICES_MAX: Final = 10_000
SHARES_MAX: Final = limits.DEVICE_IDS_MAX  # of a resource: devices times replicas
NUMA_NODE_MAX: Final = 1023  # Linux's MAX_NUMNODES, at most 1 << 10; kubelet takes 64 bits
PRE_START_MAX_S: Final = 28.0  # kubelet's timeout is 30 s (pkg/kubelet/cm/devicemanager)

_INTERVAL_MIN_S: Final = 0.1
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PATTERN: Final = r"^([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)$"
_DURATION_SCHEMA: Final[dict[str, Any]] = {"type": "string", "pattern": _DURATION_PATTERN}
_A_DURATION: Final = "a duration with a unit (ms, s, m or h), such as 30s"
AN_RE2_PATTERN: Final = "an RE2 pattern for the path below /dev"
_A_PATH: Final = "an absolute path without .."
# What paths, as they are or as templates, cannot have: '..', control characters.
_NO_PATH: Final = r"(^|/)\.\.(/|$)|[\x00-\x1f\x7f]"
# A template with a path: one that begins with a variable may be absolute.
_PATH_TEMPLATE: Final = rf"^(/|{VARIABLE_PATTERN})([^$]|\$\$|{VARIABLE_PATTERN})*$"


class ConfigModel(BaseModel):
    """A mapping of the file: immutable, with camelCase keys, and no others.

    Attributes:
        one_of: The attributes of which it needs exactly one.
        main: The attribute that a scalar or a list stands for.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )
    one_of: ClassVar[tuple[str, ...]] = ()
    main: ClassVar[str] = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        mapping = handler(source)
        if not cls.main:
            return mapping
        key, option = key_of(cls, cls.main), cls.model_fields[cls.main].rebuild_annotation()
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, dict) else {key: value},
            mapping,
            json_schema_input_schema=core_schema.union_schema(
                [handler.generate_schema(option), mapping]
            ),
        )

    @model_validator(mode="after")
    def _check_one_of(self) -> Self:
        keys = {name: key_of(type(self), name) for name in self.one_of}
        present = [key for name, key in keys.items() if getattr(self, name) is not None]
        if self.one_of and len(present) != 1:
            excess = f", not {' and '.join(present)}" if present else ""
            raise ValueError(f"needs exactly one of {', '.join(keys.values())}{excess}")
        return self


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


def shorthand(expand: Callable[[Any], object], accepts: Any) -> BeforeValidator:
    """Return a validator that expands a shorter form; `accepts` is for the JSON Schema."""
    return BeforeValidator(expand, json_schema_input_type=accepts)


class _Listed:
    """Validates an item that is not in a list like a list with it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema: Any = handler(source)
        (item,) = schema["items_schema"]
        listed = core_schema.list_schema(item, min_length=schema.get("min_length"))
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, list | tuple) else [value],
            schema,
            json_schema_input_schema=core_schema.union_schema([item, listed]),
        )


def refuses(problem_of: Callable[[Any], str | None]) -> AfterValidator:
    """Validate a value with a function that returns what is wrong with it."""

    def validate(value: Any) -> Any:
        if problem := problem_of(value):
            raise ValueError(problem)
        return value

    return AfterValidator(validate)


def matching(text: str, expected: str, unless: str = "") -> WithJsonSchema:
    """Return the JSON Schema of strings that match a pattern, and not another.

    What is expected is shown by editors that know the keyword, and by Helm.
    """
    schema = {"type": "string", "pattern": text, "patternErrorMessage": expected}
    return WithJsonSchema(schema | ({"not": {"pattern": unless}} if unless else {}))


def fits(text: str, expected: str) -> AfterValidator:
    """Validate a string with the same pattern as its JSON Schema (`matching`)."""
    return refuses(lambda value: None if re.fullmatch(text, value) else f"should be {expected}")


def _template(value: object) -> Template:
    if not isinstance(value, str):
        raise ValueError("should be a string")  # noqa: TRY004 (pydantic collects ValueErrors)
    return Template.parse(value)


def _path_problem(path: Template) -> str | None:
    """Check a path; one that begins with a variable may be absolute."""
    return names.path_problem(("/" if path.first_variable else "") + path.sample)


def _node_path_problem(path: Template) -> str | None:
    """Check the path of a device node, or of a directory of nodes: not all of /dev."""
    if posixpath.normpath(path.sample).lstrip("/") in ("", "dev"):
        return f"{str(path)!r} is a directory; write the path of a node, such as /dev/serial0"
    return None


def _key_rule(problem_of: Callable[[str], str | None]) -> AfterValidator:
    return refuses(lambda key: problem_of(Template.parse(key).sample))


def _command_problem(argv: Sequence[Template]) -> str | None:
    program = str(argv[0]).partition(" ")[0]
    if not argv[0].parts:
        return "the command is empty"
    if "/" in program and not program.startswith(("/", "$")):
        return f"{program!r} is a relative path; write the absolute one"
    return None


def _duration(value: object, word: str = "") -> float:
    if value == word != "":
        return math.inf
    match = re.fullmatch(_DURATION_PATTERN, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"should be {f'{word}, or ' if word else ''}{_A_DURATION}")
    return float(match[1]) * _SECONDS[match[2]]


def _step_time_problem(seconds: float) -> str | None:
    if 0 < seconds <= PRE_START_MAX_S:
        return None
    return f"should be at most {PRE_START_MAX_S:g}s, and not 0 (kubelet's limit is 30s)"


def _topology(value: object, validate: Callable[[object], object]) -> object:
    try:
        return validate(value)
    except ValidationError:
        raise ValueError("should be auto, none or the number of a NUMA node") from None


def permissions_problem(value: str) -> str | None:
    """Check the permissions of a device node."""
    if value and len(value) == len(set(value) & set("rwm")):
        return None
    return f"{value!r} should be one or more of the letters r (read), w (write), m (mknod)"


def _duplicate(ids: Sequence[str]) -> str | None:
    duplicate = next((name for name, count in Counter(ids).items() if count > 1), None)
    return None if duplicate is None else f"duplicate ID {duplicate!r}"


def _path_schema(*unless: str, expected: str = _A_PATH) -> WithJsonSchema:
    return matching(_PATH_TEMPLATE, expected, "|".join((_NO_PATH, *unless)))


_DIRECTORY: Final = "^/+(dev/*)?$"
_A_NODE: Final = "the path of a device node, such as /dev/serial0"
ResourceName = Annotated[
    str,
    refuses(names.resource_name_problem),
    matching(
        names.RESOURCE_NAME_PATTERN,
        "domain/name, such as example.com/serial, in a domain of your own",
        names.UNFIT_NAME_PATTERN,
    ),
]
_ROLE: Final = "^[A-Za-z][A-Za-z0-9_]*$", "letters, digits and _, beginning with a letter"
Role = Annotated[str, fits(*_ROLE), matching(*_ROLE)]
TemplateText = Annotated[
    Template,
    PlainValidator(_template),
    matching(TEMPLATE_PATTERN, "a text with variables such as ${name}, and $$ for a dollar"),
]
ValueText = Annotated[TemplateText, refuses(lambda text: names.text_problem(text.sample))]
PathText = Annotated[TemplateText, refuses(_path_problem), _path_schema()]
HostPath = Annotated[
    TemplateText,
    refuses(lambda path: pattern.docker_problem(str(path)) or _path_problem(path)),
    _path_schema(pattern.DOCKER_PATTERN),
]
NodePath = Annotated[
    PathText,
    refuses(_node_path_problem),
    refuses(
        lambda path: f"ends with '/'; write {str(path)[:-1]}" if str(path)[-1] == "/" else None
    ),
    _path_schema(_DIRECTORY, "/$", expected=_A_NODE),
]
HostNodePath = Annotated[
    HostPath,
    refuses(_node_path_problem),
    _path_schema(pattern.DOCKER_PATTERN, _DIRECTORY, expected=_A_NODE),
]
MountPath = Annotated[
    PathText,
    refuses(lambda path: "a mount at '/' hides the image" if str(path) == "/" else None),
    _path_schema("^/$"),
]
CdiName = Annotated[TemplateText, refuses(lambda name: names.cdi_name_problem(name.sample))]
CdiKind = Annotated[
    str,
    refuses(names.cdi_kind_problem),
    matching("^[^/=]+/[^/=]+$", "vendor/class, such as nvidia.com/gpu", "^devhost[.]"),
]
EnvName = Annotated[
    str,
    _key_rule(names.env_name_problem),
    matching(
        rf"^([A-Za-z_]|{VARIABLE_PATTERN})([A-Za-z0-9_]|{VARIABLE_PATTERN})*$",
        "the name of a variable",
    ),
]
AnnotationKey = Annotated[str, _key_rule(names.annotation_key_problem)]
Duration = Annotated[float, PlainValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]
Interval = Annotated[
    Duration, refuses(lambda s: "should be at least 100ms" if s < _INTERVAL_MIN_S else None)
]
_NOT_ZERO: Final = matching(_DURATION_PATTERN, f"{_A_DURATION}, not 0", r"^0+(\.0+)?[mh]?s?$")
CheckTime = Annotated[
    Duration, refuses(lambda s: None if s > 0 else "should be more than 0s"), _NOT_ZERO
]
StepTime = Annotated[Duration, refuses(_step_time_problem), _NOT_ZERO]
Removal = Annotated[
    float,
    PlainValidator(lambda value: _duration(value, "never")),
    WithJsonSchema({"anyOf": [{"const": "never"}, _DURATION_SCHEMA]}),
]
TopologyChoice = Annotated[
    Literal["auto", "none"] | Annotated[int, Field(ge=0, le=NUMA_NODE_MAX)],
    WrapValidator(_topology),
]
Permissions = Annotated[
    str,
    refuses(permissions_problem),
    matching("^[rwm]{1,3}$", "letters: r (read), w (write), m (mknod)", "r.*r|w.*w|m.*m"),
]
_MODE: Final = "^[0-7]{3,4}$", 'three or four octal digits, such as "0660"'
Mode = Annotated[str, fits(*_MODE), matching(*_MODE)]
OwnerId = Annotated[int, Field(ge=0, le=0xFFFF_FFFE)]
Count = Annotated[int, Field(ge=0, le=SHARES_MAX)]
Positive = Annotated[int, Field(ge=1, le=SHARES_MAX)]

# Lists in the file are tuples here.
AsTuple: Final = Field(strict=False)
NotEmpty: Final = Field(strict=False, min_length=1)
T = TypeVar("T")
Items = Annotated[tuple[T, ...], AsTuple]
Several = Annotated[tuple[T, ...], AsTuple, _Listed()]
OneOrMore = Annotated[tuple[T, ...], NotEmpty, _Listed()]
_DeviceId = Annotated[str, refuses(names.id_problem), matching(".", "an ID without ::", "::")]
DirectoryPath = Annotated[
    str,
    refuses(lambda path: names.path_problem(path) or pattern.directory_problem(path)),
    matching("^/", "the absolute path of a directory", _NO_PATH),
]
PathGlob = Annotated[
    str,
    refuses(lambda glob: names.path_problem(glob) or pattern.path_glob_problem(glob)),
    matching("^/", "an absolute path or glob", _NO_PATH),
]
PathGlobs = OneOrMore[PathGlob]
DevPattern = Annotated[str, refuses(pattern.dev_problem), matching("^([^/]|$)", AN_RE2_PATTERN)]
GlobText = Annotated[str, refuses(pattern.glob_problem)]
NameGlobs = Several[GlobText]
ContentGlobs = Several[Annotated[str, refuses(pattern.length_problem)]]
NodeNames = OneOrMore[GlobText]
DeviceIds = Annotated[
    tuple[_DeviceId, ...],
    Field(strict=False, json_schema_extra={"uniqueItems": True}),
    refuses(_duplicate),
]
Templates = OneOrMore[TemplateText]
Argv = Annotated[tuple[TemplateText, ...], NotEmpty, refuses(_command_problem)]
FileTypes = OneOrMore[Literal["file", "directory", "char", "block", "socket", "symlink"]]
