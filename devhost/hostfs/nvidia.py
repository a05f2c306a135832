"""The nodes of NVIDIA's driver, of which sysfs does not know: what the driver says below /proc."""

import os
import re
from collections.abc import Mapping
from typing import Final

from devhost.hostfs.files import HostFiles

NAME: Final = "nvidia"  # of the class that the driver does not make, and of its nodes
_MAJOR: Final = 195  # Linux's Documentation/admin-guide/devices.txt
_GPUS: Final = "/proc/driver/nvidia/gpus"
_LINE: Final = re.compile(r"^(Device Minor|GPU UUID|Model):[ \t]*([!-~][ -~]*)$", re.MULTILINE)

_Facts = Mapping[str, str]
# By file, with its identity until the driver is loaded again: to read it wakes a GPU that sleeps.
_CACHE: Final = dict[str, tuple[tuple[int, int], _Facts]]()


class NvidiaClass:
    """The class in sysfs that the driver does not make. Blocks where it is made.

    Attributes:
        links: Where the links of the class, and to it, would lead.
        contents: Those of files.
        facts: The UUID and the model of each GPU, by the directory of its PCI function.
    """

    def __init__(self, files: HostFiles) -> None:
        self.links, self.contents = dict[str, str](), dict[str, bytes]()
        self.facts = dict[str, _Facts]()
        for address, gpu in _gpus(files).items():
            function = files.resolve(f"/sys/bus/pci/devices/{address}")
            self.facts[function] = {"uuid": gpu.get("GPU UUID", ""), "model": gpu.get("Model", "")}
            if not (minor := gpu.get("Device Minor", "")).isdecimal():
                continue
            device = f"{function}/{NAME}/{NAME}{minor}"
            self.links[f"/sys/class/{NAME}/{NAME}{minor}"] = device
            self.links[f"/sys/dev/char/{_MAJOR}:{minor}"] = device
            self.links[f"{device}/subsystem"] = f"/sys/class/{NAME}"
            self.contents[f"{device}/dev"] = f"{_MAJOR}:{minor}".encode()
            self.contents[f"{device}/uevent"] = f"DEVNAME={NAME}{minor}".encode()


def _gpus(files: HostFiles) -> Mapping[str, _Facts]:
    """Return what the driver says of GPUs, by their PCI addresses."""
    own_directory = () if files.is_copy else (_GPUS,)  # a container's own /proc has the host's
    for directory in (files.to_local(_GPUS), *own_directory):
        try:
            addresses = os.listdir(directory)  # noqa: PTH208
        except OSError:
            continue
        return {address: _facts(f"{directory}/{address}/information") for address in addresses}
    return {}


def _facts(path: str) -> _Facts:
    try:
        state = os.stat(path)
        identity = state.st_ino, state.st_ctime_ns
        if (former := _CACHE.get(path)) is not None and former[0] == identity:
            return former[1]
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            facts = dict(_LINE.findall(file.read(4096).decode("ascii", "replace")))
    except OSError:
        return {}
    if "?" in facts.get("GPU UUID", "?"):  # the driver reads it when the GPU is used first
        return {**facts, "GPU UUID": ""}
    _CACHE[path] = identity, facts
    return facts
