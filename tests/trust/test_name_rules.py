"""Attacks by names: of CDI devices, of annotations and variables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import report
from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.library.plugin import declared
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from tests.support.scanning import selected
from tests.trust.attack import NAME, allocated, config, written

NONE: Final = Policy(enforced=True)
Allocate = Mapping[str, Any]


def refused(text: str, policy: Policy = NONE) -> str:
    """Return the one error of a configuration; without a policy in force it is a warning."""
    (error,) = (one for one in loads(text, "f.yaml", policy).problems if one.severity == "error")
    loaded = loads(text, "f.yaml", replace(policy, enforced=False))
    assert loaded.config is not None
    assert error.message in {one.message for one in loaded.problems if one.severity == "warning"}
    return str(error)


def giving(allocate: Allocate, **more: Any) -> str:
    return config({"sources": [{"static": 1}], "allocate": allocate, **more})


# ── CDI ──

CDI: Final = [
    "nvidia.com/gpu=all",
    "devhost.other.com/disk=x",
    "devhost.example.com/loot=0",
    "v/c=x",
]


@pytest.mark.parametrize("name", CDI)
def test_a_cdi_device_needs_a_flag(name: str) -> None:
    """Its spec may mount anything; one of devhost's would pass a claim and its policy by."""
    assert f"--allow-cdi '{name}'" in refused(giving({"cdi": [name]}))
    allowed = replace(NONE, allow_cdi=(name,))
    assert loads(giving({"cdi": [name]}), policy=allowed).config is not None


@pytest.mark.parametrize("text", ["v/c=${id}", "v/${name}=x", "v/c=n${index}"])
def test_cdi_names_from_devices_need_a_flag(text: str) -> None:
    assert "CDI devices need --allow-cdi" in refused(giving({"cdi": [text]}))


# ── annotations ──


@pytest.mark.parametrize("key", ["nvidia.cdi.k8s.io/x", "krun.vm", "example.com/x", "${resource}"])
def test_an_annotation_needs_a_flag_whatever_its_domain(key: str) -> None:
    """Runtimes obey more than any list knows, and the editor chooses the resource's domain."""
    own = key.replace("${resource}", NAME)
    error = refused(giving({"annotations": {key: "x"}}))
    assert f"annotation {own} needs --allow-annotation '{own}'" in error
    allowed = replace(NONE, allow_annotations=(own,))
    assert loads(giving({"annotations": {key: "x"}}), policy=allowed).config is not None


@pytest.mark.parametrize("key", ["cdi.k8s.io/x", "io.kubernetes.cri-o.Devices", "bundle"])
def test_no_flag_allows_what_steers_a_runtime(key: str) -> None:
    everything = replace(NONE, allow_annotations=("*",))
    assert loads(giving({"annotations": {key: "x"}}), policy=everything).config is None


# ── variables ──


@pytest.mark.parametrize(
    "name", ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "ASCEND_RUNTIME_OPTIONS"]
)
def test_a_variable_by_which_a_runtime_adds_devices_needs_a_flag(name: str) -> None:
    error = refused(giving({"env": {name: "x"}}))
    assert f"resources[0].allocate.env.{name}: " in error
    assert f"--allow-cdi '{name}'" in error
    for glob, allows in ((name, True), (f"{name[:6]}*", True), (name[:6], False)):
        allowed = replace(NONE, allow_cdi=(glob,))
        assert bool(loads(giving({"env": {name: "x"}}), policy=allowed).config) == allows


@pytest.mark.parametrize("name", ["COLA_DEVICES", "LD_PRELOAD", "HTTPS_PROXY"])
def test_other_variables_need_none(name: str) -> None:
    """Only the program in the pod reads them, and no list of those that steer one is complete."""
    assert loads(giving({"env": {name: "x"}}), policy=NONE).config is not None


# ── names that are known at a scan ──


class Scanned:
    """A resource of tokens, whose names become names in the answer."""

    def __init__(self, allocate: Allocate, ids: list[str], policy: Policy, **more: Any) -> None:
        text = config({"sources": [{"static": {"ids": ids}}], "allocate": allocate, **more})
        self.resources = loads(text, policy=policy).require()
        (resource,) = self.resources.resources
        self.scanner = Scanner.of(resource, HostFiles(), policy, "node-1", hold_s=0)
        self.snapshot = self.scanner.snapshot(
            selected(self.scanner), Snapshot(), lambda _key: None, 1.0
        )

    def reason(self, device: str) -> str | None:
        return self.snapshot.devices[device].reason


@pytest.mark.parametrize(
    ("allocate", "bad", "flag"),
    [
        ({"env": {"${id}_DEVICES": "x"}}, "AMD_VISIBLE", "--allow-cdi 'AMD_VISIBLE_DEVICES'"),
        ({"annotations": {"${id}/x": "x"}}, "mounts.nri.io", "--allow-annotation"),
    ],
)
@pytest.mark.parametrize("inject", ["deviceSpecs", "cdi"])
def test_a_rendered_name_is_its_devices_problem(
    allocate: Allocate, bad: str, flag: str, inject: str
) -> None:
    """The other devices are offered, and neither an answer nor a CDI spec has the name."""
    fine = Scanned(allocate, [bad], Policy(), inject=inject)
    assert fine.reason(bad) is None
    policy = replace(NONE, allow_annotations=("good/x",))
    scanned = Scanned(allocate, [bad, "good"], policy, inject=inject)
    assert flag in (scanned.reason(bad) or "")
    refusals, answers = allocated(scanned.scanner, scanned.snapshot)
    assert any(flag in one for one in refusals)
    assert list(answers) == ["good"]
    assert bad not in written(scanned.scanner, scanned.snapshot)
    (shown,) = report(fine.resources, HostFiles(), Policy(), "node-1")
    assert any(flag in one for one in shown.warnings)


def test_a_name_that_only_two_devices_make_is_refused_at_allocate() -> None:
    """``${index}`` is 0 at the scan; ``${count}`` is 1."""
    policy = replace(NONE, allow_cdi=("v/c=0", "v/c=x1"))
    for name in ("v/c=${index}", "v/c=x${count}"):
        scanned = Scanned({"cdi": [name]}, ["a", "b"], policy)
        assert scanned.reason("a") is None
        assert scanned.scanner.allocate(scanned.snapshot, ("b",)).cdi_devices
        with pytest.raises(AllocationError, match="--allow-cdi"):
            scanned.scanner.allocate(scanned.snapshot, ("a", "b"))


# ── code ──


def test_code_may_use_all_names() -> None:
    """Its options are as trusted as the code."""
    allocate = {
        "env": {"NVIDIA_VISIBLE_DEVICES": "x"},
        "annotations": {"other.com/x": "x"},
        "cdi": ["nvidia.com/gpu=all"],
    }
    resource, warnings = declared("nvidia.com/gpu", {"allocate": allocate})
    assert resource.name == "nvidia.com/gpu"
    assert warnings == ()
