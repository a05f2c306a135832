"""What a configuration is answered: messages.txt has texts and the problems in them.

A case is a line: where the text stands, and the text, with escapes. The indented lines below it are
what is said of it; where there are none it is fine. `python -m tests.unit.test_messages` writes the
problems again; read the difference.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devhost.loading.loader import loads

FILE: Final = Path(__file__).with_name("messages.txt")
HEAD: Final = "version: v1\nresources:\n  - name: example.com/a\n"
KVM: Final = HEAD + "    sources: [dev: kvm]\n"
AROUND: Final = {
    "file": "{}\n",
    "bare": HEAD + "    {}\n",
    "source": HEAD + "    sources:\n      - {}\n",
    "resource": KVM + "    {}\n",
    "allocate": KVM + "    allocate:\n      {}\n",
    "env": KVM + "    allocate:\n      env:\n        {}\n",
}


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield each case with what is to be said of it."""
    case, said = "", list[str]()
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            said.append(line.strip())
            continue
        if case:
            yield case, said
        case, said = line, []
    yield case, said


def answers(case: str) -> list[str]:
    """Return what is said of a case, without warnings where there are errors."""
    place, _, text = case.partition(" ")
    text = text.encode("ascii").decode("unicode_escape")
    found = loads(AROUND[place].replace("{}", text)).problems
    shown = [one for one in found if one.severity == "error"] or found
    return [str(one).removeprefix("<text>:").replace(": error:", "") for one in shown]


@pytest.mark.parametrize(("case", "said"), [*cases()], ids=lambda one: str(one)[:60])
def test_a_text_is_answered_where_it_is_wrong(case: str, said: list[str]) -> None:
    assert answers(case) == said


if __name__ == "__main__":
    lines = ("\n".join([case, *(f"  {one}" for one in answers(case))]) for case, _ in cases())
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
