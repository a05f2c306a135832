"""Attacks by names: of CDI devices, annotations, variables and resources."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.model.device import Snapshot
from tests.security.attack import NAME, Victim, allocated, config, written
from tests.support.offered import offered
from tests.support.scanning import nobody, selected, snapshot_of

NONE: Final = Policy(enforced=True)
Allocate = Mapping[str, Any]


def refused(allocate: Allocate) -> str:
    """Return the only error of what a resource gives; without a policy in force it is a warning."""
    text = giving(allocate)
    (error,) = (p for p in loads(text, "f.yaml", NONE).problems if p.severity == "error")
    loaded = loads(text, "f.yaml", replace(NONE, enforced=False))
    assert loaded.config is not None
    assert error.message in {p.message for p in loaded.problems if p.severity == "warning"}
    return str(error)


def giving(allocate: Allocate) -> str:
    return config({"sources": [{"static": 1}], "allocate": allocate})


@pytest.mark.parametrize("name", ["nvidia.com/gpu=all", "devhost.example.com/loot=0"])
def test_cdi_device_needs_a_flag(name: str) -> None:
    """Its spec may mount anything; one of devhost's would pass a claim and its policy by."""
    assert f"--allow-cdi '{name}'" in refused({"cdi": [name]})
    for text in ("v/c=${id}", "v/${name}=x", "v/c=n${index}"):
        assert "CDI devices need --allow-cdi" in refused({"cdi": [text]})
    allowed = replace(NONE, allow_cdi=(name,))
    assert loads(giving({"cdi": [name]}), policy=allowed).config is not None


@pytest.mark.parametrize("key", ["nvidia.cdi.k8s.io/x", "krun.vm", "${resource}"])
def test_annotation_needs_a_flag_whatever_its_domain(key: str) -> None:
    """Runtimes obey more than any list knows, and the editor chooses the resource's domain."""
    expanded = key.replace("${resource}", NAME)
    error = refused({"annotations": {key: "x"}})
    assert f"annotation {expanded} needs --allow-annotation '{expanded}'" in error
    allowed = replace(NONE, allow_annotations=(expanded,))
    assert loads(giving({"annotations": {key: "x"}}), policy=allowed).config is not None


@pytest.mark.parametrize(
    "name", ["NVIDIA_DRIVER_CAPABILITIES", "AMD_VISIBLE_DEVICES", "ASCEND_RUNTIME_OPTIONS"]
)
def test_variable_by_which_a_runtime_adds_devices_needs_a_flag(name: str) -> None:
    error = refused({"env": {name: "x"}})
    assert f"resources[0].allocate.env.{name}: " in error
    assert f"--allow-cdi {name} (chart: allow.cdi)" in error
    for glob, allows in ((name, True), (f"{name[:6]}*", True), (name[:6], False)):
        allowed = replace(NONE, allow_cdi=(glob,))
        assert bool(loads(giving({"env": {name: "x"}}), policy=allowed).config) == allows


@pytest.mark.parametrize(
    "key",
    ["cdi.k8s.io/x", "io.kubernetes.cri-o.Devices", "io.katacontainers.config.hypervisor.path",
     "module.wasm.image/variant", "bundle"],
)  # fmt: skip
def test_annotation_that_steers_a_runtime_is_refused(node: Victim, key: str) -> None:
    """No flag allows it, also where variables make the name; runc and crun list unsafe ones."""
    everything = replace(NONE, allow_annotations=("*",))
    (problem,) = loads(giving({"annotations": {key: "x"}}), policy=everything).problems
    assert "the runtime" in problem.message
    for cut in (3, len(key)):
        allocate = {"annotations": {f"${{id}}{key[cut:]}": "x"}}
        resource = {"sources": [{"static": {"ids": [key[:cut]]}}], "allocate": allocate}
        node.attack(resource).nothing("the runtime")


class Scanned:
    """A resource of tokens, whose names become names in the answer."""

    def __init__(self, allocate: Allocate, ids: list[str], policy: Policy, **options: Any) -> None:
        text = config({"sources": [{"static": {"ids": ids}}], "allocate": allocate, **options})
        self.resources = loads(text, policy=policy).require()
        (resource,) = self.resources.resources
        self.scanner = Scanner(resource, HostFiles(), policy, "node-1", settle_s=0)
        self.snapshot = snapshot_of(self.scanner, selected(self.scanner), Snapshot(), nobody, 1.0)

    def reason(self, device: str) -> str | None:
        return self.snapshot.devices[device].reason


@pytest.mark.parametrize(
    ("allocate", "bad", "flag", "inject"),
    [
        ({"env": {"${id}_DEVICES": "x"}}, "AMD_VISIBLE", "--allow-cdi AMD_VISIBLE_DEVICES", "cdi"),
        ({"annotations": {"${id}/x": "x"}}, "mounts.nri.io", "--allow-annotation", "deviceSpecs"),
    ],
)  # fmt: skip
def test_refused_name_is_unhealthy(allocate: Allocate, bad: str, flag: str, inject: str) -> None:
    """Other devices are offered; neither an answer nor a CDI spec has a refused name."""
    fine = Scanned(allocate, [bad], Policy(), inject=inject)
    assert fine.reason(bad) is None
    policy = replace(NONE, allow_annotations=("good/x",))
    scanned = Scanned(allocate, [bad, "good"], policy, inject=inject)
    assert flag in (scanned.reason(bad) or "")
    refusals, answers = allocated(scanned.scanner, scanned.snapshot)
    assert any(flag in text for text in refusals)
    assert list(answers) == ["good"]
    assert bad not in written(scanned.scanner, scanned.snapshot)


@pytest.mark.parametrize("name", ["v/c=${index}", "v/c=x${count}"])
def test_name_made_only_by_two_devices_is_refused_at_allocate(name: str) -> None:
    scanned = Scanned({"cdi": [name]}, ["a", "b"], replace(NONE, allow_cdi=("v/c=0", "v/c=x1")))
    assert scanned.reason("a") is None
    assert scanned.scanner.allocate(scanned.snapshot, offered("b")).cdi_devices
    with pytest.raises(AllocationError, match="--allow-cdi"):
        scanned.scanner.allocate(scanned.snapshot, offered("a", "b"))
