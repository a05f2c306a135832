from pathlib import Path

import pytest

from devhost.testing import AdmissionError, HostTree, StandInKubelet, serving

CONFIG = Path(__file__).with_name("licences.yaml")
LICENCE = "example.com/licence"


async def test_a_container_gets_its_licences(
    devhost_kubelet: StandInKubelet, devhost_tree: HostTree
) -> None:
    kubelet, tree = devhost_kubelet, devhost_tree
    tree.file("/etc/licences/a.lic")
    tree.file("/etc/licences/README")
    async with serving(
        CONFIG, kubelet=kubelet, root=tree.root, allow_paths=["/etc/licences/*"]
    ) as served:
        await kubelet.wait(LICENCE, 1, 1)  # capacity, allocatable
        tree.file("/etc/licences/b.lic")
        await kubelet.wait(LICENCE, 2, 2)

        answer = (await kubelet.admit("pod", {"app": {LICENCE: 2}}))["app"]
        assert answer["envs"] == {"LICENCES": "a.lic,b.lic"}
        assert sorted(mount["hostPath"] for mount in answer["mounts"]) == [
            "/etc/licences/a.lic",
            "/etc/licences/b.lic",
        ]

        with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
            await kubelet.admit("late", {"app": {LICENCE: 1}})

        tree.remove("/etc/licences/b.lic")
        await kubelet.wait(LICENCE, 2, 1)  # it is Unhealthy first
        assert kubelet.devices(LICENCE) == {"a.lic": "Healthy", "b.lic": "Unhealthy"}
        skipped = served.report(LICENCE)["skipped"]
        assert skipped == [{"candidate": "/etc/licences/README", "reason": "not included"}]
