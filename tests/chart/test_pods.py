"""What the pods may do and what they see of the host."""

import copy
from typing import Any, Final

import pytest

from tests.chart.helm import Helm
from tests.chart.pods import PLUGINS, STATE, SYSFS, container_of, mounts_of, pod_of
from tests.chart.values import SETS, TOKENS, Values

# ── rights ───────────────────────────────────────────────────────────────────

POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources"


def test_a_pod_has_no_rights_but_roots(helm: Helm) -> None:
    assert container_of(helm, {})["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": {"type": "container_device_plugin_t"},
    }


@pytest.mark.parametrize("values", SETS)
def test_only_one_switch_makes_a_pod_privileged(helm: Helm, values: str) -> None:
    given = copy.deepcopy(SETS[values])
    given.pop("deviceAccess", None)
    for daemonset in helm.render(given).of("DaemonSet"):
        for container in daemonset["spec"]["template"]["spec"]["containers"]:
            context = container["securityContext"]
            assert "privileged" not in context
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True


def test_a_privileged_pod_has_nothing_that_the_api_refuses_beside_it(helm: Helm) -> None:
    context = container_of(helm, {"deviceAccess": {"privileged": True}})["securityContext"]
    assert context == {
        "privileged": True,
        "runAsUser": 0,
        "runAsGroup": 0,
        "readOnlyRootFilesystem": True,
        "seLinuxOptions": {"type": "spc_t"},
    }


def test_null_removes_the_selinux_type(each_helm: Helm) -> None:
    context = container_of(each_helm, {"securityContext": {"seLinuxOptions": None}})
    assert "seLinuxOptions" not in context["securityContext"]


@pytest.mark.parametrize(
    ("options", "made"),
    [
        (None, None),
        ({"type": None}, {}),
        ({"level": "s0"}, {"type": "spc_t", "level": "s0"}),
    ],
)
def test_a_profile_may_be_privileged_without_the_selinux_type(
    each_helm: Helm, options: Values | None, made: Values | None
) -> None:
    profile = {
        "name": "one",
        "nodeSelector": {"a": "b"},
        "config": TOKENS,
        "deviceAccess": {"privileged": True},
        "securityContext": {"seLinuxOptions": options},
    }
    context = container_of(each_helm, {"profiles": [profile]}, "test-devhost-one")[
        "securityContext"
    ]
    assert context["privileged"] is True
    assert context.get("seLinuxOptions") == made


@pytest.mark.parametrize("values", SETS)
def test_no_pod_has_a_token_or_the_hosts_namespaces(helm: Helm, values: str) -> None:
    rendered = helm.render(SETS[values])
    pods = [one["spec"]["template"]["spec"] for one in rendered.of("DaemonSet")]
    pods += [one["spec"] for one in rendered.of("Pod")]
    assert len(pods) == 2 * len(rendered.of("DaemonSet"))
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(pod)
    for account in rendered.of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert not [one for one in rendered.documents if "rbac" in one["apiVersion"]]


@pytest.mark.parametrize("values", SETS)
def test_the_test_pod_is_as_restricted_as_can_be(helm: Helm, values: str) -> None:
    for test in helm.render(SETS[values]).of("Pod"):
        assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
        (container,) = test["spec"]["containers"]
        assert test["spec"]["securityContext"]["runAsNonRoot"] is True
        assert test["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert [set(volume) for volume in test["spec"]["volumes"]] == [{"name", "configMap"}]


# ── the host ─────────────────────────────────────────────────────────────────


def test_a_pod_sees_little_of_the_host(helm: Helm) -> None:
    assert mounts_of(helm, {}) == {
        PLUGINS: ("Directory", PLUGINS, False, None),
        STATE: ("DirectoryOrCreate", STATE, False, None),
        "/dev": ("Directory", "/host/dev", "recursively", None),
        POD_RESOURCES: ("Directory", POD_RESOURCES, True, None),
    } | {path: ("Directory", f"/host{path}", "recursively", None) for path in SYSFS}


def test_the_cgroups_of_the_node_are_not_mounted(helm: Helm) -> None:
    """Without recursive read-only mounts they would be writable below a read-only /sys."""
    volumes = [one["hostPath"]["path"] for one in pod_of(helm, {})["volumes"] if "hostPath" in one]
    assert not [path for path in volumes if "/sys/fs/cgroup/".startswith(f"{path.rstrip('/')}/")]


def test_pod_resources_are_mounted_where_kubelet_has_them(helm: Helm) -> None:
    elsewhere = "/data/kubelet/pod-resources"
    without = mounts_of(helm, {"podResources": {"enabled": False}})
    assert POD_RESOURCES not in without
    found = mounts_of(helm, {"kubelet": {"rootDir": "/data/kubelet/"}, "stateDir": STATE})
    assert found == without | {elsewhere: ("Directory", elsewhere, True, None)}


@pytest.mark.parametrize("kubernetes", ["1.28", "1.30"])
def test_older_kubernetes_knows_no_recursive_mounts(helm: Helm, kubernetes: str) -> None:
    (daemonset,) = helm.render({}, kubernetes).of("DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert not [mount for mount in container["volumeMounts"] if "recursiveReadOnly" in mount]


@pytest.mark.parametrize(
    ("values", "more"),
    [
        pytest.param(
            {"hostPaths": ["/etc/colas/", "/srv"]},
            {
                "/etc/colas": ("Directory", "/host/etc/colas", True, "HostToContainer"),
                "/srv": ("Directory", "/host/srv", True, "HostToContainer"),
            },
            id="hostPaths",
        ),
        pytest.param(
            {"allow": {"paths": ["/dev/*"]}},
            {"/proc": ("Directory", "/host/proc", "recursively", None)},
            id="allow.paths",
        ),
        pytest.param(
            {"allow": {"devices": ["hidraw"]}},
            {"/proc": ("Directory", "/host/proc", "recursively", None)},
            id="allow.devices",
        ),
        pytest.param(
            {"cdi": {"enabled": True}},
            {"/var/run/cdi": ("DirectoryOrCreate", "/var/run/cdi", False, None)},
            id="cdi",
        ),
        pytest.param(
            {"deviceAccess": {"writable": True}},
            {"/dev": ("Directory", "/host/dev", False, None)},
            id="writable",
        ),
    ],
)
def test_each_switch_mounts_one_thing_more(helm: Helm, values: Values, more: Any) -> None:
    assert mounts_of(helm, values) == mounts_of(helm, {}) | more


def test_the_whole_host_has_all_of_sys(helm: Helm) -> None:
    """It is visible anyway, so all of it is read-only where the node supports that."""
    values = {
        "hostRoot": {"enabled": True},
        "hostPaths": ["/srv"],
        "allow": {"paths": ["/dev/*"]},
    }
    assert mounts_of(helm, values) == {
        PLUGINS: ("Directory", PLUGINS, False, None),
        STATE: ("DirectoryOrCreate", STATE, False, None),
        "/": ("Directory", "/host", True, "HostToContainer"),
        "/dev": ("Directory", "/host/dev", "recursively", None),
        "/sys": ("Directory", "/host/sys", "recursively", None),
        POD_RESOURCES: ("Directory", POD_RESOURCES, True, None),
    }


def test_a_mount_stays_within_its_part_of_the_pod(helm: Helm) -> None:
    mounts = mounts_of(helm, {"hostPaths": ["/a/../../b", "/c//d/."]})
    assert {mount[1] for mount in mounts.values()} >= {"/host/b", "/host/c/d"}


@pytest.mark.parametrize(
    "values",
    [
        {"hostPaths": ["/proc"]},
        {"hostPaths": ["/dev/x/..", "/etc", "/etc/"], "hostRoot": {"enabled": True}},
        {"hostPaths": ["/etc", "/etc/colas", "/dev/disk"], "allow": {"paths": ["/dev/*"]}},
    ],
)
def test_no_two_mounts_have_one_place(helm: Helm, values: Values) -> None:
    places = [mount["mountPath"] for mount in container_of(helm, values)["volumeMounts"]]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("values", SETS)
def test_the_configuration_is_mounted_as_a_directory(helm: Helm, values: str) -> None:
    rendered = helm.render(SETS[values])
    pods = [one["spec"]["template"]["spec"] for one in rendered.of("DaemonSet")]
    for pod in pods + [one["spec"] for one in rendered.of("Pod")]:
        (container,) = pod["containers"]
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "config"]
        assert mounts == [{"name": "config", "mountPath": "/etc/devhost", "readOnly": True}]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
        assert set(volume["configMap"]) == {"name"}
        assert not [mount for mount in container["volumeMounts"] if "subPath" in mount]
        assert "/etc/devhost/config.yaml" in container["args"]
