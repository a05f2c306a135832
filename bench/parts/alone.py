"""What needs no kubelet: the machine's floor, ``devhost validate``, and scans."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.figures import Record
from bench.load import Load, LoadError
from bench.options import Options
from bench.scene import Scene, device_kind
from bench.subjects import Subject, environment

SCAN = Path(__file__).resolve().parents[1] / "scan.py"

_IMPORTED = """
import sys
from devhost.cli import main
try:
    main(["validate", sys.argv[1]])
except SystemExit as end:
    assert not end.code, end.code
print(*(name for name in ("grpc", "watchdog", "asyncio", "google.protobuf") if name in sys.modules))
"""


def floor(directory: Path, record: Record, options: Options) -> None:
    plugins = directory / "floor"
    plugins.mkdir(exist_ok=True)
    with Load(plugins) as load:
        result = load.do(
            "floor",
            directory=str(plugins),
            kind=device_kind(plugins),
            count=options.floor,
            pause_ms=options.floor_pause_ms,
        )
    (plugins / "kubelet.sock").unlink(missing_ok=True)
    record.add_latency("floor: inotify", result["inotify"])
    record.add_latency("floor: inotify, another process tells", result["relay"])
    record.add_latency("floor: Unix socket, there and back", result["echo"])


def validate(scene: Scene, subject: Subject, record: Record) -> None:
    config = scene.root / "validate.yaml"
    config.write_text(scene.config())
    before = _children_ms()
    _python(subject, "-m", "devhost", "validate", str(config))
    record.add("validate: CPU", _children_ms() - before, "ms")
    imported = _python(subject, "-c", _IMPORTED, str(config)).splitlines()[-1].split()
    for name in ("grpc", "watchdog", "asyncio"):
        record.add(f"validate: imports {name}", name in imported, "")


def scan(scene: Scene, subject: Subject, record: Record, options: Options) -> None:
    config = scene.root / "scan.yaml"
    config.write_text(scene.config())
    # -P: the modules beside it are not to be found as if they were Python's own.
    text = _python(subject, "-P", str(SCAN), str(config), f"{scene.root}/*", str(options.scans))
    result: dict[str, Any] = json.loads(text)
    for what, milliseconds in result.items():
        record.add(f"scan of all: {what}, CPU", milliseconds, "ms")


def _children_ms() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * 1000


def _python(subject: Subject, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=subject.tree,
        env=environment() | {"PYTHONPATH": str(subject.tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LoadError(done.stderr)
    return done.stdout
