"""Build the kubelets that the tests drive, once each, and print the paths of the binaries.

    python -m tests.support.kubelet_build --out DIR 1.36 1.37

The name of a binary carries the kubelet's version and a hash of its sources; if it
is there already, nothing is built. A version's first build takes 2 to 15 minutes,
mostly to compile Kubernetes packages that Go's own cache keeps for the next one.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tools.golang import find, find_go, hash_files, made_once, run, version_key

SOURCES = Path(__file__).resolve().parent / "go" / "kubelet"
MODFILES = {path.stem.removeprefix("v"): path for path in SOURCES.glob("v*.mod")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the binaries are kept")
    parser.add_argument("--later", action="store_true", help="print the paths alone")
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    arguments = parser.parse_args()
    if unknown := set(arguments.versions) - set(MODFILES):
        parser.error(
            f"{', '.join(unknown)}: not one of {', '.join(sorted(MODFILES, key=version_key))}"
        )
    for version in arguments.versions:
        wanted = binary(MODFILES[version], arguments.out.absolute())
        try:
            if not arguments.later:
                build(wanted)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"cannot build kubelet {version}: {error}")
        sys.stdout.write(f"{wanted}\n")


def binary(modfile: Path, out: Path) -> Path:
    """Return the path of a kubelet, built or not."""
    return out / f"kubelet-v{version_of(modfile)}-{source_hash(modfile)}"


def build(wanted: Path) -> None:
    """Build a kubelet, by its path, if it is not there; raise `OSError` for an unknown one."""
    if wanted.exists():
        return
    tools = wanted.parent
    modfile = next((file for file in MODFILES.values() if binary(file, tools) == wanted), None)
    if modfile is None:
        raise FileNotFoundError(f"there is no {wanted}")

    made_once(wanted, lambda path: compile_version(path, modfile, tools, f"-tags={tag(modfile)}"))


def compile_version(unfinished: Path, modfile: Path, tools: Path, *flags: str) -> None:
    """Compile the program beside a module file, for the version of Kubernetes that this names."""
    linked = f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v{version_of(modfile)}"
    run(
        find_go(find(r"go (\S+)", modfile), tools),
        *("build", f"-modfile={modfile.name}", *flags, "-trimpath", "-buildvcs=false"),
        *(linked, f"-o={unfinished}", "."),
        cwd=modfile.parent,
    )


def version_of(modfile: Path) -> str:
    return find(r"k8s\.io/kubernetes v(\S+)", modfile)


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
    return hash_files(sources)


if __name__ == "__main__":
    main()
