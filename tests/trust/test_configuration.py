"""Attacks by the configuration's text: keys that hide, tags, merges, numbers, odd sources."""

from pathlib import Path

import pytest

from devhost.kubelet.device_list import AdvertisedDevice
from devhost.kubelet.servicer import list_response
from devhost.loading.loader import loads
from tests.trust.attack import Victim, config, policy

HEAD = "version: v1\nresources:\n"
RESOURCE = "name: e.com/a, sources: [static: 1]"
MOUNT = "allocate: {mounts: [/etc/shadow]}"


@pytest.mark.parametrize(
    "text",
    [
        # keys that no check knows
        f"{HEAD}- {{{RESOURCE}, x-mounts: [/]}}",
        f"{HEAD}- {{{RESOURCE}, allocate: {{x-a: 1}}}}",
        f"{HEAD}- {{{RESOURCE}, Allocate: {{mounts: [/]}}}}",
        f"{HEAD}- {{{RESOURCE}, pre_start: []}}",
        f"{HEAD}- {{{RESOURCE}, max_devices: 1}}",
        f"X-a: 1\n{HEAD}- {{{RESOURCE}}}",
        f"allowPath: ['*']\n{HEAD}- {{{RESOURCE}}}",
        f"policy: {{enforced: false}}\n{HEAD}- {{{RESOURCE}}}",
        # what is merged
        f"x-a: &a {{evil: 1}}\n{HEAD}- {{<<: *a, {RESOURCE}}}",
        f"x-a: &a {{{MOUNT}}}\n{HEAD}- {{<<: *a, {RESOURCE}}}",
        f"x-a: &a {{{MOUNT}}}\n{HEAD}- {{<<: [{{}}, *a], {RESOURCE}}}",
        f"x-a: &a {{{MOUNT}}}\nx-b: &b {{<<: *a}}\n{HEAD}- {{<<: *b, {RESOURCE}}}",
        f"x-a: &a [/etc/shadow]\n{HEAD}- {{{RESOURCE}, allocate: {{mounts: *a}}}}",
        f"x-r: &r\n- {{{RESOURCE}, {MOUNT}}}\nversion: v1\nresources: *r",
        f"x-r: &r {{resources: [{{{RESOURCE}, {MOUNT}}}]}}\nversion: v1\n<<: *r",
        # duplicates
        f"{HEAD}- {{{RESOURCE}, allocate: {{}}, {MOUNT}}}",
        f"{HEAD}- {{{RESOURCE}, {MOUNT}, allocate: {{}}}}",
        f"{HEAD}- {{{RESOURCE}}}\n- {{{RESOURCE}, {MOUNT}}}",
        f"{HEAD}- {{{RESOURCE}}}\nresources:\n- {{{RESOURCE}, {MOUNT}}}",
        f"{HEAD}- {{{RESOURCE}}}\n---\n{HEAD}- {{{RESOURCE}, {MOUNT}}}",
        # tags
        f"{HEAD}- !!python/object/apply:os.system [id]",
        f"{HEAD}- {{{RESOURCE}, allocate: !!python/name:os.system ''}}",
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: !!set {{/etc/shadow}}}}}}",
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: !!omap [/etc/shadow: 1]}}}}",
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: [!!binary L2V0Yy9zaGFkb3c=]}}}}",
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: [!!str /etc/shadow]}}}}",
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: [! /etc/shadow]}}}}",
        f"%YAML 1.2\n%TAG ! tag:x,2000:\n---\n{HEAD}- {{{RESOURCE}, allocate: {{mounts: [!a /etc/shadow]}}}}",
        # how it is written
        f'{HEAD}- {{{RESOURCE}, allocate: {{mounts: ["/etc\\x2fshadow"]}}}}',
        f'{HEAD}- {{{RESOURCE}, "allo\\u0063ate": {{mounts: [/etc/shadow]}}}}',
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: {{hostPath: /etc/shadow}}}}}}",
        f"{HEAD}- {{{RESOURCE}, allocate: {{mounts: [{{hostPath: /etc/shadow, optional: true}}]}}}}",
        f"{HEAD}- {{{RESOURCE}, nodeNames: [elsewhere], {MOUNT}}}",
        f"{HEAD}- {{{RESOURCE}, inject: cdi, {MOUNT}}}",
        f"{HEAD}- {{{RESOURCE}, replicas: 2, overlap: allow, {MOUNT}}}",
        f"{HEAD}- {{name: e.com/a, sources: [static: 0], {MOUNT}}}",
    ],
)
def test_what_is_not_allowed_is_not_smuggled_past_the_loader(text: str) -> None:
    """However it is written, merged, tagged or repeated: the configuration is invalid."""
    assert loads(text, policy=policy()).config is None


def test_aliases_do_not_fill_the_memory() -> None:
    """Aliases of aliases are counted as what they would make."""
    lines = ["x-a0: &a0 [/a, /a, /a, /a, /a, /a, /a, /a, /a, /a]"]
    lines += [f"x-a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    text = "\n".join(lines) + f"\n{HEAD}- {{{RESOURCE}, allocate: {{mounts: *a11}}}}"
    assert loads(text, policy=policy()).config is None


def test_what_is_ignored_is_not_used() -> None:
    """A top-level key that begins with x- declares nothing by itself."""
    text = f"x-resources:\n- {{{RESOURCE}, {MOUNT}}}\nversion: v1\nresources: []"
    loaded = loads(text, policy=policy())
    assert loaded.config is not None
    assert loaded.config.resources == ()


@pytest.mark.parametrize(
    "source",
    [
        {"directory": {"path": "/sys", "recursive": True, "types": ["file", "directory"]}},
        {"directory": {"path": "/proc", "recursive": True, "types": ["file", "symlink"]}},
        {"directory": {"path": "/", "recursive": True, "types": ["file", "directory", "symlink"]}},
        "/proc/sys/kernel/*",
        "/proc/*/mem",
        "/sys/**",
        "/**",
    ],
)
def test_a_source_anywhere_brings_nothing_by_itself(node: Victim, source: object) -> None:
    """What a source finds in /proc, /sys or anywhere is neither mounted nor passed."""
    for path in ("/proc/sys/kernel/core_pattern", "/proc/1/mem", "/sys/kernel/x", "/etc/shadow"):
        node.file(path)
    node.link("/proc/1/root", "/")
    node.link("/proc/1/exe", "/etc/shadow")
    for outcome in node.by_both_ways({"sources": [source], "id": "${realpath}"}):
        assert not any(answer.specs for answer in (outcome.answers or {}).values())
        assert not outcome.spec
    mounted = {"sources": [source], "allocate": {"mounts": ["${path}"]}}
    for outcome in node.by_both_ways(mounted):
        outcome.nothing("--allow-path")


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": 10**30},
        {"replicas": -1},
        {"replicas": 0},
        {"maxDevices": 10**30},
        {"maxPerContainer": 10**30},
        {"sources": [{"static": 10**9}]},
        {"sources": [{"static": -1}]},
        {"sources": [{"static": 20_000}], "replicas": 2},
        {"topology": 2**63},
        {"topology": 10**30},
        {"topology": -1},
        {"health": {"checks": ["readable"], "interval": "0s"}},
        {"health": {"checks": ["readable"], "timeout": "0s"}},
        {"health": {"checks": ["readable"], "failures": 10**30}},
        {"preStart": [{"mode": "0666", "timeout": "9" * 400 + "h"}]},
        {"inject": "cdi", "allocate": {"devices": [{"hostPath": "/dev/null", "uid": 2**32 - 1}]}},
        {"inject": "cdi", "allocate": {"devices": [{"hostPath": "/dev/null", "uid": -1}]}},
        {"inject": "cdi", "allocate": {"devices": [{"hostPath": "/dev/null", "gid": 10**30}]}},
    ],
)
def test_a_number_beyond_all_measure_is_refused(options: dict[str, object]) -> None:
    """Numbers that no list, clock or runtime can hold are an error of the configuration."""
    assert loads(config({"sources": [{"static": 1}], **options}), policy=policy()).config is None


def test_the_highest_numa_node_can_be_told(node: Victim) -> None:
    """What the loader takes for a NUMA node, a list can hold."""
    (device,) = node.attack(
        {"sources": [{"static": 1}], "topology": 1023}
    ).snapshot.devices.values()
    list_response({"0": AdvertisedDevice(True, device.numa_nodes)})


def test_a_policy_that_warns_and_one_that_refuses_find_the_same(tmp_path: Path) -> None:
    """`validate` says what `run` would refuse."""
    text = config(
        {
            "sources": [{"dev": {"pattern": "x", "types": "block"}}],
            "preStart": [{"run": ["x"]}],
            "allocate": {"mounts": ["/etc"], "devices": ["/opt/x"]},
        }
    )
    refused = loads(text, policy=policy()).problems
    warned = loads(text).problems
    assert len(refused) == 4
    assert [one.message for one in refused] == [one.message for one in warned]
    assert {one.severity for one in warned} == {"warning"}
