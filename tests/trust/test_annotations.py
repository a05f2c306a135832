"""Attacks by annotations, which some runtimes obey."""

import pytest

from tests.trust.attack import Victim

KEYS = [
    "cdi.k8s.io/x",
    "io.kubernetes.cri-o.Devices",
    "io.kubernetes.cri-o.userns-mode",
    "io.kubernetes.cri.container-type",
    "io.katacontainers.config.hypervisor.path",
    "run.oci.hooks.stdout",
    "run.oci.mount_context_type",
    "org.systemd.property.DevicePolicy",
    "org.criu.config",
    "module.wasm.image/variant",
    "bundle",
]


@pytest.mark.parametrize("key", KEYS)
def test_annotations_that_steer_a_runtime_are_refused(node: Victim, key: str) -> None:
    """What a runtime obeys cannot be set; runc and crun list what of theirs is unsafe."""
    outcome = node.attack({"sources": [{"static": 1}], "allocate": {"annotations": {key: "x"}}})
    outcome.nothing("the runtime")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("cut", [1, 3, 8])
def test_such_an_annotation_is_not_put_together_from_variables(
    node: Victim, key: str, cut: int
) -> None:
    """A key that is only known when its variables are is refused then."""
    if cut >= len(key):
        pytest.skip("shorter")
    ids = [key[:cut]]
    for template in (f"${{id}}{key[cut:]}", "${id}${name}"):
        resource = {
            "sources": [{"static": {"ids": [key] if "name" in template else ids}}],
            "allocate": {"annotations": {template.replace("${id}${name}", "${id}"): "x"}},
        }
        node.attack(resource).nothing("the runtime")


@pytest.mark.parametrize(
    "key",
    [
        "CDI.k8s.io/x",
        "Cdi.K8s.Io/x",
        "IO.kubernetes./x",
        "cdi.k8s.io//x",
        "/cdi.k8s.io/x",
        " cdi.k8s.io/x",
        "cdi.k8s.io /x",
        "cdi.k8s.io\n/x",
        "x\ncdi.k8s.io/x",
        "сdi.k8s.io/x",  # a Cyrillic letter
        "cdi。k8s。io/x",
        "cdi.k8s.io／x",
        "ｃdi.k8s.io/x",
        "cdi.k8s.io\0/x",
        "io.kubernetes.\u200bx",
        "cdi.k8s.io./x",
    ],
)
def test_what_only_looks_like_such_a_key_is_no_key(node: Victim, key: str) -> None:
    """Capitals, other scripts, spaces and control characters do not make another key of it."""
    allocate = {"annotations": {key: "x"}}
    node.attack({"sources": [{"static": 1}], "allocate": allocate}).nothing()
    by_id = {"sources": [{"static": {"ids": [key]}}], "allocate": {"annotations": {"${id}": "x"}}}
    node.attack(by_id).nothing()


def test_an_annotation_s_value_is_one_text(node: Victim) -> None:
    """A value does not make a second annotation."""
    value = 'x\ncdi.k8s.io/x: "y"'
    outcome = node.attack(
        {"sources": [{"static": 1}], "allocate": {"annotations": {"example.com/a": value}}}
    )
    assert outcome.only.annotations == {"example.com/a": value}
