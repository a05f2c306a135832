"""The checked-in protobuf code is what the definitions under proto/ make."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
API = Path("devhost/api")


@pytest.fixture
def generator() -> Path:
    """Return the Python that has the pinned generator; the Makefile names it."""
    python = os.environ.get("DEVHOST_TEST_PROTOC")
    if python:
        return Path(python)
    pytest.skip("DEVHOST_TEST_PROTOC is not set: make test sets it")


def test_the_generated_code_is_up_to_date(generator: Path, tmp_path: Path) -> None:
    generate(generator, tmp_path)
    fresh, kept = contents(tmp_path), contents(ROOT)
    assert fresh, "the generator wrote nothing"
    stale = sorted(name for name in fresh | kept if fresh.get(name) != kept.get(name))
    assert not stale, f"run make generate: {', '.join(stale)}"


def generate(python: Path, out: Path) -> None:
    protos = sorted(str(proto) for proto in (ROOT / "proto").rglob("*.proto"))
    plugins = ("python", "grpc_python", "mypy", "mypy_grpc")
    done = subprocess.run(
        [
            str(python),
            "-m",
            "grpc_tools.protoc",
            "-Iproto",
            *(f"--{plugin}_out={out}" for plugin in plugins),
            *(str(Path(proto).relative_to(ROOT)) for proto in protos),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
        timeout=250,
    )
    assert done.returncode == 0, done.stderr


def contents(root: Path) -> dict[str, bytes]:
    """Read what is generated below a folder; the hand-made `__init__.py` are not."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / API).rglob("*_pb2*.py*")
        if path.suffix in {".py", ".pyi"}
    }
