"""What both Helms make of the chart, and that Kubernetes takes it."""

import functools
from typing import Any

import jsonschema
import pytest
from kubernetes_validate import utils

from tests.chart.helm import Helm
from tests.chart.values import EVERYTHING, KUBERNETES, SETS, TOKENS
from tools.helm import CHART, RefusedError

# Not Kubernetes' own: what those of the Prometheus operator have to have.
OPERATOR: dict[str, dict[str, Any]] = {
    "PodMonitor": {
        "required": ["podMetricsEndpoints", "selector"],
        "properties": {
            "selector": {"required": ["matchLabels"]},
            "namespaceSelector": {"type": "object", "required": ["matchNames"]},
            "podTargetLabels": {"type": "array", "items": {"type": "string"}},
            "podMetricsEndpoints": {
                "type": "array",
                "items": {
                    "additionalProperties": False,
                    "properties": {
                        "port": {"type": "string"},
                        "path": {"type": "string"},
                        "interval": {"type": "string"},
                        "honorLabels": {"type": "boolean"},
                        "relabelings": {
                            "type": "array",
                            "items": {
                                "properties": {
                                    "sourceLabels": {"type": "array"},
                                    "targetLabel": {"type": "string"},
                                },
                                "additionalProperties": False,
                            },
                        },
                    },
                },
            },
        },
        "additionalProperties": False,
    },
    "PrometheusRule": {
        "required": ["groups"],
        "additionalProperties": False,
        "properties": {
            "groups": {
                "items": {
                    "required": ["name", "rules"],
                    "additionalProperties": False,
                    "properties": {
                        "name": {"type": "string"},
                        "rules": {
                            "items": {
                                "required": ["alert", "expr", "for", "labels", "annotations"],
                                "additionalProperties": False,
                                "properties": {
                                    "alert": {"type": "string", "pattern": "^Devhost[A-Za-z]+$"},
                                    "expr": {"type": "string"},
                                    "for": {"type": "string", "pattern": "^[0-9]+m$"},
                                    "labels": {"additionalProperties": {"type": "string"}},
                                    "annotations": {"additionalProperties": {"type": "string"}},
                                },
                            }
                        },
                    },
                }
            }
        },
    },
}


@pytest.fixture(autouse=True, scope="module")
def _schemas_are_read_once() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


@pytest.mark.parametrize("values", ["defaults", "everything"])
def test_lint_finds_nothing(each_helm: Helm, values: str) -> None:
    each_helm.run("lint", "--strict", str(CHART), "--kube-version=1.28.0", values=SETS[values])


@pytest.mark.parametrize("values", SETS)
def test_both_helms_make_the_same(helms: tuple[Helm, ...], values: str) -> None:
    older, newer = (helm.render(SETS[values]) for helm in helms)
    assert older.documents == newer.documents


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_every_version_of_kubernetes_takes_what_is_made(helm: Helm, kubernetes: str) -> None:
    for values in ("defaults", "everything"):
        for document in helm.render(SETS[values], kubernetes).documents:
            check(document, kubernetes)


@pytest.mark.parametrize("values", SETS)
def test_kubernetes_takes_what_is_made(helm: Helm, values: str) -> None:
    for document in helm.render(SETS[values]).documents:
        check(document, "1.37")


def check(document: Any, kubernetes: str) -> None:
    if document["kind"] in OPERATOR:
        jsonschema.validate(document["spec"], OPERATOR[document["kind"]])
    else:
        utils.validate(document, kubernetes, strict=True)


def test_older_kubernetes_is_refused(each_helm: Helm) -> None:
    with pytest.raises(RefusedError, match=r"1\.28\.0-0"):
        each_helm.render({}, "1.27")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param(
            {"config": TOKENS | {"existingConfigMap": "theirs"}},
            "config.resources and config.existingConfigMap theirs cannot be combined",
            id="two configurations",
        ),
        pytest.param(
            {"profiles": [{"name": "a", "nodeSelector": {"a": "b"}, "config": TOKENS}] * 2},
            'the name "a" is already in use',
            id="two profiles of one name",
        ),
        pytest.param(
            {"profiles": [{"name": "default", "nodeSelector": {"a": "b"}, "config": TOKENS}]},
            'the name "default" is already in use',
            id="a profile of the chart's own name",
        ),
        pytest.param({"log": None}, "log: has no value; remove the key", id="a section without"),
        pytest.param({"http": {"statusPort": 9110}}, "are both 9110", id="one port for two"),
        pytest.param(
            {"hostPaths": ["/etc", "/etc/"]},
            'hostPaths of test-devhost: "/etc/" is /etc, which is already mounted; remove it',
            id="a host path twice",
        ),
        pytest.param(
            {"hostPaths": ["/etc/../dev"]},
            '"/etc/../dev" is /dev, which is already mounted',
            id="the host's /dev as a host path",
        ),
        pytest.param(
            {"hostPaths": ["/sys"]}, '"/sys" contains the cgroups', id="/sys as a host path"
        ),
        pytest.param(
            {"hostPaths": ["/sys/class"]}, '"/sys/class" is /sys/class, which', id="mounted of /sys"
        ),
        pytest.param(
            {"hostPaths": ["/proc/"], "allow": {"paths": ["/dev/*"]}},
            '"/proc/" is /proc, which is already mounted',
            id="/proc as a host path beside allow.paths",
        ),
        *(
            pytest.param(
                {"hostPaths": ["/srv/data", "/opt"]} | {"allow": {key: ["/dev/x", glob]}},
                f'allow.{key} of test-devhost: "{glob}" is not below a mounted directory, so '
                f"devhost could not check what it allows; add {path}, or a parent directory",
                id=f"allow.{key} {glob}",
            )
            for key in ("paths", "devices")
            for glob, path in {
                "/srv/tenant/*": "/srv/tenant",
                "/srv/data*": "/srv",
                "/srv/*": "/srv",
                "/srv/[d]ata/x": "/srv",
                "/srv/data/../x/*": "/srv/x",
                "/etc/colas": "/etc/colas",
                "/device/x": "/device/x",
                "/sys/kernel/*": "/sys/kernel",
            }.items()
        ),
        *(
            pytest.param(
                {"hostPaths": ["/srv"], "allow": {"paths": [glob]}},
                f'"{glob}" is not below a mounted directory, so devhost could not check what it '
                "allows; set hostRoot.enabled",
                id=f"allow.paths {glob}",
            )
            for glob in ("*", "/*", "/[sx]rv/*", "?srv/*")
        ),
        pytest.param(
            {
                "hostPaths": ["/srv"],
                "allow": {"paths": ["/srv/*"]},
                "profiles": [
                    {
                        "name": "a",
                        "nodeSelector": {"a": "b"},
                        "hostPaths": ["/opt"],
                        "config": TOKENS,
                    }
                ],
            },
            'allow.paths of test-devhost-a: "/srv/*" is not below',
            id="what a profile allows and does not mount",
        ),
        pytest.param(
            {"hostPaths": ["/a/.."]},
            '"/a/.." is the whole host; set hostRoot.enabled',
            id="the whole host as a host path",
        ),
        pytest.param(
            {
                "profiles": [
                    {
                        "name": "a",
                        "nodeSelector": {"a": "b"},
                        "hostPaths": ["/dev/"],
                        "config": TOKENS,
                    }
                ]
            },
            'hostPaths of test-devhost-a: "/dev/" is /dev',
            id="a profile's host path",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(helm: Helm, values: Any, said: str) -> None:
    with pytest.raises(RefusedError) as refused:
        helm.render(values)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"allow": {"paths": ["/dev/*", "/sys/class/x", "/proc/1/*"], "devices": ["usb", "/dev/*"]}},
        {"hostPaths": ["/srv/", "/opt"], "allow": {"paths": ["/srv", "/srv/*", "/opt/x?/y"]}},
        {"hostPaths": ["/srv"], "allow": {"devices": ["/srv/zap", "*"]}},
        {"allow": {"paths": None, "devices": None}},
        {"hostRoot": {"enabled": True}, "allow": {"paths": ["*", "/srv/*"], "devices": ["/x"]}},
    ],
)
def test_what_is_allowed_and_seen_is_accepted(each_helm: Helm, values: Any) -> None:
    assert each_helm.render(values).of("DaemonSet")


def test_everything_is_all_that_there_is(helm: Helm) -> None:
    kinds = {document["kind"] for document in helm.render(EVERYTHING).documents}
    native = {"ConfigMap", "DaemonSet", "NetworkPolicy", "Pod", "ServiceAccount"}
    assert kinds == native | set(OPERATOR)
