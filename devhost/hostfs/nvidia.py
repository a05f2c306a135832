"""What NVIDIA's driver says of its GPUs below /proc: sysfs does not know their nodes."""

import os
from collections.abc import Iterator, Mapping
from typing import Final

from devhost.hostfs.files import HostFiles

MAJOR: Final = 195  # Linux's Documentation/admin-guide/devices.txt
_GPUS: Final = "/proc/driver/nvidia/gpus"
_BYTES_MAX: Final = 4096
_KEYS: Final = {b"Device Minor": "minor", b"GPU UUID": "uuid", b"Model": "model"}

_Facts = Mapping[str, bytes]
# By file, and its identity until the driver is loaded again. To read one resumes a GPU that sleeps.
_read: Final = dict[str, tuple[tuple[int, int], _Facts]]()


def list_gpus(files: HostFiles) -> Iterator[tuple[str, _Facts]]:
    """Yield the PCI address of each GPU, and its minor, UUID and model. Blocks."""
    for directory in (files.to_local(_GPUS), _GPUS):  # a container's own /proc has the host's, too
        try:
            addresses = os.listdir(directory)  # noqa: PTH208
        except OSError:
            continue
        for address in addresses:
            yield address, _facts(f"{directory}/{address}/information")
        return


def _facts(path: str) -> _Facts:
    try:
        state = os.stat(path)
        identity = state.st_ino, state.st_ctime_ns
        if (former := _read.get(path)) is not None and former[0] == identity:
            return former[1]
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            lines = file.read(_BYTES_MAX).splitlines()
    except OSError:
        return {}
    pairs = (line.partition(b":")[::2] for line in lines)
    facts = {_KEYS[key]: value.strip() for key, value in pairs if key in _KEYS}
    if b"?" not in facts.get("uuid", b"?"):  # else the GPU was not used yet
        _read[path] = identity, facts
        return facts
    return {**facts, "uuid": b""}
