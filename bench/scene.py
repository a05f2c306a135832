"""The host of a benchmark: directories with devices, and what declares them as resources."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

EXTRA = "x"  # the device of one resource that the configuration leaves out at first
_TTY_USB = 188
_minors: dict[Path, int] = {}  # what has the same number is the same device
_DEVICES_MAX = 20_000  # the default leaves no room for another one of 10,000


@dataclass(frozen=True)
class Shape:
    """How many resources, with how many devices each."""

    resources: int
    devices: int

    def __str__(self) -> str:
        return f"{self.resources} x {self.devices}"

    @property
    def names(self) -> list[str]:
        return [f"r{number:04}" for number in range(self.resources)]


def full_name(name: str) -> str:
    return f"bench.example/{name}"


class Scene:
    """Makes the devices of a shape below a directory: nodes as root, else files."""

    def __init__(self, directory: Path, shape: Shape) -> None:
        self.shape = shape
        self.kind = "char" if os.geteuid() == 0 else "file"
        self.root = directory / f"{shape.resources}x{shape.devices}"
        for name in shape.names:
            (self.root / name).mkdir(parents=True)
            for number in range(shape.devices):
                self.plug(self.device(name, f"{number:05}"))
        self.plug(self.device(self.changed, EXTRA))

    @property
    def changed(self) -> str:
        """The one resource that events, calls and a reload go to."""
        return self.shape.names[self.shape.resources // 2]

    def device(self, name: str, label: str) -> Path:
        """Return the path of a device; its name is its ID."""
        return self.root / name / f"{name}-{label}"

    def plug(self, path: Path) -> None:
        """Make a device."""
        if self.kind == "char":
            os.mknod(
                path, 0o600 | 0o020000, os.makedev(_TTY_USB, _minors.setdefault(path, len(_minors)))
            )
        else:
            path.touch(0o600)

    def config(self, *, changed: bool = False) -> str:
        """Return the configuration for devhost.

        Args:
            changed: Whether the one resource has its extra device.
        """
        lines = ["version: v1", "resources:"]
        for name in self.shape.names:
            options = [f"path: {self.root / name}", f"types: {self.kind}"]
            if name == self.changed and not changed:
                options.append(f'exclude: "*-{EXTRA}"')
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
        """Return the same for the bare plugins."""
        return json.dumps(
            [
                {"name": full_name(name), "directory": str(self.root / name), "prefix": ""}
                for name in self.shape.names
            ]
        )
