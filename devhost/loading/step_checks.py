"""Errors and warnings of health checks and preStart steps."""

from collections.abc import Iterator
from typing import Final

from devhost.loading.template_checks import check_path, check_template, variables_of
from devhost.loading.yamltree import Finding, Path
from devhost.model import pattern
from devhost.model.config import HealthChecks, Probe, Resource, Step
from devhost.model.pattern import PatternError
from devhost.model.template import Template

PRE_START_MAX_S: Final = 28.0  # kubelet's timeout is 30 s (pkg/kubelet/cm/devicemanager)
_INTERVAL_MIN_S: Final = 0.1


def check_steps(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield errors and warnings of ``health`` and ``preStart``."""
    if resource.health is None and not resource.pre_start:
        return
    known = variables_of(resource)
    if known is None:
        return
    if resource.health is not None:
        yield from _health((*path, "health"), resource.health, known - {"index", "count"}, known)
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
        total += step.timeout if "timeout" in step.model_fields_set else 0.0
    if total > PRE_START_MAX_S:
        message = (
            f"the timeouts of the steps add up to {total:g}s, but devhost aborts all steps after "
            f"{PRE_START_MAX_S:g}s (kubelet's limit is 30s)"
        )
        yield "warning", (*path, "preStart"), message, True


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
            try:
                pattern.group_names(check.file.matches)
            except PatternError as error:
                yield "error", (*base, "file", "matches"), str(error), False


def _step(path: Path, step: Step, known: frozenset[str]) -> Iterator[Finding]:
    if not 0 < step.timeout <= PRE_START_MAX_S:
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
    if texts and not texts[0].parts:
        yield "error", (*path, 0), "the command is empty", False
