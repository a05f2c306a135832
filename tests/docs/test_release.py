"""What a pushed tag publishes: the workflows, the version, the notes, the names."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from devhost import __version__
from tests.support import actionlint
from tools import release

ROOT: Final = Path(__file__).resolve().parents[2]
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").iterdir())
CHANGELOG: Final = """\
# Changelog

## [Unreleased]

- Not yet.

## [1.2.3] - 2026-11-22

### Added

- This, [as told](https://example.com).

## [1.2.2] - 2026-11-01

- That.

[1.2.3]: https://example.com/1.2.3
"""
READY: Final = CHANGELOG.replace("1.2.3", __version__)


def test_actionlint_accepts_the_workflows() -> None:
    assert not actionlint.complaints()


def test_workflows_have_no_more_rights_than_they_need() -> None:
    """What is pushed is signed by jobs that run no code of tests or dependencies."""
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] in ({}, {"contents": "read"}), path.name
        for name, job in workflow["jobs"].items():
            writes = {key for key, value in job.get("permissions", {}).items() if value != "read"}
            assert writes <= {
                "image": {"packages", "id-token"},
                "chart": {"packages", "id-token"},
                "pypi": {"id-token"},
                "release": {"contents"},
            }.get(name, set()), name


def test_actions_are_pinned_by_commit() -> None:
    """Who moves a tag of an action would sign our image; the version is for people and Dependabot."""
    uses = [line for path in WORKFLOWS for line in re.findall(r"uses: (.+)", path.read_text())]
    assert uses
    for action in uses:
        assert re.match(r"\S+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action) or action.startswith("./")


def test_version_of_all_files_is_that_of_the_package() -> None:
    assert list(release.version_problems()) == []
    assert len(list(release.version_problems("9.9.9"))) == 3


def test_addresses_belong_to_one_repository() -> None:
    urls = release.project()["urls"]
    assert list(release.source_problems(urls["source"])) == []
    elsewhere = list(release.source_problems("https://github.com/example/devhost"))
    assert len(elsewhere) == len(urls) + 3  # home, sources and icon of the chart


def test_notes_are_the_section_of_the_version() -> None:
    assert release.notes(CHANGELOG, "1.2.3") == (
        "### Added\n\n- This, [as told](https://example.com).\n"
    )
    assert release.notes(CHANGELOG, "1.2.2") == "- That.\n"


@pytest.mark.parametrize("version", ["1.2.4", "1.2", "1x2.3", "Unreleased"])
def test_notes_without_a_section_are_an_error(version: str) -> None:
    with pytest.raises(release.NotReadyError, match=re.escape(f"## [{version}] - YYYY-MM-DD")):
        release.notes(CHANGELOG, version)


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyproject.toml", "Dockerfile"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CHANGELOG.md").write_text(READY)
    monkeypatch.setattr(release, "ROOT", tmp_path)


@pytest.mark.usefixtures("ready")
def test_tag_is_the_version() -> None:
    source = release.project()["urls"]["source"]
    release.check(f"v{__version__}", source)
    for tag in ("v9.9.9", __version__):
        with pytest.raises(release.NotReadyError, match=f"^the tag is {tag}, the version is "):
            release.check(tag, source)


def test_release_not_ready_says_all() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.release", "check", "v9.9.9", "--source", "https://x.test/y"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "the tag is v9.9.9" in done.stderr
    assert "source is not https://x.test/y" in done.stderr


def test_chart_published_knows_its_registry(tmp_path: Path) -> None:
    release.main(["chart", str(tmp_path / "devhost"), "--registry", "ghcr.io/somebody"])
    values = yaml.safe_load((tmp_path / "devhost" / "values.yaml").read_text())
    original = yaml.safe_load((release.CHART / "values.yaml").read_text())
    original["image"]["registry"] = "ghcr.io/somebody"
    assert values == original


def test_package_of_somebody_else_is_installed_nowhere() -> None:
    """On PyPI, `devhost` is another program."""
    installs = re.compile(
        r"(pip|pipx|uvx?)3? (install|run|tool install) [^\n`#]*(?<![\w/.-])devhost\b(?![/:])"
    )
    assert installs.search("pip install devhost pytest")
    assert not installs.search("pip install kube-devhost")
    folders = (ROOT / name for name in ("docs", "deploy", "config", ".github"))
    for path in (*ROOT.glob("*.md"), *(each for one in folders for each in one.rglob("*.*"))):
        if path.is_file() and path.suffix not in (".png", ".pyc"):
            assert not installs.search(path.read_text(encoding="utf-8")), path
