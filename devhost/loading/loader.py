"""A configuration file to a `Config`, or every problem that it has, each with its place."""

import copy
import errno
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from devhost.allocation.policy import Policy
from devhost.errors import ConfigError, Problem, Severity
from devhost.immutable import immutable
from devhost.loading import checks, explain, syntax, yamltree
from devhost.loading.checks import Declared
from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import Tree
from devhost.memory import gc_paused
from devhost.model.config import Config, Resource

SIZE_MAX: Final = 1 << 20  # a ConfigMap holds no more (1 MiB, Kubernetes)
PROBLEMS_MAX: Final = 1000  # errors, and as many warnings

_Found = tuple[Severity, yamltree.Path, str, tuple[int, int]]


@immutable
class Loaded:
    """What a file held.

    Attributes:
        config: The configuration; ``None`` where any problem is an error.
        problems: Errors and warnings in the order of the file.
    """

    config: Config | None
    problems: tuple[Problem, ...]

    def require(self) -> Config:
        """Return the configuration.

        Raises:
            ConfigError: There is none; it carries every problem.
        """
        if self.config is None:
            raise ConfigError(self.problems)
        return self.config


def load(file: str, policy: Policy | None = None) -> Loaded:
    """Read and check a file; ``-`` is standard input.

    Args:
        file: The path, as the user gave it.
        policy: What the configuration may ask for. Asking for more is a warning, or an error
            where the policy is enforced.
    """
    try:
        raw = read(file)
    except OSError as error:
        return unusable(file, f"cannot be read: {error.strerror or error}")
    return load_bytes(raw, file, policy)


def load_bytes(raw: bytes, file: str, policy: Policy | None = None) -> Loaded:
    """Check what `read` returned."""
    return Loader(policy).load_bytes(raw, file)


def loads(text: str, file: str = "<text>", policy: Policy | None = None) -> Loaded:
    """Check a configuration's text; ``file`` is the name that its problems bear."""
    return Loader(policy).loads(text, file)


class Loader:
    """Checks configurations one after the other, and looks anew only at what has changed.

    Of a resource of which nothing was to be said the last time, and which stands in the file
    as it did, the value is that of the last time. What is found is the same either way.

    Args:
        policy: What the configurations may ask for.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._clean: dict[str, Resource] = {}  # by their texts

    def load_bytes(self, raw: bytes, file: str) -> Loaded:
        """Check what `read` returned."""
        if len(raw) > SIZE_MAX:
            return unusable(file, f"larger than {SIZE_MAX >> 10} KiB, more than a ConfigMap holds")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode()  # without a byte order mark
            return unusable(file, "not UTF-8", *syntax.position_after(before))
        return self.loads(text, file)

    def loads(self, text: str, file: str) -> Loaded:
        """Check a configuration's text; ``file`` is the name that its problems bear."""
        with gc_paused():
            try:
                tree = yamltree.parse(text)
                if problem := explain.manifest_problem(tree):
                    raise problem
            except TreeError as error:
                return unusable(file, str(error), error.line, error.column)
            resources: list[Declared] = []
            found = self._found(tree, resources)
            loaded = _loaded(file, found, lambda: [one.resource for one in resources])
            self._clean = {one.text: one.resource for one in resources if one.clean}
            return loaded

    def _found(self, tree: Tree, resources: list[Declared]) -> Iterator[_Found]:
        """Yield each problem, and collect the resources whose shape is right."""
        said = set()
        for path, message, at in explain.tree_problems(tree):
            said.add(path)
            yield "error", path, message, at
        around = {path[:-1] for path in said}
        for declared_or_not in _shapes(tree, self._clean):
            if isinstance(declared_or_not, Declared):
                resources.append(declared_or_not)
                continue
            base, error = declared_or_not
            for where, message, at in explain.shape_problems(error, base, tree, said, around):
                yield "error", where, message, at
        for severity, full, message, on_key in checks.check(resources, self._policy):
            path = explain.known(full, tree)
            place = tree.place(path)
            yield severity, path, message, place.key if on_key else (place.line, place.column)


def _loaded(
    file: str, found: Iterable[_Found], resources: Callable[[], Iterable[Resource]]
) -> Loaded:
    """Return what a file held, by what is found of it: of very much, not all."""
    kept: dict[Severity, list[Problem]] = {"error": [], "warning": []}
    more: list[Problem] = []
    for severity, path, message, at in found:
        if len(kept[severity]) < PROBLEMS_MAX:
            shown = explain.shown(path), explain.brief(message)
            kept[severity].append(Problem(severity, file, *at, *shown))
            continue
        if not any(problem.severity == severity for problem in more):
            end = f"more than {PROBLEMS_MAX} {severity}s: the others are not shown"
            more.append(Problem(severity, file, *at, "", end))
        if severity == "error":
            break
    problems = [*kept["error"], *kept["warning"], *more]
    problems.sort(key=lambda problem: (problem.line, problem.column))
    if kept["error"]:
        return Loaded(None, tuple(problems))
    return Loaded(Config(version="v1", resources=tuple(resources())), tuple(problems))


def _shapes(
    tree: Tree, clean: Mapping[str, Resource]
) -> Iterator[Declared | tuple[yamltree.Path, ValidationError]]:
    """Validate the top level and each resource on its own, so that one hides no other.

    Args:
        tree: The document.
        clean: Resources that need no validation, by their texts.
    """
    data: Any = tree.data
    items: list[Any] = []
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if not key.startswith("x-")}
        if isinstance(data.get("resources"), list):
            items = data["resources"]
            data["resources"] = []
    try:
        Config.model_validate(data)
    except ValidationError as error:
        yield (), error
    for index, item in enumerate(items):
        path, text = ("resources", index), repr(item)  # which tells 1 from True, as == does not
        try:
            known = clean.get(text)
            resource = known or Resource.model_validate(item)
            yield Declared(path, resource, text, clean=known is not None)
        except ValidationError as error:
            yield path, error
            if (rest := _without_mistakes(item, error, index)) is not None:
                yield Declared(path, rest)


def _without_mistakes(item: Any, error: ValidationError, index: int) -> Resource | None:
    """Return what is left of a resource without its misshapen parts, to be checked further.

    Nothing where that would make checks see mistakes that are none: a variable is known only
    with all of the sources.
    """
    paths = [details["loc"] for details in error.errors(include_url=False)]
    if not isinstance(item, dict) or any(path[:1] in ((), ("sources",)) for path in paths):
        return None
    rest = copy.deepcopy(item)
    for path in paths:
        _remove(rest, path)
    checked = rest.get("health")
    if (
        isinstance(checked, dict)
        and "checks" not in checked
        and any(path[0] == "health" for path in paths)
    ):
        del rest["health"]  # what it checks has mistakes, which is not to check nothing
    rest.setdefault("name", f"invalid.example/r{index}")
    try:
        return Resource.model_validate(rest)
    except ValidationError:
        return None


def _remove(data: Any, path: tuple[str | int, ...]) -> None:
    """Remove what stands at ``path``, or the shorthand above it.

    Of a list nothing is removed but the whole: the places of the other items would shift.
    """
    owner, key = data, path[0]
    for depth, part in enumerate(path):
        if not _has(data, part):
            return
        if isinstance(data, dict):
            owner, key = data, part
        if depth == len(path) - 1 or not isinstance(data[part], dict | list):
            del owner[key]
            return
        data = data[part]


def _has(data: Any, part: str | int) -> bool:
    return (isinstance(data, dict) and part in data) or (
        isinstance(data, list) and isinstance(part, int) and part < len(data)
    )


def read(file: str) -> bytes:
    """Read a file, or standard input for ``-``; not much more than a configuration may have.

    Raises:
        OSError: It cannot be read.
    """
    if not file:
        raise FileNotFoundError(errno.ENOENT, "the name of the file is empty")
    if "\0" in file:
        raise FileNotFoundError(errno.ENOENT, "no file's name has a NUL in it")
    if file == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        return sys.stdin.buffer.read(SIZE_MAX + 1)
    with Path(file).open("rb") as stream:
        return stream.read(SIZE_MAX + 1)


def refuse(loaded: Loaded, raw: bytes, file: str, reasons: Mapping[str, tuple[str, str]]) -> Loaded:
    """Return what a file held as one that cannot be used.

    Args:
        loaded: What it held, a configuration.
        raw: Its content.
        file: Its name.
        reasons: By resource, the key that is to blame, and the message.
    """
    tree = yamltree.parse(raw.decode("utf-8-sig"))
    problems = []
    for index, resource in enumerate(loaded.require().resources):
        if (found := reasons.get(resource.name)) is not None:
            path: yamltree.Path = ("resources", index, found[0])
            at = tree.place(path)
            shown = explain.shown(explain.known(path, tree))
            problems.append(Problem("error", file, at.line, at.column, shown, found[1]))
    return Loaded(None, (*problems, *loaded.problems))


def unusable(file: str, message: str, line: int = 1, column: int = 1) -> Loaded:
    """Return the one problem of a file of which nothing can be used."""
    message = explain.brief(message)
    return Loaded(None, (Problem("error", file or "''", line, column, "", message),))
