"""The DRA manager of a real kubelet as a program, built once for each version.

The program is in tests/support/go/dra; it is built for the kubelets that DEVHOST_TEST_KUBELET
names, as far as they have DRA for extended resources.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.api_server import StatusError
from tests.support.kubelet_build import compile_version, version_of
from tests.support.realkubelet import real_kubelets
from tools.golang import hash_files, made_once

SOURCES = Path(__file__).resolve().parent / "go" / "dra"
TOOLS = Path(__file__).resolve().parents[2] / ".tools"
MODFILES = {path.stem.removeprefix("v"): path for path in SOURCES.glob("v*.mod")}


def versions() -> list[str]:
    """Return the minor versions that tests are to drive, such as 1.37."""
    minors = [version.rpartition(".")[0] for version in real_kubelets()]
    return [minor for minor in minors if minor in MODFILES]


def build(minor: str) -> Path:
    """Return the binary of a version, which may take minutes."""
    modfile = MODFILES[minor]
    sources = [SOURCES / "main.go", modfile, modfile.with_suffix(".sum")]
    name = f"dra-v{version_of(modfile)}-{hash_files(sources)}"
    return made_once(TOOLS / name, lambda path: compile_version(path, modfile, TOOLS))


def build_all() -> None:
    for minor in versions():
        build(minor)


def admitted(binary: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return a ResourceSlice as the API server of a version keeps it, or raise `StatusError`."""
    return dict(_asked(content, binary, "-admit"))


def allocated(
    binary: Path, node: str, slices: Sequence[dict[str, Any]], claim: dict[str, Any]
) -> list[str]:
    """Return the devices that a scheduler gives a claim, of its requests in order; none where they do not fit.

    Its requests name drivers as DeviceClasses.
    """
    request = {"slices": [*slices], "claim": claim}
    allocations = _asked(request, binary, "-allocate", "-node", node) or ()
    results = (result for allocation in allocations for result in allocation["devices"]["results"])
    return [result["device"] for result in results]


def _asked(content: dict[str, Any], *command: Path | str) -> Any:
    done = subprocess.run(
        command, input=json.dumps(content), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise StatusError(422, done.stderr)
    return json.loads(done.stdout)
