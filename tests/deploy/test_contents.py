"""The contents of the image, and what it has not."""

import importlib.metadata
import json
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest

from devhost import __version__
from tests.deploy.build import REQUIREMENTS, Image, for_platform, unpacked_size
from tests.deploy.machine import ROOT

pytestmark = pytest.mark.slow

LIMIT: Final = 90_000_000

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="session")
def packages(image: Image) -> Path:
    (directory,) = image.rootfs.glob("opt/devhost/lib/python3.*/site-packages")
    return directory


def test_image_is_small(image: Image) -> None:
    assert unpacked_size(image.rootfs) < LIMIT


def test_entrypoint_runs_devhost_as_root(image: Image) -> None:
    config = image.config["config"]
    assert config["Entrypoint"] == ["devhost"]
    assert config["Cmd"] == ["run"]
    assert config["User"] == "0:0"
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert environment["PATH"].split(":")[0] == "/opt/devhost/bin"
    assert environment["PYTHONDONTWRITEBYTECODE"] == environment["PYTHONSAFEPATH"] == "1"


def installed_in(packages: Path) -> dict[str, str]:
    return {
        _normal(distribution.name): distribution.version
        for distribution in importlib.metadata.distributions(path=[str(packages)])
    }


def pins(text: str) -> dict[str, str]:
    return {_normal(name): version for name, version in re.findall(r"(?m)^(\S+)==(\S+)", text)}


def test_dependencies_are_the_pinned_ones_and_no_more(packages: Path) -> None:
    installed = installed_in(packages)
    assert installed.pop(PROJECT["name"]) == __version__
    assert installed == pins(REQUIREMENTS[0].read_text())
    assert not installed.keys() & {"pip", "setuptools", "wheel", "hatchling", "pytest"}


def test_files_give_no_rights_and_symlinks_lead_somewhere(image: Image) -> None:
    for path in image.rootfs.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = path.readlink()
            led = (
                image.rootfs / str(target).lstrip("/")
                if target.is_absolute()
                else path.parent / target
            )
            assert led.exists() or led.is_symlink(), path
            continue
        assert not mode & (stat.S_ISUID | stat.S_ISGID), path
        assert not mode & stat.S_IWOTH or path.name == "tmp", path
        assert path.lstat().st_uid == 0, path


def test_packages_of_the_distribution_are_listed_for_scanners(image: Image) -> None:
    listed = {path.name for path in image.rootfs.glob("var/lib/dpkg/status.d/*")}
    assert {"libc6", "libstdc++6", "zlib1g"} <= listed
    assert not listed & {"dash", "coreutils", "python3-pip"}
    assert re.search(
        r"^Version: ", (image.rootfs / "var/lib/dpkg/status.d/libc6").read_text(), re.MULTILINE
    )
    assert (image.rootfs / "etc" / "os-release").exists()


def test_bill_of_materials_has_exactly_what_the_image_has(image: Image, packages: Path) -> None:
    bom = json.loads((image.rootfs / "usr/share/sbom/devhost.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    components = [bom["metadata"]["component"], *bom["components"]]
    by_kind: dict[str, dict[str, str]] = {}
    for part in components:
        kind, name, version = re.findall(r"pkg:(\w+)/(?:[\w.-]+/)?(.+)@([^?]+)", part["purl"])[0]
        assert (unquote(name), unquote(version)) == (part["name"], part["version"])
        by_kind.setdefault(kind, {})[part["name"]] = part["version"]
    assert by_kind["pypi"] == installed_in(packages)
    stanzas = [path.read_text() for path in image.rootfs.glob("var/lib/dpkg/status.d/*")]
    fields = [dict(re.findall(r"(?m)^(Package|Version): (.+)$", stanza)) for stanza in stanzas]
    assert by_kind["deb"] == {package["Package"]: package["Version"] for package in fields}
    (python,) = image.rootfs.glob("usr/**/bin/python3.*")
    assert by_kind["generic"]["python"].startswith(python.name.removeprefix("python"))
    (root,) = bom["dependencies"]
    assert {root["ref"], *root["dependsOn"]} == {component["bom-ref"] for component in components}


def test_build_leaves_nothing_behind(image: Image) -> None:
    here = {str(path.relative_to(image.rootfs)) for path in image.rootfs.rglob("*")}
    left = re.compile(r"(^|/)(\.cache|pip|ensurepip|\.git)(/|$)|^(src|rootfs|wheels|root)(/|$)")
    assert not [path for path in here if left.search(path)]
    assert not here & {"bin/sh", "usr/bin/sh", "usr/bin/bash", "usr/bin/apt", "etc/pip.conf"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_wheels_exist_for_each_architecture(machine: str) -> None:
    base = re.search(r"^ARG BASE=\S+:([0-9.]+)-slim@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    assert base is not None
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report=-"),
            *("--ignore-installed", "--target=/nonexistent"),
            *for_platform(base[1], machine),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    names = {_normal(entry["metadata"]["name"]) for entry in json.loads(done.stdout)["install"]}
    assert names >= {"grpcio", "protobuf", "pydantic-core", "google-re2"}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
