"""Copy what an image needs to run a virtual environment into a directory.

    python3 assemble.py VENV ROOT

copies the virtual environment, the interpreter that it is made of with its standard library,
and the shared libraries that they need, each to its own path below ROOT, and compiles the
modules. The Dockerfile runs it in the build stage, with that interpreter.
"""

import importlib.util
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

Ignore = Callable[[str, list[str]], set[str]]

# For development, for installing, for windows and terminals; and modules whose shared library would
# be there for them alone. What is installed for the interpreter itself is not the venv's.
LEFT_OUT: Final[Ignore] = shutil.ignore_patterns(
    *("__pycache__", "site-packages", "dist-packages", "config-*", "test", "tests"),
    *("idlelib", "tkinter", "turtle*", "lib2to3", "distutils", "pydoc_data", "ensurepip"),
    *("_test*.so", "_ctypes_test*", "_xx*.so", "xx*.so", "_tkinter*.so"),
    *("_dbm*.so", "_gdbm*.so", "nis.*.so", "readline.*.so", "_curses*.so", "sitecustomize.py"),
    *("sqlite3", "_sqlite3*.so", "_pyrepl"),
)
VENV_LEFT_OUT: Final[Ignore] = shutil.ignore_patterns("__pycache__", "[Aa]ctivate*", "include")

# Their docstrings are texts of `--help` and `schema`.
PRINTED: Final = tuple(f"/site-packages/devhost/{name}/" for name in ("cli", "model"))

FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
DIRECTORIES: Final = ("dev", "etc/devhost", "proc", "run", "sys", "tmp", "var")


def main() -> None:
    venv, root = Path(sys.argv[1]), Path(sys.argv[2])
    image = Image(root)
    image.tree(venv, VENV_LEFT_OUT)
    image.file(venv / "bin" / "python3")  # the interpreter that it leads to
    for library in dict.fromkeys(sysconfig.get_path(key) for key in ("stdlib", "platstdlib")):
        image.tree(library, LEFT_OUT)
    image.shared_libraries()
    image.packages()
    image.file("/etc/os-release")
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var" / "run").symlink_to("/run")
    for name, text in FILES.items():
        (root / name).write_text(text)
    image.compile()


class Image:
    """Files below a directory, at the paths that they have here."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, path: str | Path) -> Path:
        """Where a path of the image is."""
        return self.root / str(path).lstrip("/")

    def place(self, path: str | Path) -> Path:
        """Return where a path leads, after copying every link on the way there."""
        done, rest = Path("/"), list(Path(path).parts[1:])
        while rest:
            part = rest.pop(0)
            if part == "..":
                done = done.parent
                continue
            step = done / part
            if not step.is_symlink():
                done = step
                continue
            target, here = step.readlink(), self.at(step)
            if not here.is_symlink():
                here.parent.mkdir(parents=True, exist_ok=True)
                here.symlink_to(target)
            if target.is_absolute():
                done, target = Path("/"), target.relative_to("/")
            rest[:0] = target.parts
        return done

    def file(self, path: str | Path) -> None:
        """Copy a file, and the links that lead to it."""
        real = self.place(path)
        here = self.at(real)
        if not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(real, here)

    def tree(self, path: str | Path, left_out: Ignore) -> None:
        """Copy a directory, and the links that lead to it; links in it are not resolved."""
        real = self.place(path)
        here = self.at(real)
        shutil.copytree(real, here, symlinks=True, ignore=left_out, dirs_exist_ok=True)

    def files(self) -> list[Path]:
        """Return the regular files, with their paths in the image."""
        paths = (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())
        return [Path("/") / path.relative_to(self.root) for path in sorted(paths)]

    def shared_libraries(self) -> None:
        """Copy the loader, and the libraries that it loads for each file."""
        loader = next(Path("/").glob("lib*/ld-linux*.so*"))
        self.file(loader)
        if Path("/etc/ld.so.cache").exists():  # it knows of /usr/local/lib
            self.file("/etc/ld.so.cache")
        for path in self.files():
            with path.open("rb") as file:
                if file.read(4) != b"\x7fELF":
                    continue
            listed = subprocess.run(
                [loader, "--list", path], check=False, capture_output=True, text=True
            )
            if missing := re.findall(r"(\S+) => not found", listed.stdout):
                sys.exit(f"{path} needs {', '.join(missing)}, which the base image does not have")
            for library in re.findall(r"=> (/\S+)", listed.stdout):
                self.file(library)

    def packages(self) -> None:
        """List the distribution's packages of the files, for vulnerability scanners."""
        database = Path("/var/lib/dpkg")
        stanzas = _stanzas(database / "status")
        owned = {str(path) for path in self.files()}
        for listed in (database / "info").glob("*.list"):
            package = listed.stem.partition(":")[0]
            if package in stanzas and owned.intersection(_real(listed.read_text().splitlines())):
                here = self.at(database / "status.d" / package)
                here.parent.mkdir(parents=True, exist_ok=True)
                here.write_text(stanzas[package])

    def compile(self) -> None:
        """Compile all modules: good whatever becomes of the time stamps of their sources.

        Docstrings take 1.5 MiB of each process. They are left out, with asserts, but for those
        that commands print.
        """
        for source in self.root.rglob("*.py"):
            py_compile.compile(
                str(source),
                cfile=importlib.util.cache_from_source(source),
                dfile=f"/{source.relative_to(self.root)}",
                doraise=True,
                optimize=0 if any(package in str(source) for package in PRINTED) else 2,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


def _stanzas(status: Path) -> dict[str, str]:
    """Return what dpkg knows of each package, if this is a distribution that has it."""
    if not status.exists():
        return {}
    texts = (text.strip("\n") + "\n" for text in status.read_text().split("\n\n"))
    return {match[1]: text for text in texts if (match := re.search(r"(?m)^Package: (\S+)$", text))}


def _real(paths: Iterable[str]) -> set[str]:
    return {os.path.realpath(path) for path in paths}


if __name__ == "__main__":
    main()
