"""The values that the tests render the chart with; sets/*.yaml are whole files of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.helm import ROOT

Values = dict[str, Any]

EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))

TOKENS: Values = {"version": "v1", "resources": [{"name": "e.com/t", "sources": [{"static": 2}]}]}
SETS: Mapping[str, Values] = {"defaults": {}} | {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted(Path(__file__).with_name("sets").iterdir())
}
REFUSED: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
EVERYTHING = SETS["everything"]


def example(path: Any) -> Values:
    """An example of the configuration as values."""
    return {"config": yaml.safe_load(path.read_text())}
