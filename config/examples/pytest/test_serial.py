from devhost.testing import HostTree, StandInKubelet, serving

SERIAL = "example.com/serial"
CONFIG = """
version: v1
resources:
  - name: example.com/serial
    sources:
      - /dev/serial/by-id/usb-*
    allocate:
      devices:
        - hostPath: ${path}
          containerPath: /dev/serial${index}
"""


async def test_an_adapter_that_comes_back_is_the_same(
    devhost_kubelet: StandInKubelet, devhost_tree: HostTree
) -> None:
    kubelet, tree = devhost_kubelet, devhost_tree
    link = "/dev/serial/by-id/usb-FTDI_A1"
    tree.usb("1-2", "0403:6001", driver="ftdi_sio", nodes=["tty/ttyUSB0"], numa_node="1")
    tree.link(link, "../../ttyUSB0")
    async with serving(CONFIG, kubelet=kubelet, root=tree.root) as served:
        await kubelet.wait(SERIAL, 1, 1)
        assert served.report(SERIAL)["devices"][0]["numaNodes"] == [1]

        tree.remove(link)
        await kubelet.wait(SERIAL, 1, 0)
        tree.char("/dev/ttyUSB5", 188, 5)
        tree.link(link, "../../ttyUSB5")
        # Its number is another one: it is unhealthy until ten seconds after it was missed.
        await kubelet.wait(SERIAL, 1, 1, timeout=30)

        answer = (await kubelet.admit("pod", {"app": {SERIAL: 1}}))["app"]
        assert answer["devices"] == [
            {"hostPath": link, "containerPath": "/dev/serial0", "permissions": "rw"}
        ]


async def test_it_survives_a_restart_of_kubelet(
    devhost_kubelet: StandInKubelet, devhost_tree: HostTree
) -> None:
    kubelet, tree = devhost_kubelet, devhost_tree
    tree.char("/dev/serial/by-id/usb-FTDI_A1")
    async with serving(CONFIG, kubelet=kubelet, root=tree.root):
        await kubelet.wait(SERIAL, 1, 1)
        await kubelet.restart()
        await kubelet.wait(SERIAL, 1, 1)
