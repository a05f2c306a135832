"""docs/library.md shows what is there."""

import inspect
from pathlib import Path

import devhost
from devhost.library.plugin import Options

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "library.md").read_text()


def test_the_example_is_the_file() -> None:
    assert f"```python\n{(ROOT / 'config/examples/python/vpcport.py').read_text()}```" in DOC


def test_every_method_and_option_is_described() -> None:
    methods = [name for name, _ in inspect.getmembers(devhost.DevicePlugin, inspect.isfunction)]
    public = [name for name in methods if not name.startswith("_")]
    assert len(public) == 7
    assert [name for name in public if f"{name}(" not in DOC] == []
    assert [option for option in Options.__annotations__ if f"`{option}`" not in DOC] == []
