import pytest
from ports import PortPlugin

from devhost.testing import AdmissionError, StandInKubelet, serving

PORT = "netease/vpcport"


async def test_ports_follow_the_switch(devhost_kubelet: StandInKubelet) -> None:
    kubelet, switch = devhost_kubelet, {"p1": True, "p2": False}
    plugin = PortPlugin(switch)
    async with serving(plugin, kubelet=kubelet) as served:
        await kubelet.wait(PORT, 2, 1)
        assert [one["reason"] for one in served.report(PORT)["devices"]] == [None, "no link"]

        switch["p2"] = True
        plugin.changed()
        await kubelet.wait(PORT, 2, 2)

        answer = (await kubelet.admit("pod", {"app": {PORT: 2}}))["app"]
        assert answer["envs"] == {"VPC_PORTS": "p1,p2"}
        assert plugin.prepared == ["p1", "p2"]
        await kubelet.start_container("pod", "app")  # again, after a crash
        assert plugin.prepared == ["p1", "p2", "p1", "p2"]


async def test_a_refusal_reaches_the_pods_user(devhost_kubelet: StandInKubelet) -> None:
    kubelet = devhost_kubelet
    async with serving(PortPlugin({"reserved": True}), kubelet=kubelet):
        await kubelet.wait(PORT, 1, 1)
        with pytest.raises(AdmissionError, match="this port is for the host"):
            await kubelet.admit("pod", {"app": {PORT: 1}})
