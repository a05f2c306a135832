"""The example configurations, and what their comments say."""

import shlex
from pathlib import Path
from typing import Final

EXAMPLES: Final = Path(__file__).parents[2] / "config" / "examples"
ALL_EXAMPLES: Final = sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("hardware/*.yaml")])


def required(file: Path) -> list[str]:
    """Return the flags about what is allowed in `Requires:   devhost run FLAGS` of a comment."""
    _, separator, rest = file.read_text(encoding="utf-8").partition("# Requires:   devhost run ")
    if not separator:
        return []
    words = shlex.split(rest.partition("\n#\n")[0].replace("\n#", ""))
    return [
        word
        for option, value in zip(words, [*words[1:], "--"], strict=True)
        if option.startswith("--allow-")
        for word in ([option] if value.startswith("--") else [option, value])
    ]
