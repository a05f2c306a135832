"""The examples are valid, and offer what their comments say on a host that has the devices.

Those of hardware are in tests/unit, and how the chart takes them in tests/deploy.
"""

import shutil
from pathlib import Path
from typing import Final

import jsonschema
import pytest
import yaml

from devhost.config.json_schema import json_schema
from tests.support import transcript
from tests.support.command import called
from tests.support.examples import ALL_EXAMPLES, EXAMPLES, required

GOLDEN: Final = Path(__file__).with_name("golden")


@pytest.mark.parametrize("file", ALL_EXAMPLES, ids=lambda file: file.stem)
def test_example_is_valid_with_the_flags_that_it_names(file: Path) -> None:
    done = called("validate", "--enforce", "--strict", file, *required(file))
    assert done.returncode == 0, done.stdout
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(json_schema()).validate(data)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_example_on_a_host_with_its_devices_offers_them(file: Path, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path)
    transcript.check(GOLDEN / f"{file.stem}.txt", tmp_path)
