"""Messages, help and documentation are in plain technical English."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
ROOTS: Final = (
    *("devhost", "config", "deploy", "docs", "tests", "tools"),
    *("README.md", "ARCHITECTURE.md"),
)
SUFFIXES: Final = {".html", ".json", ".md", ".py", ".service", ".tpl", ".txt", ".yaml"}
# Phrases that have a plainer equivalent in every context.
PHRASES: Final = re.compile(
    r"\b(unless (told|set|given)|(is|are|was|were) told|for ever|whoever|stands twice|served no more"
    r"|beside the event loop|at once|in vain|in silence|anew|afresh|bears)\b",
    re.IGNORECASE,
)


def texts() -> Iterator[tuple[str, str]]:
    for root in ROOTS:
        path = REPOSITORY / root
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and "api" not in file.parts and file != Path(__file__):
                text = re.sub(r"\s+(# |// )?", " ", file.read_text(encoding="utf-8"))
                yield str(file.relative_to(REPOSITORY)), text


def test_no_phrase_has_a_plainer_equivalent() -> None:
    found = [
        f"{file}: …{text[max(match.start() - 40, 0) : match.end() + 20]}…"
        for file, text in texts()
        for match in PHRASES.finditer(text)
    ]
    assert not found, "\n".join(found)
