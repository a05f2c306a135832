"""Writes the examples for hardware, config/examples/hardware, from the kinds that `init` knows.

python -m tools.examples
"""

from pathlib import Path
from typing import Final

from devhost.drafts.draft import DraftEntry, render
from devhost.drafts.kinds import KindRow, full_name, load

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "config" / "examples" / "hardware"
POD: Final = """\

A pod asks for it by:

  resources:
    limits:
      {}: 1
"""


def example(row: KindRow) -> str:
    """Return the file of a row."""
    names = [full_name(str(resource["name"])) for resource in row.resources]
    comment = row.about + POD.format(names[0])
    lines = (f"# {line}".rstrip() for line in comment.splitlines())
    entries = [
        DraftEntry({**resource, "name": name})
        for name, resource in zip(names, row.resources, strict=True)
    ]
    return "\n".join([*lines, "", render((), entries)])


def examples() -> dict[str, str]:
    """Return the files of all rows that have a comment, here and in devhost, by name."""
    rows = load(str(Path(__file__).with_suffix(".yaml"))).items()
    return {f"{name}.yaml": example(row) for name, row in rows if row.about}


if __name__ == "__main__":
    for name, text in examples().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
