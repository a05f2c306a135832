"""The tables of docs/devices.md: ``python -m tests.trust.device_table`` writes them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from devhost.allocation.device_classes import OTHERS, SAFE, DeviceClass

PAGE: Final = Path(__file__).parents[2] / "docs" / "devices.md"
_TABLE: Final = re.compile(r"(<!-- (safe|others) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(text: str) -> str:
    """Return the page with its tables as the code has them."""
    tables = {"safe": SAFE, "others": OTHERS}
    return _TABLE.sub(lambda found: f"{found[1]}{_table(tables[found[2]])}{found[3]}", text)


def _table(classes: Iterable[DeviceClass]) -> str:
    rows = ("| class | what a container has with it | recognised by |", "| --- | --- | --- |")
    lines = [*rows, *(f"| `{one.name}` | {one.gives or '?'} | {_how(one)} |" for one in classes)]
    return "\n".join(lines) + "\n"


def _how(one: DeviceClass) -> str:
    numbers = [key for key in one.by if key[0].isdecimal()]
    others = [f"`{key}`" for key in one.by if key not in numbers]
    shown = [*others, f"number {', '.join(numbers)}"] if numbers else others
    return "; ".join(filter(None, (one.when, ", ".join(shown))))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
