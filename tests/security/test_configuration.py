"""Attacks by the configuration's text: keys that hide, tags, merges, numbers, odd sources."""

import pytest

from devhost.config.loader import loads
from tests.security.attack import Victim, config, policy

HEAD = "version: v1\nresources:\n"
RESOURCE = "name: e.com/a, sources: [static: 1]"
MOUNT = "allocate: {mounts: [/etc/shadow]}"


@pytest.mark.parametrize(
    "text",
    [
        # keys that no check knows
        f"{HEAD}- {{{RESOURCE}, x-mounts: [/]}}",
        f"policy: {{enforced: false}}\n{HEAD}- {{{RESOURCE}}}",
        # what is merged
        f"x-a: &a {{{MOUNT}}}\n{HEAD}- {{<<: [{{}}, *a], {RESOURCE}}}",
        f"x-a: &a [/etc/shadow]\n{HEAD}- {{{RESOURCE}, allocate: {{mounts: *a}}}}",
        # duplicates
        f"{HEAD}- {{{RESOURCE}, allocate: {{}}, {MOUNT}}}",
        f"{HEAD}- {{{RESOURCE}}}\n---\n{HEAD}- {{{RESOURCE}, {MOUNT}}}",
        # tags
        f"{HEAD}- !!python/object/apply:os.system [id]",
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: [!!binary L2V0Yy9zaGFkb3c=]}}}}",
        # how it is written
        f'{HEAD}- {{{RESOURCE}, "allo\\u0063ate": {{mounts: ["/etc\\x2fshadow"]}}}}',
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: {{hostPath: /etc/shadow, optional: true}}}}}}",
        # where it is not used
        f"{HEAD}- {{{RESOURCE}, nodeNames: [elsewhere], {MOUNT}}}",
        f"{HEAD}- {{name: e.com/a, sources: [static: 0], inject: cdi, {MOUNT}}}",
    ],
)
def test_file_that_asks_for_more_gets_nothing(node: Victim, text: str) -> None:
    """`validate --enforce` refuses it; `run` may take it, for other resources."""
    assert loads(text, policy=policy()).config is None
    loaded = loads(text).config
    for resource in loaded.resources if loaded is not None else ():
        outcome = node.outcome(node.scanner_of(resource))
        assert not outcome.answers
        assert not outcome.spec


@pytest.mark.parametrize(
    "source",
    [
        {"directory": {"path": "/", "recursive": True, "types": ["file", "directory", "symlink"]}},
        "/proc/*/mem",
        "/sys/**",
    ],
)
def test_source_anywhere_brings_nothing_by_itself(node: Victim, source: object) -> None:
    for path in ("/proc/sys/kernel/core_pattern", "/proc/1/mem", "/sys/kernel/x", "/etc/shadow"):
        node.file(path)
    node.link("/proc/1/root", "/")
    node.link("/proc/1/exe", "/etc/shadow")
    node.gives_no_node({"sources": [source], "id": "${realpath}"})
    node.refuses({"sources": [source], "allocate": {"mounts": ["${path}"]}}, why="--allow-path")


COMMAND = {"exec": ["true"]}


@pytest.mark.parametrize(
    "steps",
    [
        {"preStart": [{"waitFor": "/x"}, {"run": ["true"], "every": "start"}]},
        {"health": ["readable", COMMAND]},
        {"health": {"checks": ["readable", COMMAND]}},
    ],
)
def test_command_needs_its_flag_in_each_place(steps: dict[str, object]) -> None:
    """An allowed path allows none; a resource for another node hides none."""
    for options in ({}, {"nodeNames": ["elsewhere"]}, {"sources": [{"static": 0}]}):
        text = config({"sources": [{"static": 1}], **steps, **options})
        loaded = loads(text, policy=policy("*"))
        assert loaded.config is None
        (problem,) = loaded.problems
        assert problem.severity == "error"
        assert "--allow-exec" in problem.message
        assert loads(text, policy=policy(execs=True)).config is not None
