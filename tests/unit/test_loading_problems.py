"""The problems of a configuration: golden/*.txt has texts, and the problems in them.

A case is a line with the place of a text and the text, with Python's escapes; a long text is below
its place, on lines that begin with '| '. The indented lines are its problems: line, column and
length of what is marked, and the message; where there are none, it is valid.

`python -m tests.unit.test_loading_problems` writes the problems of all cases, also of new ones;
`git diff` shows what has changed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import load_all
from devhost.errors import Problem

GOLDEN: Final = sorted(Path(__file__).with_name("golden").glob("*.txt"))
HEAD: Final = "version: v1\nresources:\n  - name: example.com/a\n"
KVM: Final = HEAD + "    sources: [dev: kvm]\n"
AROUND: Final = {
    "file": "{}\n",
    "resources": "version: v1\nresources:\n  {}\n",
    "name": "version: v1\nresources:\n  - name: {}\n    sources: [static: 1]\n",
    "bare": HEAD + "    {}\n",
    "source": HEAD + "    sources:\n      - {}\n",
    "resource": KVM + "    {}\n",
    "allocate": KVM + "    allocate:\n      {}\n",
    "env": KVM + "    allocate:\n      env:\n        {}\n",
}


def cases(golden: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each case of a file as it stands there, with the problems that are expected."""
    case, expected = "", list[str]()
    for line in golden.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            expected.append(line.strip())
        elif line.startswith("|"):
            case += f"\n{line}"
        else:
            if case:
                yield case, expected
            case, expected = line, []
    yield case, expected


def text_of(case: str) -> str:
    """Return the whole text of a case."""
    first, *below = case.split("\n")
    place, _, text = first.partition(" ")
    text += "\n".join(line.removeprefix("| ") for line in below)
    return AROUND[place].replace("{}", text.encode("ascii").decode("unicode_escape"))


def problems(text: str, file: Path) -> list[str]:
    """Return the problems of a text, without warnings where there are errors."""
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    policy = Policy(adds_values=True)
    all_problems = [problem for part in load_all(str(file), policy) for problem in part.problems]
    return [described(problem) for problem in all_problems if problem.severity == "error"] or list(
        map(described, all_problems)
    )


def described(problem: Problem) -> str:
    marked = problem.excerpt.end - problem.excerpt.start if problem.excerpt else 0
    severity = "" if problem.severity == "error" else f"{problem.severity}: "
    path = f"{problem.path}: " if problem.path else ""
    return f"{problem.line}:{problem.column}+{marked} {severity}{path}{problem.message}"


@pytest.mark.parametrize(
    ("case", "expected"),
    [pytest.param(*pair, id=pair[0][:60]) for golden in GOLDEN for pair in cases(golden)],
)
def test_problem_is_reported_where_it_is(case: str, expected: list[str], tmp_path: Path) -> None:
    assert problems(text_of(case), tmp_path / "f.yaml") == expected


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        for golden in GOLDEN:
            lines = list[str]()
            for case, _ in cases(golden):
                reported = problems(text_of(case), Path(directory, "f.yaml"))
                lines += [case, *(f"  {problem}" for problem in reported)]
            golden.write_text("\n".join(lines) + "\n", encoding="utf-8")
