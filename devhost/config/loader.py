"""Loads a configuration file: a `Config`, or every problem with its position."""

import errno
import itertools
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from devhost.allocation.policy import Policy
from devhost.config import messages
from devhost.config.checks import resource_checks
from devhost.config.documents import PROFILES, Document, brief, documents
from devhost.config.yaml_errors import SIZE_MAX, TreeError, decode, lines
from devhost.config.yaml_tree import CheckProblem, Path, Tree, error, warning
from devhost.errors import ConfigError, Problem, Severity, describe_os_error
from devhost.model import limits
from devhost.model.config import BackendChoice, Config, Resource

if TYPE_CHECKING:
    from devhost.config.chart_values import InstanceValues

PROBLEMS_MAX: Final = 1000  # of errors, and of warnings


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, if it has no errors.

    Attributes:
        problems: What is wrong with it, in order.
        name: Which part of a file it is.
        policy: What it may use. A file never allows that its commands run here.
    """

    config: Config | None
    problems: tuple[Problem, ...]
    name: str = ""
    policy: Policy = field(default_factory=Policy)

    def require(self) -> Config:
        """Return the configuration, or raise a `ConfigError` with every problem."""
        if self.config is None:
            raise ConfigError(self.problems)
        return self.config


def read(file: str) -> bytes:
    """Read a file, or standard input for ``-``, up to one byte more than `SIZE_MAX`."""
    if file == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        return sys.stdin.buffer.read(SIZE_MAX + 1)
    with pathlib.Path(file).open("rb") as stream:
        return stream.read(SIZE_MAX + 1)


def unusable(file: str, message: str) -> Loaded:
    """Return the result for a file with a single error that makes it unusable."""
    return Loaded(None, (Problem("error", file or "''", 1, 1, "", brief(message)),))


def load(file: str, policy: Policy | None = None) -> Loaded:
    """Read and check a file; ``-`` is standard input.

    What the policy does not allow is a warning, or an error if the policy is enforced. Of values of
    the chart, the configurations of profiles are not read.
    """
    return _single(load_all(file, policy, profiles=False), file)


def load_all(file: str, policy: Policy | None = None, *, profiles: bool = True) -> list[Loaded]:
    """Read and check a file like `load`, with each configuration in it, at least one."""
    try:
        return _load_text(read(file), file, policy, profiles=profiles)
    except OSError as reason:
        return [unusable(file, f"cannot be read: {describe_os_error(reason)}")]


def loads(text: bytes | str, file: str = "<text>", policy: Policy | None = None) -> Loaded:
    """Check a configuration's text, or what `read` returned; ``file`` is its name in problems."""
    return _single(_load_text(text, file, policy, profiles=False), file)


def _load_text(
    raw: bytes | str, file: str, policy: Policy | None, *, profiles: bool
) -> list[Loaded]:
    text = ""
    try:
        text = raw if isinstance(raw, str) else decode(raw)
        parts = documents(text, profiles=profiles)
        return [_load_document(document, file, policy or Policy()) for document in parts]
    except TreeError as reason:
        return [_load_document(Document(lines(text), Tree.unreadable(reason)), file, Policy())]


def _single(configurations: list[Loaded], file: str) -> Loaded:
    """Return the configuration of a file that must have one."""
    if len(configurations) == 1:
        return configurations[0]
    names = ", ".join(configuration.name for configuration in configurations)
    return unusable(file, f"has {len(configurations)} configurations ({names}); one is needed here")


def _load_document(document: Document, file: str, policy: Policy) -> Loaded:
    """Return a configuration with its problems, up to `PROBLEMS_MAX` of each severity."""
    resources: list[tuple[Path, Resource]] = []
    problems: list[Problem] = []
    chart, values = document.chart, None
    whole = document if chart is None else Document(document.lines, chart.tree)
    if chart is not None and chart.unread is not None:
        problems.append(whole.problem(file, warning((), PROFILES, at=chart.unread)))
    if chart is not None and policy.adds_values:
        # Most files are none of the chart's values, and so the start is quicker.
        from devhost.config.chart_values import check_values, read_instance  # noqa: PLC0415

        values = read_instance(chart.tree.value(chart.path), chart.profile)
        problems += [whole.problem(file, problem) for problem in check_values(chart, values)]
    judging = values.extend(policy) if values is not None else policy
    policy = replace(judging, executes=policy.runs_commands)
    count: Counter[Severity] = Counter(problem.severity for problem in problems)
    for problem in _check_tree(document.tree, resources, judging, values):
        severity = problem.severity
        count[severity] += 1
        if count[severity] <= PROBLEMS_MAX:
            problems.append(document.problem(file, problem))
        elif count[severity] == PROBLEMS_MAX + 1:
            end = f"more than {PROBLEMS_MAX} {severity}s; the rest is not shown"
            at = document.tree.place(problem)
            problems.append(document.problem(file, CheckProblem(severity, (), end, at=at)))
            if severity == "error":
                break
    # A name and its value are at one place.
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: (problem.line, problem.column))
    config = Config(version="v1", resources=tuple(resource for _, resource in resources))
    return Loaded(None if count["error"] else config, tuple(ordered), document.name, policy)


def _check_tree(
    tree: Tree,
    resources: list[tuple[Path, Resource]],
    policy: Policy,
    values: "InstanceValues | None",
) -> Iterator[CheckProblem]:
    """Yield each problem, and collect the resources that have the right shape."""
    if tree.data is None:
        yield from tree.problems
        return
    tree.drop_free_keys()
    wrong = set[Path]()
    for problem in _check_shapes(tree, resources, values.dra.backend if values else None):
        wrong.add(problem.path)
        yield problem
    for problem in tree.ambiguous:
        if problem.path not in wrong:  # else it is said what would be right
            yield problem._replace(severity="error") if values else problem  # Helm reads values
    is_known = values is None or not values.allows_more
    checks = resource_checks.check(resources, policy if is_known else None)
    if values is not None:
        from devhost.config.checks import value_checks  # noqa: PLC0415 (as above)

        checks = itertools.chain(checks, value_checks.check(resources, values))
    for problem in checks:
        yield problem._replace(path=_place(tree, problem.path))


def _place(tree: Tree, path: Path) -> Path:
    """Return where a value is, or what would contain it; the backend may be that of the file."""
    is_of_file = path[-1] == "backend" and path not in tree.positions
    return tree.existing(("backend",) if is_of_file else path)


def _check_shapes(
    tree: Tree, resources: list[tuple[Path, Resource]], backend: BackendChoice | None
) -> Iterator[CheckProblem]:
    """Yield what is wrong with single values, and collect the resources that are right."""
    reported = set[Path]()
    for problem in messages.tree_problems(tree):
        reported.add(problem.path)
        yield problem
    data, listed = tree.data, list[Any]()
    if isinstance(items := data.get("resources"), list):
        data, listed = data | {"resources": []}, items[: limits.RESOURCES_MAX]
        if len(items) > len(listed):
            message = f"{len(items)} resources, more than {limits.RESOURCES_MAX}"
            yield error(("resources",), message, on_key=True)
    # Each resource by itself, so that errors of others are found, too.
    parts: list[tuple[Path, type[Config | Resource], Any]] = [((), Config, data)]
    parts += [(("resources", index), Resource, item) for index, item in enumerate(listed)]
    for base, model, value in parts:
        try:
            part = model.model_validate(value)
        except ValidationError as reason:
            errors = reason.errors(include_url=False)
            yield from messages.shape_problems(errors, base, tree, reported, model)
            continue
        if isinstance(part, Config):
            backend = part.backend or backend
        else:
            resources.append((base, part.model_copy(update={"backend": part.backend or backend})))
