"""The manifest for those who do without Helm."""

import kubernetes_validate
import yaml

from devhost.allocation.policy import Policy
from devhost.loading.loader import loads
from tests.chart.helm import Helm
from tools.manifest import MANIFEST, manifest

DOCUMENTS = list(yaml.safe_load_all(MANIFEST.read_text()))


def test_it_is_what_the_chart_renders(helm: Helm) -> None:
    assert MANIFEST.read_text() == manifest(), "run make generate"


def test_kubernetes_takes_all_of_it() -> None:
    kinds = ["Namespace", "NetworkPolicy", "ServiceAccount", "ConfigMap", "DaemonSet"]
    assert [one["kind"] for one in DOCUMENTS] == kinds
    for document in DOCUMENTS:
        for version in ("1.31", "1.37"):
            kubernetes_validate.validate(document, version, strict=True)
    assert {one["metadata"].get("namespace") for one in DOCUMENTS[1:]} == {"devhost"}


def test_its_configuration_is_one_that_devhost_serves() -> None:
    (text,) = DOCUMENTS[3]["data"].values()
    loaded = loads(text, policy=Policy(enforced=True))
    assert loaded.problems == ()
    assert loaded.config is not None
