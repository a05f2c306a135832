"""The values of the chart that decide what a configuration gets: rights, and what is mounted."""

import functools
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from devhost.allocation.policy import VALUE_PROBLEMS, Policy
from devhost.config import messages
from devhost.config.documents import ChartPart
from devhost.config.yaml_tree import CheckProblem, Path, error
from devhost.hostfs.files import is_wild
from devhost.model.names import driver_name_problem
from devhost.model.values import ConfigModel, Items, refuses

# Keys that only matter to the cluster: the chart's schema says what their values may be.
_OF_PODS: Final = (
    *("kubelet", "log", "podAnnotations", "podLabels", "podSecurityContext", "securityContext"),
    *("resources", "priorityClassName", "tolerations"),
    *("updateStrategy", "terminationGracePeriodSeconds", "probes", "command", "args"),
    *("extraVolumes", "extraVolumeMounts"),
)
_OF_CHART: Final = (
    *("stateDir", "image", "imagePullSecrets", "nameOverride", "fullnameOverride", "global"),
    *("serviceAccount", "http", "metrics", "networkPolicy", "validation"),
)
_PROFILE_NAME: Final = re.compile("(?!(default|validation)$)[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?")
_SYSTEM: Final = ("/dev", *(f"/sys/{part}" for part in ("block", "bus", "class", "dev", "devices")))
_ALLOWING: Final = ("--allow-", "DEVHOST_ALLOW_")


def _host_path_problem(path: str) -> str | None:
    if not path.startswith("/") or posixpath.normpath(path).strip("/") == "":
        return f"{path!r} should be an absolute path; for the whole host, set hostRoot.enabled"
    is_sysfs = posixpath.normpath(path) == "/sys"
    return "/sys has cgroups that may be writable; use a subdirectory" if is_sysfs else None


def _name_problem(name: str) -> str | None:
    if _PROFILE_NAME.fullmatch(name):
        return None
    characters = "at most 20 lower-case letters, digits and '-'"
    return f"{name!r} should be {characters}, not default or validation"


def _word(problem_of: Callable[[str], str | None] = lambda _: None) -> AfterValidator:
    """Return the rule for one of the words that become one variable, separated by blanks."""
    is_word = re.compile(r"\S+").fullmatch
    return refuses(lambda text: problem_of(text) if is_word(text) else f"{text!r} is not one word")


_Path = Annotated[str, _word(VALUE_PROBLEMS["allow_paths"])]
_Device = Annotated[str, _word(VALUE_PROBLEMS["allow_devices"])]
_Resource = Annotated[str, _word(VALUE_PROBLEMS["allow_resources"])]
_Word = Annotated[str, _word()]
_HostPath = Annotated[str, refuses(_host_path_problem)]


class Allow(ConfigModel):
    """The rights of a configuration: the fields of `Policy` without their prefix."""

    paths: Items[_Path] = ()
    devices: Items[_Device] = ()
    resources: Items[_Resource] = ()
    cdi: Items[_Word] = ()
    annotations: Items[_Word] = ()
    exec: bool = False


class Enabled(ConfigModel):
    """A feature that is off unless it is enabled."""

    enabled: bool = False


class CdiSpecs(Enabled):
    """The directory of CDI specs, and those of vendors."""

    dir: str = ""
    spec_dirs: Items[_HostPath] = ()


class DeviceAccess(ConfigModel):
    """Whether devhost can open devices and change their modes."""

    privileged: bool = False
    writable: bool = False


class ResourceClasses(ConfigModel):
    """How pods of the cluster can request resources that DRA offers."""

    create: bool = True
    extra: Items[_Resource] = ()


class Dra(Enabled):
    """Whether resources may be offered by DRA, and by which driver."""

    driver: Annotated[str, refuses(lambda name: driver_name_problem(name) if name else None)] = ""
    backend: Literal["devicePlugin", "dra"] = "devicePlugin"
    device_classes: ResourceClasses = ResourceClasses()


class DaemonSetValues(ConfigModel):
    """The values of one DaemonSet that a profile may change.

    Attributes:
        unexamined: Keys of which the values are not examined here.
    """

    unexamined: ClassVar[tuple[str, ...]] = ()
    allow: Allow = Allow()
    cdi: CdiSpecs = CdiSpecs()
    device_access: DeviceAccess = DeviceAccess()
    host_paths: Items[_HostPath] = ()
    host_root: Enabled = Enabled()
    extra_args: Any = ()
    extra_env: Any = ()

    @model_validator(mode="before")
    @classmethod
    def _examine(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if key not in cls.unexamined}


class InstanceValues(DaemonSetValues):
    """The values of one DaemonSet, with those of the chart that decide what it may offer."""

    dra: Dra = Dra()

    @property
    def allows_more(self) -> bool:
        """Whether other values may allow something."""
        return any(mark in f"{self.extra_args} {self.extra_env}" for mark in _ALLOWING)

    @functools.cached_property
    def _mounts(self) -> Counter[str]:
        """How often each directory would be mounted."""
        has_proc = bool(self.allow.paths or self.allow.devices)
        system = (*_SYSTEM, "/proc") if has_proc else _SYSTEM
        return Counter((*system, *map(posixpath.normpath, self.host_paths)))

    def sees(self, path: str) -> bool:
        """Return whether a path is below a mounted directory."""
        parts = path.split("/")
        above = ("/".join(parts[: depth + 1]) for depth in range(1, len(parts)))
        return self.host_root.enabled or any(directory in self._mounts for directory in above)

    def problem(self) -> tuple[Path, str] | None:
        """Return which value contradicts another, and what is wrong."""
        mounts = {} if self.host_root.enabled else self._mounts
        if twice := next((path for path, count in mounts.items() if count > 1), None):
            return ("hostPaths",), f"{twice} is already mounted; remove it"
        globs = [("paths", glob) for glob in self.allow.paths]
        globs += [("devices", glob) for glob in self.allow.devices if "/" in glob]
        for key, glob in globs:
            if not self.sees(directory := fixed_directory(glob)):
                return ("allow", key), (
                    f"{glob} is not below a mounted directory, so devhost could not check it; add "
                    f"{directory} to hostPaths"
                )
        return self._dra_problem()

    def _dra_problem(self) -> tuple[Path, str] | None:
        """Return what Dynamic Resource Allocation lacks."""
        if not self.dra.enabled:
            is_chosen = self.dra.backend == "dra"
            return (("dra", "backend"), "dra needs dra.enabled") if is_chosen else None
        return None if self.cdi.enabled else (("dra", "enabled"), "needs cdi.enabled")

    def extend(self, policy: Policy) -> Policy:
        """Return a policy with what the values allow in addition."""
        allow: dict[str, Any] = {f"allow_{key}": value for key, value in self.allow}
        added = {key: getattr(policy, key) + value for key, value in allow.items() if value}
        added["allow_exec"] = policy.allow_exec or self.allow.exec
        return replace(policy, **added, dra=policy.dra or self.dra.enabled, by_values=True)


class Profile(DaemonSetValues):
    """Nodes with a configuration of their own."""

    unexamined = _OF_PODS
    name: Annotated[str, refuses(_name_problem)]
    config: dict[str, Any]
    node_selector: dict[str, str | None] = Field(default_factory=dict)
    affinity: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_selection(self) -> Self:
        if all(value is None for value in (*self.node_selector.values(), *self.affinity.values())):
            raise ValueError("needs nodeSelector or affinity")
        if not self.config.keys() & {"version", "resources", "existingConfigMap"}:
            raise ValueError("config: needs 'version: v1' and 'resources'")
        return self


class Values(InstanceValues):
    """The values of the chart."""

    unexamined = (*_OF_PODS, "nodeSelector", "affinity", *_OF_CHART)
    config: dict[str, Any] = Field(default_factory=dict)
    profiles: Items[Profile] = ()


def fixed_directory(path: str) -> str:
    """Return the directory before the first wildcard or variable of a path, or the path itself."""
    parts = path.split("/")
    fixed = next((at for at, part in enumerate(parts) if is_wild(part) or "$" in part), len(parts))
    return posixpath.normpath("/".join(parts[:fixed]) or "/")


def read_instance(values: Mapping[str, Any], profile: int | None) -> InstanceValues | None:
    """Return the values of the chart's own DaemonSet or of a profile's; ``None`` for wrong ones."""
    merged = _merged(values, {} if profile is None else values["profiles"][profile])
    try:
        return InstanceValues.model_validate(merged, extra="ignore")
    except ValidationError:
        return None


def _merged(base: Any, override: Any) -> Any:
    """Merge mappings as the chart does: null removes a key, and lists are replaced."""
    if not isinstance(base, dict) or not isinstance(override, dict):
        return override
    merged = base | {key: _merged(base.get(key), value) for key, value in override.items()}
    return {key: value for key, value in merged.items() if value is not None}


def check_values(part: ChartPart, instance: InstanceValues | None) -> Iterator[CheckProblem]:
    """Yield what is wrong with the values of a configuration's instance (`read_instance`).

    With the first of the chart, also what is wrong with the values of the whole chart.
    """
    tree, base = part.tree, part.path
    try:
        if part.is_first:
            whole = Values.model_validate(tree.value(base))
            names = [profile.name for profile in whole.profiles]
            for index, name in enumerate(names):
                if name in names[:index]:
                    path = (*base, "profiles", index, "name")
                    yield error(path, f"{name!r} is already in use")
    except ValidationError as wrong:
        errors = wrong.errors(include_url=False)
        yield from messages.shape_problems(errors, base, tree, set(), Values)
    at = base if part.profile is None else (*base, "profiles", part.profile)
    config = tree.value(at)["config"]
    if config.get("existingConfigMap") and config.get("resources"):
        path = (*at, "config", "existingConfigMap")
        yield error(path, "cannot be combined with resources", on_key=True)
    if instance is not None and (problem := instance.problem()):
        (key, message), path = problem, (*at, *problem[0])
        if path not in tree.positions:  # the value is the chart's, or of all profiles
            path, message = at, f"{messages.path_text(key)}: {message}"
        yield error(path, message, on_key=True)
