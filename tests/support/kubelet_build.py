"""Build the kubelets that the tests drive, once each, and print the paths of the binaries.

    python -m tests.support.kubelet_build --out DIR 1.36 1.37

The name of a binary carries the kubelet's version and a hash of its sources; if it
is there already, nothing is built. A version's first build takes 2 to 15 minutes,
mostly to compile Kubernetes packages that Go's own cache keeps for the next one.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from tools.golang import find, find_go, run, say, version_key

SOURCES = Path(__file__).resolve().parent / "go" / "kubelet"


def main() -> None:
    modfiles = {path.stem.removeprefix("v"): path for path in SOURCES.glob("v*.mod")}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the binaries are kept")
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    arguments = parser.parse_args()
    if unknown := set(arguments.versions) - set(modfiles):
        parser.error(
            f"{', '.join(unknown)}: not one of {', '.join(sorted(modfiles, key=version_key))}"
        )
    for version in arguments.versions:
        try:
            binary = build(modfiles[version], arguments.out.absolute())
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"cannot build kubelet {version}: {error}")
        sys.stdout.write(f"{binary}\n")


def build(modfile: Path, out: Path) -> Path:
    version = find(r"k8s\.io/kubernetes v(\S+)", modfile)
    binary = out / f"kubelet-v{version}-{source_hash(modfile)}"
    if binary.exists():
        return binary
    out.mkdir(parents=True, exist_ok=True)
    go = find_go(find(r"go (\S+)", modfile), out)
    unfinished = out / f".{binary.name}.{os.getpid()}"
    say(f"building kubelet {version} with {go} (minutes the first time)")
    started = time.monotonic()
    try:
        run(
            go,
            "build",
            f"-modfile={modfile.name}",
            f"-tags={tag(modfile)}",
            "-trimpath",
            "-buildvcs=false",
            f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v{version}",
            f"-o={unfinished}",
            ".",
            cwd=SOURCES,
        )
        unfinished.replace(binary)
    finally:
        unfinished.unlink(missing_ok=True)
    say(f"built {binary.name} in {time.monotonic() - started:.0f} s")
    return binary


def tag(modfile: Path) -> str:
    """Name the build tag of a version, which is the first line of the files for it alone."""
    return "kubelet" + modfile.stem.removeprefix("v")


def source_hash(modfile: Path) -> str:
    """Hash what is compiled for a version: a change for another one does not rebuild it."""
    sources = [*SOURCES.glob("*.go"), *SOURCES.glob("*.s"), modfile, modfile.with_suffix(".sum")]
    constraint = f"//go:build {tag(modfile)}\n"
    sources = [
        source
        for source in sources
        if (text := source.read_text()).startswith(constraint) or not text.startswith("//go:build ")
    ]
    digest = hashlib.sha256()
    for source in sorted(sources):
        content = hashlib.sha256(source.read_bytes()).hexdigest()
        digest.update(f"{source.name} {content}\n".encode())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    main()
