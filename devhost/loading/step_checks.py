"""Errors and warnings of health checks and preStart steps."""

from collections.abc import Iterator
from typing import Final

from devhost.allocation.variables import BUILT_IN_VARIABLES, CONTAINER_VARIABLES
from devhost.loading.lookalikes import command_mistake, content_mistake
from devhost.loading.source_checks import check_lengths
from devhost.loading.template_checks import check_path, check_template, variables_of
from devhost.loading.yamltree import Finding, Path
from devhost.model import pattern
from devhost.model.config import HealthChecks, Probe, Resource, Step
from devhost.model.sources import Dev, Static
from devhost.model.template import Template

PRE_START_MAX_S: Final = 28.0  # kubelet's timeout is 30 s (pkg/kubelet/cm/devicemanager)
_INTERVAL_MIN_S: Final = 0.1
_SHELLS: Final = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})


def check_steps(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield errors and warnings of ``health`` and ``preStart``."""
    if resource.health is None and not resource.pre_start:
        return
    known = variables_of(resource)
    if known is None:
        return
    if resource.health is not None:
        yield from _health((*path, "health"), resource.health, known - {"index", "count"}, known)
    for where, argv in _commands(path, resource):
        yield from _options(where, argv, resource)
        yield from _script(where, argv)
    total = 0.0
    for index, step in enumerate(resource.pre_start):
        yield from _step((*path, "preStart", index), step, known)
        shared = resource.replicas > 1 or resource.overlap == "allow"
        if step.run and step.every == "holder" and shared:
            message = (
                "another pod may be using a shared device (replicas, overlap) when this one "
                "starts; set `every: start` if the step does no harm then"
            )
            yield "error", (*path, "preStart", index), message, True
        total += step.time_limit
    if total > PRE_START_MAX_S:
        message = (
            f"the timeouts of the steps add up to {total:g}s, but devhost aborts all steps after "
            f"{PRE_START_MAX_S:g}s (kubelet's limit is 30s)"
        )
        yield "warning", (*path, "preStart"), message, True


def _commands(path: Path, resource: Resource) -> Iterator[tuple[Path, tuple[Template, ...]]]:
    for index, check in enumerate(resource.health.checks if resource.health else ()):
        if isinstance(check, Probe):
            yield (*path, "health", "checks", index, "exec"), check.exec or ()
    for index, step in enumerate(resource.pre_start):
        yield (*path, "preStart", index, "run"), step.run or ()


def _options(path: Path, argv: tuple[Template, ...], resource: Resource) -> Iterator[Finding]:
    """Warn of arguments that are refused where a device's name begins with ``-``."""
    for index, text in enumerate(argv):
        if text.opening is not None and _may_be_option(text, resource):
            name = f"${{{text.opening}}}"
            message = (
                f"if {name} begins with '-', the command is not run, because it would take this "
                f"argument for an option; write for example --name={name}, or use ${{path}}"
            )
            yield "warning", (*path, index), message, False


def _may_be_option(text: Template, resource: Resource) -> bool:
    """Whether a text that begins with a variable may begin with ``-``."""
    role, _, name = (text.opening or "").rpartition(".")
    if name in CONTAINER_VARIABLES or name in ("path", "realpath", "index"):
        return False
    own = resource.id if name == "id" else None
    if name == "id" and own is None and resource.group is not None:
        own = (resource.group,)
    if own is not None:
        return any(
            str(one).startswith("-") or (one.opening is not None and _may_be_option(one, resource))
            for one in own
        )
    kinds = [one.kind for one in resource.sources if not role or one.role == role]
    if name not in BUILT_IN_VARIABLES:
        patterns = [kind.pattern for kind in kinds if isinstance(kind, Dev)]
        return any(
            name in pattern.group_names(one) and pattern.may_begin_with(one, name, "-")
            for one in patterns
        )
    return any(
        not isinstance(kind, Static) or any(one.startswith("-") for one in kind.ids or ())
        for kind in kinds
    )


def _script(path: Path, argv: tuple[Template, ...]) -> Iterator[Finding]:
    """Warn of a shell that would run what the name of a device contains."""
    words = [str(text) for text in argv]
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        return
    for index, text in enumerate(argv[1:], 1):
        if words[index - 1].startswith("-") and words[index - 1].endswith("c"):
            names_of_device = sorted(text.names - CONTAINER_VARIABLES - {"index"})
            if names_of_device:
                variable = f"${{{names_of_device[0]}}}"
                message = (
                    f"the shell would run what {variable} contains, such as ';' in a file's name; "
                    f'pass it as an argument: [sh, -c, \'tool "$$1"\', sh, "{variable}"]'
                )
                yield "warning", (*path, index), message, False
            return


def _health(
    path: Path, health: HealthChecks, allowed: frozenset[str], known: frozenset[str]
) -> Iterator[Finding]:
    if not health.checks:
        yield "error", path, "needs at least one check: readable, writable, file or exec", True
    if health.interval < _INTERVAL_MIN_S:
        yield "error", (*path, "interval"), "should be at least 100ms", False
    if health.timeout <= 0:
        yield "error", (*path, "timeout"), "should be more than 0s", False
    for index, check in enumerate(health.checks):
        if not isinstance(check, Probe):
            continue
        base = (*path, "checks", index)
        yield from _arguments((*base, "exec"), check.exec or (), allowed, known)
        if check.file is not None:
            where = (*base, "file", "path")
            yield from check_template(where, check.file.path, allowed, known)
            yield from check_path(where, check.file.path)
            matches = (*base, "file", "matches")
            yield from check_lengths(check.file.matches, matches)
            for place, text in enumerate(check.file.matches):
                if mistake := content_mistake(text):
                    yield "warning", (*matches, place), mistake, False


def _step(path: Path, step: Step, known: frozenset[str]) -> Iterator[Finding]:
    if not 0 < step.time_limit <= PRE_START_MAX_S:
        message = f"should be at most {PRE_START_MAX_S:g}s, and not 0 (kubelet's limit is 30s)"
        yield "error", (*path, "timeout"), message, False
    yield from _arguments((*path, "run"), step.run or (), known, known)
    if step.wait_for is not None:
        yield from check_template((*path, "waitFor"), step.wait_for, known, known)
        yield from check_path((*path, "waitFor"), step.wait_for)


def _arguments(
    path: Path, texts: tuple[Template, ...], allowed: frozenset[str], known: frozenset[str]
) -> Iterator[Finding]:
    for index, text in enumerate(texts):
        yield from check_template((*path, index), text, allowed, known)
    if not texts:
        return
    program = str(texts[0]).partition(" ")[0]
    if not texts[0].parts:
        yield "error", (*path, 0), "the command is empty", False
    elif "/" in program and not program.startswith(("/", "$")):
        yield "error", (*path, 0), f"{program!r} is a relative path; write the absolute one", False
    elif mistake := command_mistake([*map(str, texts)]):
        yield "warning", (*path, mistake[0]), mistake[1], False
