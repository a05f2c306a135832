"""Attacks by names: of other vendors' resources and CDI devices, of annotations and variables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from devhost.allocation import name_policy
from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.library.options import declared
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from devhost.report import report
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


def named(name: str) -> str:
    return f"version: v1\nresources:\n  - name: {name}\n    sources: [static: 1]\n"


def giving(allocate: Allocate, **more: Any) -> str:
    return config({"sources": [{"static": 1}], "allocate": allocate, **more})


# ── resources ──


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.5gb",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "intel.com/fpga",
        "sgx.intel.com/epc",
        "habana.ai/gaudi",
        "xilinx.com/fpga-x",
        "aws.amazon.com/neuron",
        "vpc.amazonaws.com/efa",
        "google.com/tpu",
        "huawei.com/Ascend910",
        "devices.kubevirt.io/kvm",
    ],
)
def test_the_name_of_a_vendors_resource_needs_a_flag(name: str) -> None:
    """The next pod that requests a GPU would get what the configuration says."""
    error = refused(named(name))
    assert error.startswith("f.yaml:3:11: error: resources[0].name: another device plugin")
    assert f"--allow-resource '{name}'" in error
    for glob in (name, f"{name.partition('/')[0]}/*", "*"):
        allowed = replace(NONE, allow_resources=(glob,))
        assert loads(named(name), policy=allowed).config is not None


@pytest.mark.parametrize(
    "name",
    ["example.com/gpu", "notnvidia.com/gpu", "nvidia.com.example.org/gpu", "nvidia.example/gpu"],
)
def test_the_domain_counts_as_a_whole(name: str) -> None:
    assert loads(named(name), policy=NONE).config is not None


def test_with_the_flag_nothing_else_is_allowed() -> None:
    policy = replace(NONE, allow_resources=("example.com/a*", "e.org/x"))
    for name in ("example.com/abc", "e.org/x"):
        assert loads(named(name), policy=policy).config is not None
    for name in ("example.com/b", "e.org/xy", "sub.example.com/a"):
        assert f"--allow-resource '{name}'" in refused(named(name), policy)


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


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.cdi.k8s.io/x",
        "dev.gvisor.spec.mount.a.source",
        "krun.vm",
        "mounts.nri.io/container.app",
        "io.containers.trace-syscall",
        "io.podman.annotations.privileged",
        "container.apparmor.security.beta.kubernetes.io/app",
        "cpu-quota.crio.io",
        "other.com/x",
        "com/x",
        "example.com.evil.org/x",
        "notexample.com/x",
        "plain",
    ],
)
def test_an_annotation_outside_the_resources_domain_needs_a_flag(key: str) -> None:
    error = refused(giving({"annotations": {key: "x"}}))
    assert f"--allow-annotation '{key}'" in error
    allowed = replace(NONE, allow_annotations=(key,))
    assert loads(giving({"annotations": {key: "x"}}), policy=allowed).config is not None


@pytest.mark.parametrize("key", ["example.com/x", "sub.example.com/x", "${resource}"])
def test_annotations_of_the_resources_own_domain_are_its_own(key: str) -> None:
    assert loads(giving({"annotations": {key: "x"}}), policy=NONE).config is not None


@pytest.mark.parametrize(
    ("domain", "key"),
    [
        ("nri.io", "mounts.nri.io/x"),
        ("k8s.io", "nvidia.cdi.k8s.io/x"),
        ("crio.io", "cpu-quota.crio.io/x"),
        ("cri-o.io", "seccomp-profile.kubernetes.cri-o.io/app"),
    ],
)
def test_a_resource_in_a_runtimes_domain_may_not_use_its_annotations(domain: str, key: str) -> None:
    """The editor chooses the resource's name too."""
    text = giving({"annotations": {key: "x"}}).replace("example.com", domain)
    assert f"--allow-annotation '{key}'" in refused(text)


def test_a_top_level_domain_does_not_make_all_below_it_the_resources_own() -> None:
    """A resource may be called com/x."""
    for key, own in (("vendor.com/x", False), ("com/x", True)):
        text = giving({"annotations": {key: "x"}}).replace("example.com", "com")
        assert (loads(text, policy=NONE).config is not None) is own


@pytest.mark.parametrize("key", ["cdi.k8s.io/x", "io.kubernetes.cri-o.Devices", "bundle"])
def test_no_flag_allows_what_steers_a_runtime(key: str) -> None:
    everything = replace(NONE, allow_annotations=("*",))
    assert loads(giving({"annotations": {key: "x"}}), policy=everything).config is None


# ── variables ──

STEERING: Final = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "PATH",
    "BASH_ENV",
    "ENV",
    "IFS",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PERL5OPT",
    "RUBYOPT",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "HTTPS_PROXY",
    "https_proxy",
    "No_Proxy",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "DOCKER_HOST",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "ASCEND_RUNTIME_OPTIONS",
]


@pytest.mark.parametrize("name", STEERING)
def test_a_variable_that_steers_something_needs_a_flag(name: str) -> None:
    error = refused(giving({"env": {name: "x"}}))
    assert f"resources[0].allocate.env.{name}: " in error
    assert f"--allow-env '{name}'" in error
    allowed = replace(NONE, allow_env=(name,))
    assert loads(giving({"env": {name: "x"}}), policy=allowed).config is not None


@pytest.mark.parametrize(
    "name",
    ["COLA_DEVICES", "SERIAL_PORTS", "LDAP", "PATHS", "NODE_NAME", "PROXY", "DEVICE_PATH", "FOO_0"],
)
def test_other_variables_need_none(name: str) -> None:
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
        ({"env": {"${id}": "x"}}, "LD_PRELOAD", "--allow-env 'LD_PRELOAD'"),
        ({"env": {"L${id}": "x"}}, "D_AUDIT", "--allow-env 'LD_AUDIT'"),
        ({"env": {"${id}_proxy": "x"}}, "https", "--allow-env 'https_proxy'"),
        ({"annotations": {"${id}/x": "x"}}, "mounts.nri.io", "--allow-annotation"),
        ({"annotations": {"${id}": "x"}}, "krun.vm", "--allow-annotation 'krun.vm'"),
        ({"annotations": {"${id}xample.com/x": "x"}}, "not.e", None),
        ({"annotations": {"${id}xample.com/x": "x"}}, "note", "--allow-annotation"),
    ],
)
@pytest.mark.parametrize("inject", ["deviceSpecs", "cdi"])
def test_a_rendered_name_is_its_devices_problem(
    allocate: Allocate, bad: str, flag: str | None, inject: str
) -> None:
    """The other devices are offered, and neither an answer nor a CDI spec has the name."""
    good = "e" if "annotations" in allocate else "GOOD"
    if list(allocate.get("annotations", ())) == ["${id}"]:
        good = "example.com"
    fine = Scanned(allocate, [bad], Policy(), inject=inject)
    assert fine.reason(bad) is None
    scanned = Scanned(allocate, [bad, good], NONE, inject=inject)
    if flag is None:
        assert scanned.reason(bad) is None
        return
    assert flag in (scanned.reason(bad) or "")
    refusals, answers = allocated(scanned.scanner, scanned.snapshot)
    assert any(flag in one for one in refusals)
    assert bad not in answers
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


def test_node_names_make_no_other_names() -> None:
    text = giving({"env": {"${nodeName}": "x"}})
    (resource,) = loads(text, policy=NONE).require().resources
    scanner = Scanner.of(resource, HostFiles(), NONE, "LD_PRELOAD", hold_s=0)
    snapshot = scanner.snapshot(selected(scanner), Snapshot(), lambda _key: None, 1.0)
    assert "--allow-env" in (snapshot.devices["0"].reason or "")


# ── code ──


def test_code_may_use_all_names() -> None:
    """Its options are as trusted as the code."""
    allocate = {
        "env": {"LD_PRELOAD": "x"},
        "annotations": {"other.com/x": "x"},
        "cdi": ["nvidia.com/gpu=all"],
    }
    resource, warnings = declared("nvidia.com/gpu", {"allocate": allocate})
    assert resource.name == "nvidia.com/gpu"
    assert warnings == ()


def test_what_is_allowed_is_a_glob_on_the_whole_name() -> None:
    assert name_policy.refusal(replace(NONE, allow_env=("LD",)), NAME, "env", "LD_PRELOAD")
    assert not name_policy.refusal(replace(NONE, allow_env=("LD_*",)), NAME, "env", "LD_PRELOAD")
    assert name_policy.refusal(replace(NONE, allow_env=("ld_*",)), NAME, "env", "LD_PRELOAD")
