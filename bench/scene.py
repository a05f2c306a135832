"""The host of a benchmark: directories with devices, and what declares them as resources."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

EXTRA = "x"  # the device of one resource that the configuration leaves out at first
_NULL = os.makedev(1, 3)  # a node that any machine has
_DEVICES_MAX = 20_000  # the default leaves no room for another one of 10,000


@dataclass(frozen=True, order=True)
class Shape:
    """How many resources, with how many devices each; all in one directory, or one for each."""

    resources: int
    devices: int
    shared: bool = False

    def __str__(self) -> str:
        return f"{self.resources} x {self.devices}" + (" shared" if self.shared else "")

    @property
    def names(self) -> list[str]:
        return [f"r{number:04}" for number in range(self.resources)]

    def spread(self, count: int) -> list[str]:
        """Return so many names, or all, evenly from first to last."""
        names = self.names
        count = min(count, len(names))
        return [names[(place * len(names)) // count] for place in range(count)]


def device_kind(directory: Path) -> str:
    """Return what can be made here: device nodes by root, else files, which are mounted."""
    path = directory / "probe"
    try:
        os.mknod(path, 0o600 | 0o020000, _NULL)
    except PermissionError:
        return "file"
    path.unlink()
    return "char"


def full_name(name: str) -> str:
    return f"bench.example/{name}"


class Scene:
    """Makes the devices of a shape below a directory; `remove` takes them away."""

    def __init__(self, directory: Path, shape: Shape) -> None:
        self.shape, self.kind = shape, ""
        self.root = directory / str(shape).replace(" ", "")
        self.root.mkdir()
        self.kind = device_kind(self.root)
        for name in shape.names:
            self.directory(name).mkdir(exist_ok=True)
            for number in range(shape.devices):
                self._create(self.device(name, f"{number:05}"))
        self._create(self.device(self.changed, EXTRA))

    def remove(self) -> None:
        shutil.rmtree(self.root)

    @property
    def changed(self) -> str:
        """The one resource that a reload changes, and that bursts and calls go to."""
        return self.shape.names[self.shape.resources // 2]

    def directory(self, name: str) -> Path:
        return self.root / ("all" if self.shape.shared else name)

    def device(self, name: str, label: str) -> Path:
        """Return the path of a device; its name is its ID."""
        return self.directory(name) / f"{name}-{label}"

    def _create(self, path: Path) -> None:
        if self.kind == "char":
            os.mknod(path, 0o600 | 0o020000, _NULL)
        else:
            path.touch(0o600)

    def config(self, *, changed: bool = False) -> str:
        """Return the configuration for devhost.

        Args:
            changed: Whether the one resource has its extra device.
        """
        lines = ["version: v1", "resources:"]
        for name in self.shape.names:
            options = [f"path: {self.directory(name)}", f"types: {self.kind}"]
            without_extra = name == self.changed and not changed
            if self.shape.shared or without_extra:  # one glob each
                rest = f"[!{EXTRA}]*" if without_extra else "*"
                options.append(f'include: "{name}-{rest}"')
            lines += [
                f"  - name: {full_name(name)}",
                "    prefer: packed",
                f"    maxDevices: {_DEVICES_MAX}",
                "    sources:",
                f"      - directory: {{{', '.join(options)}}}",
            ]
            if self.kind == "file":
                lines += [
                    "    allocate:",
                    "      mounts:",
                    '        - {hostPath: "${path}", containerPath: "/dev/${name}"}',
                ]
        return "\n".join(lines) + "\n"

    def served(self) -> str:
        """Return the same for the reference."""
        prefix = "{}-" if self.shape.shared else ""
        return json.dumps(
            [
                {
                    "name": full_name(name),
                    "directory": str(self.directory(name)),
                    "prefix": prefix.format(name),
                }
                for name in self.shape.names
            ]
        )
