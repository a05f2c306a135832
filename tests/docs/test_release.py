"""The publication of a pushed tag: the workflows, the version, the notes, the names."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support import actionlint
from tools import release

ROOT: Final = Path(__file__).resolve().parents[2]
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").iterdir())
SIGNS: Final = {"packages", "id-token"}
WRITES: Final = {"image": SIGNS, "chart": SIGNS, "pypi": {"id-token"}, "release": {"contents"}}


@pytest.mark.program("actionlint")
def test_actionlint_accepts_the_workflows() -> None:
    assert not actionlint.complaints()


def test_workflows_have_no_more_rights_than_they_need() -> None:
    """Jobs that sign run no code of tests or dependencies."""
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] in ({}, {"contents": "read"}), path.name
        for name, job in workflow["jobs"].items():
            writes = {key for key, value in job.get("permissions", {}).items() if value != "read"}
            assert writes <= WRITES.get(name, set()), name


def test_actions_are_pinned_by_commit() -> None:
    """A moved tag of an action could sign our image; the version is for people and Dependabot."""
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
