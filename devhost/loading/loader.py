"""Loads a configuration file: a `Config`, or every problem with its position."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from devhost import limits
from devhost.allocation.policy import Policy
from devhost.errors import Problem, Severity
from devhost.loading import checks, wrong_shapes, yamltree
from devhost.loading.checks import ParsedResource
from devhost.loading.documents import PROFILES, Document, documents
from devhost.loading.formats import format_mistake
from devhost.loading.loaded import Loaded, read, unusable
from devhost.loading.shapes import ShapeError, shaped
from devhost.loading.syntax import decoded
from devhost.loading.syntax_error import TreeError
from devhost.loading.yamltree import Tree
from devhost.memory import gc_paused
from devhost.model.config import Config, Resource
from devhost.model.mapping import mapping
from devhost.model.values import AsTuple

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
    with gc_paused():
        try:
            return [_one(one, file, policy or Policy()) for one in documents(text)]
        except TreeError as error:
            return [_not_yaml(Document(text, error), error, file)]


@mapping
class _Document:
    """A `Config` whose resources are validated one by one."""

    version: Literal["v1"]
    resources: Annotated[tuple[Any, ...], AsTuple]


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
    for path, message, at in wrong_shapes.tree_problems(tree):
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
        mistakes = wrong_shapes.shape_problems(error.details, base, tree, reported, around)
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
    return Loaded(config, tuple(problems), document.name, tuple(one.text for one in resources))


def _shapes(tree: Tree) -> Iterator[ParsedResource | tuple[yamltree.Path, ShapeError]]:
    """Validate the top level and each resource separately, so that all errors are found."""
    data: Any = tree.data
    items: list[Any] = []
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if not key.startswith("x-")}
        if isinstance(data.get("resources"), list):
            items = data["resources"][: limits.RESOURCES_MAX]
            data["resources"] = []
    try:
        shaped(_Document, data)
    except ShapeError as error:
        yield (), error
    for index, item in enumerate(items):
        path, text = ("resources", index), repr(item)  # repr: 1 == True
        line = tree.position(path).line
        try:
            yield ParsedResource(path, shaped(Resource, item), line, text)
        except ShapeError as error:
            yield path, error
            if (rest := _without_mistakes(item, error, index)) is not None:
                yield ParsedResource(path, rest, line)


def _resource_count(data: Any) -> int:
    listed = data.get("resources") if isinstance(data, dict) else None
    return len(listed) if isinstance(listed, list) else 0


def _without_mistakes(item: Any, error: ShapeError, index: int) -> Resource | None:
    """Return a resource without its invalid parts, so that the rest is checked as well.

    ``None`` if that would cause false errors: variables are known only with all sources.
    """
    paths = [details["loc"] for details in error.details]
    if not isinstance(item, dict) or any(path[:1] in ((), ("sources",)) for path in paths):
        return None
    if any(len(path) == 1 and str(path[0]).startswith("group") for path in paths):
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
        del rest["health"]  # else it would seem to have no checks
    rest.setdefault("name", f"invalid.example/r{index}")
    try:
        return shaped(Resource, rest)
    except ShapeError:
        return None


def _remove(data: Any, path: tuple[str | int, ...]) -> None:
    """Remove the value at ``path``, or the shorthand above it.

    A list is removed as a whole: without one item, the indexes of the others would change.
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
