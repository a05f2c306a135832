"""The Helms that the tests run: built from their Go modules, once each.

    python -m tests.chart.helm

builds them and prints their paths. The name of a binary carries Helm's version and a hash of how
it is made; if it is there already, nothing is built. The first build takes 4 minutes.
"""

import fcntl
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kubelet.build import find_go

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "devhost"
TOOLS = ROOT / ".tools"

# By major version: the package to build.
PACKAGES = {
    3: "helm.sh/helm/v3/cmd/helm@v3.22.0",
    4: "helm.sh/helm/v4/cmd/helm@v4.3.1",
}
# Has the line that says which Go is new enough, for Helm as for the newest kubelet.
MODFILE = ROOT / "tests" / "kubelet" / "v1.37.mod"
FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w")
SETTINGS = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}

# Without those the tests would see the user's own clusters and plugins.
APART = {"KUBECONFIG": os.devnull, "HELM_PLUGINS": os.devnull, "HELM_KUBECONTEXT": ""}
APART["GOGC"] = "off"  # a quarter of the CPU time of something so short
NAMESPACE = "devhost-system"

Document = Mapping[str, Any]


def binary(major: int, out: Path = TOOLS) -> Path:
    """Say where a Helm is, built or not."""
    package = PACKAGES[major]
    made = hashlib.sha256("\n".join([package, *FLAGS]).encode()).hexdigest()[:12]
    return out / f"helm-{package.rpartition('@')[2]}-{made}"


def build(major: int, out: Path = TOOLS) -> Path:
    """Return a Helm; several processes may ask concurrently."""
    wanted = binary(major, out)
    if wanted.exists():
        return wanted
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".helm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not wanted.exists():
            say(f"building {PACKAGES[major]} (minutes the first time)")
            started = time.monotonic()
            with tempfile.TemporaryDirectory(dir=out) as folder:
                go = [str(find_go(MODFILE, out)), "install", *FLAGS, PACKAGES[major]]
                settings = SETTINGS | {"GOBIN": folder, "GOOS": "", "GOARCH": ""}
                install(go, os.environ | settings)
                (Path(folder) / "helm").replace(wanted)
            say(f"built {wanted.name} in {time.monotonic() - started:.0f} s")
    return wanted


def install(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run Go, with signs of life: some CI ends a job that is silent."""
    with subprocess.Popen(command, env=environment, stdout=sys.stderr) as process:
        while True:
            try:
                status = process.wait(60)
                break
            except subprocess.TimeoutExpired:
                say("still building")
    if status != 0:
        raise subprocess.CalledProcessError(status, command)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a chart makes of values.

    Attributes:
        documents: All that it makes, hooks too.
        texts: The text of each document, by kind and name.
    """

    documents: tuple[Document, ...]
    texts: Mapping[tuple[str, str], str]

    def of(self, kind: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Document:
        (found,) = [one for one in self.of(kind) if name in (None, one["metadata"]["name"])]
        return found


class RefusedError(Exception):
    """Helm does not render; the text is what it says."""


# Where the values do not say: the chart takes no image of unknown origin.
IMAGE = {"registry": "images.example.com"}


class Helm:
    def __init__(self, major: int) -> None:
        self.major = major

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run a command on the chart.

        Raises:
            RefusedError: With what it says on stderr.
        """
        done = subprocess.run(
            [str(binary(self.major)), *arguments, "--values=-"],
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

    def render(self, values: Mapping[str, Any], kubernetes: str = "1.37") -> Rendered:
        """Render as `helm install` would, on a version of Kubernetes; each only once."""
        return _render(self.major, json.dumps(values), kubernetes)

    def notes(self, values: Mapping[str, Any], namespace: str = NAMESPACE) -> str:
        """Return what an installation says; only Helm 4 does so without a cluster."""
        output = self.run(
            *("install", "test", str(CHART), "--dry-run=client", f"--namespace={namespace}"),
            values=values,
        )
        return output.partition("\nNOTES:\n")[2]


@functools.cache
def _render(major: int, values: str, kubernetes: str) -> Rendered:
    output = Helm(major).run(
        *("template", "test", str(CHART)),
        *(f"--namespace={NAMESPACE}", f"--kube-version={kubernetes}.0"),
        values=json.loads(values),
    )
    documents, texts = [], {}
    for text in re.split(r"^---$", output, flags=re.MULTILINE):
        if document := yaml.safe_load(text):
            documents.append(document)
            texts[document["kind"], document["metadata"]["name"]] = text
    assert len(texts) == len(documents), "two of a kind have one name"
    return Rendered(tuple(documents), texts)


if __name__ == "__main__":
    for version in PACKAGES:
        sys.stdout.write(f"{build(version)}\n")
