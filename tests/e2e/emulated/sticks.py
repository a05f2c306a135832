"""The USB devices of the emulated computer, which QEMU plugs and unplugs by command."""

import json
from pathlib import Path
from typing import Any, Final

CONTROLLER: Final = "pci-0000:00:14.0"  # where tests/e2e/emulated/computer.py puts it
PATIENCE: Final = 300.0  # seconds for what is awaited; emulated, Python takes 20 times as long
DEVICES: Final = Path("/sys/bus/usb/devices")


class Sticks:
    """The USB devices of the computer, by names of ours."""

    def __init__(self, monitor: Path) -> None:
        self._monitor = monitor.open("r+b", buffering=0)
        self._plugged: list[str] = []
        self._lines: set[str] = set()
        self._gone: set[str] = set()
        self._do("qmp_capabilities")

    def close(self) -> None:
        """Close the port for commands."""
        self._monitor.close()

    def plug(self, name: str, driver: str, port: str, **properties: Any) -> None:
        """Plug a device into a port, as ``2``, or ``1.4`` of a hub."""
        self._do("device_add", driver=driver, id=name, port=port, bus="usb.0", **properties)
        self._plugged.append(name)

    def serial(self, name: str, port: str) -> None:
        """Plug a serial adapter in, an FTDI with its name as serial number."""
        line = f"line-{name}"
        if line not in self._lines:
            self._do("chardev-add", id=line, backend={"type": "null", "data": {}})
            self._lines.add(line)
        always = {"always-plugged": True}
        self.plug(name, "usb-serial", port, serial=name, chardev=line, **always)

    def disk(self, name: str, port: str) -> None:
        """Plug an empty disk in."""
        medium = f"medium-{name}"
        self._do("blockdev-add", driver="null-co", size=1 << 20, **{"node-name": medium})
        self.plug(name, "usb-storage", port, drive=medium, removable=True)

    def unplug(self, name: str) -> None:
        """Pull a device out."""
        self._gone.clear()
        self._do("device_del", id=name)
        while name not in self._gone:
            self._read()
        self._plugged.remove(name)

    def unplug_all(self) -> None:
        for name in self._plugged[::-1]:
            self.unplug(name)

    def _do(self, command: str, **arguments: Any) -> None:
        request = {"execute": command, "arguments": arguments}
        self._monitor.write(json.dumps(request).encode() + b"\n")
        while "return" not in (answer := self._read()):
            assert "error" not in answer, answer

    def _read(self) -> dict[str, Any]:
        """Return the next answer or event of QEMU."""
        message: dict[str, Any] = json.loads(self._monitor.readline())
        if message.get("event") == "DEVICE_DELETED":
            self._gone.add(message["data"].get("device", ""))
        return message


def place(port: str, usb: int = 2) -> str:
    """Return the ID that a device in a port has by default."""
    return f"{CONTROLLER}-usbv{usb}-0:{port}"


def stick(serial: str) -> Path:
    """Return the directory in sysfs of the device with a serial number."""
    (file,) = (path for path in DEVICES.glob("*/serial") if path.read_text().strip() == serial)
    return file.parent
