"""One cluster for all tests, and one release that is reset for each test."""

import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy import build as image
from tests.deploy.machine import Unavailable
from tests.e2e import devices, programs
from tests.e2e.cluster import Cluster
from tests.e2e.pods import NAMESPACE, Pods
from tests.e2e.release import VALUES, Release
from tests.support import timeouts
from tools import helm

SECONDS: Final = 1800  # for a test; the first may have to build everything

_clusters: list[Cluster] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    timeouts.allow(items, Path(__file__).parent, SECONDS)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster with the images; skips where there can be none."""
    cluster = None
    try:
        built = programs.build()
        for major in helm.PACKAGES:
            helm.build(major)
        cluster = Cluster(built, tmp_path_factory.mktemp("cluster"))
        cluster.start(image.build())
    except (Unavailable, OSError, subprocess.CalledProcessError) as reason:
        if cluster:
            cluster.stop()
        pytest.skip(f"no cluster can be run here: {reason}")
    _clusters.append(cluster)
    try:
        cluster.kubectl("create", "namespace", NAMESPACE)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Release:
    """The release of most tests; the first of them installs it."""
    return Release(cluster, max(helm.PACKAGES), "devhost")


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """Pods that request devices; they are deleted after the test."""
    pods = Pods(cluster)
    yield pods
    pods.delete_all()


@pytest.fixture
def release(cluster: Cluster, installed: Release, pods: Pods) -> Release:
    """The chart with one resource of each kind, all devices plugged in and free."""
    devices.plug_all(cluster)
    installed.install(VALUES)
    installed.wait()
    return installed


@pytest.fixture
def bare(cluster: Cluster, installed: Release) -> None:
    """Nothing is installed."""
    devices.plug_all(cluster)
    installed.uninstall()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and _clusters:
        logs = f"\nthe logs of the node are in {_clusters[-1].logs}"
        report.sections.append(("the cluster", _clusters[-1].explain() + logs))
    return report
