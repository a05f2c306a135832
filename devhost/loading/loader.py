"""Loads a configuration file: a `Config`, or every problem with its position."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from devhost import limits
from devhost.allocation.policy import Policy
from devhost.errors import Problem, Severity
from devhost.loading import checks, shapes, yamltree
from devhost.loading.checks import ParsedResource
from devhost.loading.documents import PROFILES, Document, documents
from devhost.loading.formats import format_mistake
from devhost.loading.loaded import Loaded, read, unusable
from devhost.loading.syntax import TreeError, decoded
from devhost.loading.yamltree import Tree
from devhost.model.base import ConfigModel
from devhost.model.config import Config, Resource

T = TypeVar("T", bound=ConfigModel)

PROBLEMS_MAX: Final = 1000  # of errors, and of warnings

_Found = tuple[Severity, yamltree.Path, str, tuple[int, int]]


def load(file: str, policy: Policy | None = None) -> Loaded:
    """Read and check a file; ``-`` is standard input.

    Args:
        file: The path, as the user gave it.
        policy: What the configuration may use. Anything else is a warning, or an error if the
            policy is enforced.
    """
    return _only(load_all(file, policy), file)


def load_all(file: str, policy: Policy | None = None) -> list[Loaded]:
    """Read and check a file like `load`, with each configuration in it, at least one."""
    try:
        raw = read(file)
    except OSError as error:
        return [unusable(file, f"cannot be read: {error.strerror or error}")]
    return _all_in(raw, file, policy)


def load_bytes(raw: bytes, file: str, policy: Policy | None = None) -> Loaded:
    """Check what `read` returned; ``file`` is its name."""
    return _only(_all_in(raw, file, policy), file)


def loads(text: str, file: str = "<text>", policy: Policy | None = None) -> Loaded:
    """Check a configuration's text; ``file`` is the name in its problems."""
    return _only(_all(text, file, policy), file)


def _all_in(raw: bytes, file: str, policy: Policy | None) -> list[Loaded]:
    try:
        text = decoded(raw)
    except TreeError as error:
        return [unusable(file, str(error), error.line, error.column)]
    return _all(text, file, policy)


def _all(text: str, file: str, policy: Policy | None) -> list[Loaded]:
    try:
        return [_one(one, file, policy or Policy()) for one in documents(text)]
    except TreeError as error:
        return [_not_yaml(Document(text, error), error, file)]


def _one(document: Document, file: str, policy: Policy) -> Loaded:
    tree = document.tree
    if isinstance(tree, TreeError):
        return _not_yaml(document, tree, file)
    resources: list[ParsedResource] = []
    found = _found(tree, resources, policy)
    if document.unread is not None:
        found = itertools.chain([("warning", (), PROFILES, document.unread)], found)
    return _loaded(document, file, found, resources)


def _found(tree: Tree, resources: list[ParsedResource], policy: Policy) -> Iterator[_Found]:
    """Yield each problem, and collect the resources that have the right shape."""
    if (mistake := format_mistake(tree)) is not None:
        yield "error", *mistake
        return
    reported = set()
    for path, message, at in shapes.tree_problems(tree):
        reported.add(path)
        yield "error", path, message, at
    if (count := _resource_count(tree.data)) > limits.RESOURCES_MAX:
        message = f"{count} resources, more than {limits.RESOURCES_MAX}"
        yield "error", ("resources",), message, tree.position(("resources",)).key
    around = {path[:-1] for path in reported}
    for parsed_or_error in _shapes(tree):
        if isinstance(parsed_or_error, ParsedResource):
            resources.append(parsed_or_error)
            continue
        base, error = parsed_or_error
        mistakes = shapes.shape_problems(
            error.errors(include_url=False), base, tree, reported, around
        )
        for where, message, at in mistakes:
            yield "error", where, message, at
    for severity, full, message, on_key in checks.check(resources, policy):
        path = tree.known(full)
        position = tree.position(path)
        shown_at = position.key if on_key else (position.line, position.column)
        yield severity, path, message, shown_at


def _only(found: list[Loaded], file: str) -> Loaded:
    """Return the configuration of a file that must have one."""
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.name for one in found)
    return unusable(file, f"has {len(found)} configurations ({names}); one is needed here")


def _not_yaml(document: Document, error: TreeError, file: str) -> Loaded:
    problem = document.problem("error", file, (), str(error), (error.line, error.column))
    return Loaded(None, (problem,), document.name)


def _loaded(
    document: Document,
    file: str,
    found: Iterable[_Found],
    resources: Sequence[ParsedResource],
) -> Loaded:
    """Return the content of a file with its problems, up to `PROBLEMS_MAX` of each severity."""
    kept: dict[Severity, list[Problem]] = {"error": [], "warning": []}
    more: list[Problem] = []
    for severity, path, message, at in found:
        if len(kept[severity]) < PROBLEMS_MAX:
            kept[severity].append(document.problem(severity, file, path, message, at))
            continue
        if not any(problem.severity == severity for problem in more):
            end = f"more than {PROBLEMS_MAX} {severity}s; the rest is not shown"
            more.append(document.problem(severity, file, (), end, at))
        if severity == "error":
            break
    problems = [*kept["error"], *kept["warning"], *more]
    problems.sort(key=lambda problem: (problem.line, problem.column))
    if kept["error"]:
        return Loaded(None, tuple(problems), document.name)
    config = Config(version="v1", resources=tuple(one.resource for one in resources))
    return Loaded(config, tuple(problems), document.name)


def _shapes(tree: Tree) -> Iterator[ParsedResource | tuple[yamltree.Path, ValidationError]]:
    """Validate the top level and each resource separately, so that all errors are found."""
    data: Any = tree.data
    items: list[Any] = []
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if not key.startswith("x-")}
        if isinstance(data.get("resources"), list):
            items = data["resources"][: limits.RESOURCES_MAX]
            data["resources"] = []
    try:
        _validated(Config, data)
    except ValidationError as error:
        yield (), error
    for index, item in enumerate(items):
        path = "resources", index
        line = tree.position(path).line
        try:
            yield ParsedResource(path, _validated(Resource, item), line)
        except ValidationError as error:
            yield path, error


def _validated(kind: type[T], value: Any) -> T:
    return kind.model_validate(value, by_alias=True, by_name=False)


def _resource_count(data: Any) -> int:
    listed = data.get("resources") if isinstance(data, dict) else None
    return len(listed) if isinstance(listed, list) else 0


def refuse(loaded: Loaded, raw: bytes, file: str, reasons: Mapping[str, tuple[str, str]]) -> Loaded:
    """Return a file's content as an invalid one.

    Args:
        loaded: The content, which is valid by itself.
        raw: The bytes of the file.
        file: Its name.
        reasons: The key and the message of an error, by resource.
    """
    (document,) = documents(decoded(raw))
    tree, problems = document.tree, []
    assert isinstance(tree, yamltree.Tree), "it was valid before"  # noqa: S101
    for index, resource in enumerate(loaded.require().resources):
        if (found := reasons.get(resource.name)) is not None:
            path: yamltree.Path = ("resources", index, found[0])
            at, shown = tree.position(path), tree.known(path)
            problem = document.problem("error", file, shown, found[1], (at.line, at.column))
            problems.append(problem)
    return Loaded(None, (*problems, *loaded.problems), loaded.name)
