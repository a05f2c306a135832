"""The Helms that the manifest and the tests are made with: built from their Go modules, once each.

    python -m tools.helm

builds them and prints their paths. The name of a binary carries Helm's version and a hash of how
it is made; if it is there already, nothing is built. The first build takes 4 minutes.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.golang import find_go, made_once
from tools.golang import run as run_go

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "devhost"
TOOLS = ROOT / ".tools"

# By major version: the package to build.
PACKAGES = {
    3: "helm.sh/helm/v3/cmd/helm@v3.22.0",
    4: "helm.sh/helm/v4/cmd/helm@v4.3.1",
}
GO = "1.26.0"  # what their modules ask for
FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w")

# Without those the tests would see the user's own clusters and plugins.
APART = {"KUBECONFIG": os.devnull, "HELM_PLUGINS": os.devnull, "HELM_KUBECONTEXT": ""}
APART["GOGC"] = "off"  # a quarter of the CPU time of something so short


def binary(major: int, out: Path = TOOLS) -> Path:
    """Return the path of a Helm, built or not."""
    package = PACKAGES[major]
    made = hashlib.sha256("\n".join([package, *FLAGS]).encode()).hexdigest()[:12]
    return out / f"helm-{package.rpartition('@')[2]}-{made}"


def build(major: int, out: Path = TOOLS) -> Path:
    """Return a Helm; several processes may ask concurrently."""

    def write(unfinished: Path) -> None:
        folder, go = unfinished.parent, find_go(GO, out)
        run_go(go, "install", *FLAGS, PACKAGES[major], GOBIN=str(folder), GOOS="", GOARCH="")
        (folder / "helm").replace(unfinished)

    return made_once(binary(major, out), write)


class RefusedError(Exception):
    """Helm does not render; the text is what it says."""


# Where the values do not say: the chart takes no image of unknown origin.
IMAGE = {"registry": "images.example.com"}


def run(major: int, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
    """Run a command of a Helm that is built.

    Raises:
        RefusedError: With what it says on stderr.
    """
    done = subprocess.run(
        [str(binary(major)), *arguments, "--values=-"],
        input=json.dumps({"image": IMAGE} | dict(values or {}), ensure_ascii=False),
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | APART,
        timeout=250,
    )
    if done.returncode != 0:
        raise RefusedError(done.stderr + done.stdout)
    return done.stdout


if __name__ == "__main__":
    for version in PACKAGES:
        sys.stdout.write(f"{build(version)}\n")
