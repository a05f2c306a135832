from collections.abc import Iterable, Mapping, Sequence

from devhost import Allocation, Device, DevicePlugin


class PortPlugin(DevicePlugin):
    """The ports of a switch; one without a link is not handed out."""

    def __init__(self, switch: Mapping[str, bool]) -> None:
        super().__init__("netease/vpcport")
        self._switch = switch
        self.prepared: list[str] = []

    def devices(self) -> Iterable[Device]:
        for port, up in self._switch.items():
            yield Device(port, reason=None if up else "no link")

    def allocate(self, devices: Sequence[Device]) -> Allocation:
        if any(device.id == "reserved" for device in devices):
            raise ValueError("this port is for the host")
        return Allocation(envs={"VPC_PORTS": ",".join(device.id for device in devices)})

    def pre_start(self, devices: Sequence[Device]) -> None:
        self.prepared += [device.id for device in devices]
