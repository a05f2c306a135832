"""Disks of an imaginary vendor: a class that finds, monitors, allocates and prepares them.

A disk is a link in SUPERDISK_DIR to its node. If a file of the same name exists in
SUPERDISK_FAULTS, the disk is broken, and the file has the reason. Each container gets the nodes of
its disks, and for each disk an empty scratch directory below SUPERDISK_SCRATCH.

Try it on a laptop:    mkdir -p /tmp/disks && ln -s /dev/null /tmp/disks/sd-1
                       SUPERDISK_DIR=/tmp/disks python superdisk.py --try
"""

import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import devhost

DISKS = Path(os.environ.get("SUPERDISK_DIR", "/dev/superdisk"))
FAULTS = Path(os.environ.get("SUPERDISK_FAULTS", "/run/superdisk/faults"))
SCRATCH = Path(os.environ.get("SUPERDISK_SCRATCH", "/var/lib/superdisk/scratch"))
LOG = logging.getLogger("superdisk")


class SuperDisk(devhost.DevicePlugin):
    """All disks of this node."""

    def __init__(self) -> None:
        # The options are those of the YAML.
        super().__init__("example.com/superdisk", remove_missing_after="1m")
        self.faults: dict[str, str] = {}
        self.stopped = threading.Event()
        threading.Thread(target=self.watch, name="superdisk faults", daemon=True).start()

    def watch(self) -> None:
        """Check for faults once a second, and report changes."""
        while not self.stopped.wait(1.0):
            found = faults()
            if found != self.faults:
                self.faults = found
                self.changed()

    def devices(self) -> Iterator[devhost.Device]:
        """Yield all disks, including broken ones."""
        for link in DISKS.glob("sd-*"):
            fault = self.faults.get(link.name)
            yield devhost.Device(link.name, paths=str(link), reason=fault)

    def allocate(self, devices: Sequence[devhost.Device]) -> devhost.Allocation:
        """Give a container its disks as /dev/superdisk0, 1, ... and a directory for each."""
        for disk in devices:
            (SCRATCH / disk.id).mkdir(parents=True, exist_ok=True)
        return devhost.Allocation(
            envs={"SUPERDISKS": " ".join(disk.id for disk in devices)},
            devices=tuple(
                devhost.DeviceSpec(disk.paths[0], f"/dev/superdisk{place}", "rw")
                for place, disk in enumerate(devices)
            ),
            mounts=tuple(
                devhost.MountSpec(str(SCRATCH / disk.id), f"/scratch/{place}", read_only=False)
                for place, disk in enumerate(devices)
            ),
        )

    def pre_start(self, devices: Sequence[devhost.Device]) -> None:
        """Empty the scratch directories before each start of the container."""
        for disk in devices:
            for left in (SCRATCH / disk.id).iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def refresh(self) -> None:
        """Read the faults again: the server starts, or kubelet has restarted."""
        self.faults = faults()
        LOG.info("started")

    def destroy(self) -> None:
        """Stop the thread: no more calls follow."""
        self.stopped.set()
        LOG.info("stopped")


def faults() -> dict[str, str]:
    """Return the reasons of broken disks, by name."""
    return {path.name: path.read_text() for path in FAULTS.glob("*")}


if __name__ == "__main__":
    devhost.serve(SuperDisk())
