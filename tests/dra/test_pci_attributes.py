"""The attributes by which a claim has devices of several drivers below one root of PCI."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.hostfs.files import HostFiles
from devhost.library.plugin import TRUSTED
from devhost.model.resource_state import State
from tests.dra.test_dra_manager import VERSIONS
from tests.dra.world import NODE, World
from tests.support import dra_build
from tests.support.hardware import HostTree
from tests.support.root import needs_root

ROOT: Final = "resource.kubernetes.io/pcieRoot"
BUS_ID: Final = "resource.kubernetes.io/pciBusID"
NIC: Final = "nic.example.com"
BRIDGE: Final = "/sys/devices/pci0000:80/0000:80:01.0"
HARDWARE: Final = f"""
pci 0000:00:01.0 1022:1483 class=060400
  pci 0000:01:00.0 1002:74a1 class=120000 driver=amdgpu
    drm renderD128 226:128
pci 0000:00:14.0 8086:06ed class=0c0330
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-2 0403:6001 bus=1 dev=5
      if 1-2:1.0 ffffff ftdi_sio
        usb-serial ttyUSB0 driver=ftdi_sio port_number=0
          tty ttyUSB0 188:0
pci 0000:80:01.0 1022:1483 class=060400
  pci 0000:81:00.0 1002:74a1 class=120000 driver=amdgpu
    drm renderD129 226:129
  pci 0000:82:00.0 15b3:101d class=020000 driver=mlx5_core
  pci 0000:82:00.2 15b3:101e class=020000 driver=mlx5_core
    infiniband_verbs uverbs0 231:192
  pci 0000:83:00.0 10de:2330 class=030200 driver=nvidia
pci 0000:00:1f.2 8086:a282 class=010601
  block sda 8:0
    block sda1 8:1 partition=1
dir virtual
  misc kvm 10:232
link {BRIDGE}/0000:82:00.2/physfn {BRIDGE}/0000:82:00.0
file /proc/driver/nvidia/gpus/0000:82:00.0/information "Device Minor: 3\\n"
file /proc/driver/nvidia/gpus/0000:83:00.0/information "Device Minor: 4\\n"
file /etc/cdi/v.yaml "{{kind: v.org/d, devices: [{{name: a, containerEdits: {{deviceNodes: [{{path: /dev/nvidia4}}]}}}}]}}"
char nvidia3 195:3
char nvidia4 195:4
"""
SOURCES: Final = {
    "gpu": "pci: {device: '1002:*', node: drm/renderD*}",
    "vf": "pci: {pf: '*', node: none}",
    "verbs": "sysfs: infiniband_verbs",
    "usb": "usb: {device: 0403:6001, node: tty}",
    "cdi": "cdi: v.org/d",
    "dev": "dev: sda1|nvidia3|kvm",
}
PUBLISHED: Final = {
    "0000:01:00.0": ("pci0000:00", "0000:01:00.0"),
    "0000:81:00.0": ("pci0000:80", "0000:81:00.0"),
    "0000:82:00.2": ("pci0000:80", "0000:82:00.2"),
    "uverbs0": ("pci0000:80", "0000:82:00.2"),
    "pci-0000:00:14.0-usbv2-0:2": ("pci0000:00", "0000:00:14.0"),
    "sda1": ("pci0000:00", "0000:00:1f.2"),
    "nvidia3": ("pci0000:80", "0000:82:00.0"),
    "a": ("pci0000:80", "0000:83:00.0"),
    "kvm": None,
}

pytestmark = [needs_root, pytest.mark.program("dra")]


@pytest.mark.parametrize("version", VERSIONS)
async def test_devices_below_pci_are_aligned(world: World, tmp_path: Path, version: str) -> None:
    tree, binary = HostTree(tmp_path / "host"), dra_build.build(version)
    tree.hardware(HARDWARE)
    world.files, world.policy = HostFiles(str(tree.root)), replace(TRUSTED, dra=True)
    world.api.admit = lambda content: dra_build.admitted(binary, content)
    resources = (
        f"{{name: example.com/{name}, sources: [{{{SOURCES[name]}}}]}}" for name in SOURCES
    )
    async with world.run(f"version: v1\nbackend: dra\nresources: [{', '.join(resources)}]\n"):
        await world.kubelet.register()
        for name in SOURCES:
            await world.until(f"example.com/{name}", State.REGISTERED)
        slices, devices = world.slices(), world.devices_in_slices()
    attributes = {device["attributes"]["id"]["string"]: device["attributes"] for device in devices}
    assert {
        key: (texts[ROOT]["string"], texts[BUS_ID]["string"]) if ROOT in texts else None
        for key, texts in attributes.items()
    } == PUBLISHED
    gpus = [device["name"] for device in devices if "1002" in str(device)]
    slices.append(dra_build.admitted(binary, nic("nic0", "pci0000:80")))
    assert dra_build.allocated(binary, NODE, slices, claim()) == [gpus[0], "nic0"]
    aligned = claim({"matchAttribute": ROOT})
    assert dra_build.allocated(binary, NODE, slices, aligned) == [gpus[1], "nic0"]
    slices[-1] = nic("nic0", "pci0000:c0")
    assert not dra_build.allocated(binary, NODE, slices, aligned)


def nic(name: str, root: str) -> dict[str, Any]:
    """Return the slice of another driver."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "nic"},
        "spec": {
            "driver": NIC,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name, "attributes": {ROOT: {"string": root}}}],
        },
    }


def claim(*constraints: dict[str, str]) -> dict[str, Any]:
    """Return a claim of a GPU and of a device of the other driver."""
    gpu = 'device.attributes["devhost"].resource == "example.com/gpu"'
    requests = [
        {
            "name": driver.partition(".")[0],
            "exactly": {
                "deviceClassName": driver,
                "allocationMode": "ExactCount",
                "count": 1,
                **({"selectors": [{"cel": {"expression": gpu}}]} if driver == "devhost" else {}),
            },
        }
        for driver in ("devhost", NIC)
    ]
    return {
        "metadata": {"name": "c", "namespace": "default", "uid": "u"},
        "spec": {"devices": {"requests": requests, "constraints": [*constraints]}},
    }
