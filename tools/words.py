"""Refuses phrases that have a plainer equivalent in every context: part of `make lint`."""

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("devhost", "config", "deploy", "docs", "tests", "tools")
SUFFIXES: Final = {".html", ".json", ".md", ".py", ".service", ".tpl", ".txt", ".yaml"}
PHRASES: Final = re.compile(
    r"\b(unless (told|set|given)|(is|are|was|were) told|for ever|whoever|stands twice"
    r"|served no more|beside the event loop|at once|in vain|in silence|anew|afresh|bears)\b",
    re.IGNORECASE,
)


def main() -> None:
    """Name each phrase; exit with status 1 if there is one."""
    problems = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in SUFFIXES and "api" not in file.parts and file != Path(__file__):
                text = re.sub(r"\s+(# |// )?", " ", file.read_text(encoding="utf-8"))
                for match in PHRASES.finditer(text):
                    context = text[max(match.start() - 40, 0) : match.end() + 20]
                    problems.append(f"{file.relative_to(ROOT)}: …{context}…")
    if problems:
        sys.exit("these have a plainer equivalent:\n" + "\n".join(problems))


if __name__ == "__main__":
    main()
