"""A headless Chromium and fonts from Debian's packages, unpacked below .tools: nothing is installed.

``python -m tests.observe.browser`` fetches them and prints the program's path.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

HOME: Final = (Path(__file__).resolve().parents[2] / ".tools" / "browser").resolve()
PROGRAM: Final = HOME / "chromium"
_PACKAGES: Final = ("chromium-headless-shell", "fonts-inter", "fonts-dejavu-core")
_NAMES: Final = ("chromium-headless-shell", "chromium", "google-chrome")
# The same fonts in the pictures of every machine.
_FONTS: Final = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
  <alias><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""
_WRAPPER: Final = """\
#!/bin/sh
export LD_LIBRARY_PATH='{libraries}' FONTCONFIG_FILE='{fonts}'
exec '{program}' "$@"
"""


def find() -> str:
    """Return the path of the variable's browser, the fetched or the machine's; empty without."""
    path = os.environ.get("DEVHOST_TEST_BROWSER")
    return path or (str(PROGRAM) if PROGRAM.exists() else _of_the_machine())


def _of_the_machine() -> str:
    return next(filter(None, map(shutil.which, _NAMES)), "")


def fetch() -> Path:
    """Fetch the packages and what they need that the machine lacks, once."""
    if PROGRAM.exists():
        return PROGRAM
    packages, root = HOME / "packages", HOME / "root"
    (packages / "partial").mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["apt-get", "-qq", "-y", "--download-only", "--no-install-recommends", "--reinstall",
         "-o", f"Dir::Cache::archives={packages}", "-o", "Debug::NoLocking=true",
         "install", *_PACKAGES],
        check=True,
        stdout=sys.stderr,
    )  # fmt: skip
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    shutil.rmtree(packages)
    fonts = HOME / "fonts.conf"
    fonts.write_text(_FONTS.format(fonts=root / "usr/share/fonts", cache=HOME / "font-cache"))
    libraries = {str(library.parent) for library in root.rglob("*.so*")}
    program = root / "usr/lib/chromium/chromium-headless-shell"
    wrapper = _WRAPPER.format(libraries=":".join(sorted(libraries)), fonts=fonts, program=program)
    made = PROGRAM.with_suffix(".part")
    made.write_text(wrapper)
    made.chmod(0o755)
    made.rename(PROGRAM)  # last: it is there only when all is
    return PROGRAM


if __name__ == "__main__":
    print(find() or fetch())  # noqa: T201
