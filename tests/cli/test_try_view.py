"""A frame of `devhost try` fits the terminal, whatever is in it."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from devhost.cli.playground_view import View
from devhost.cli.prompt import Prompt
from devhost.host.supervisor import Settings
from devhost.loading.loader import loads
from devhost.standin.trial import Trial

CONFIG = """\
version: v1
resources:
  - name: example.com/token
    sources: [static: 40]
  - name: example.com/none
    sources: [directory: /no/such/directory/anywhere/on/any/host/that/runs/the/tests/of/this]
"""


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.fixture
def prompt() -> Prompt:
    return Prompt(lambda _before: ())


@pytest.fixture
def trial(directory: Path) -> Trial:
    config = loads(CONFIG, "c.yaml").require()
    return Trial(config, Settings(directory / "plugins", "node"))


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 5), (5, 2)])
async def test_a_frame_fits(trial: Trial, prompt: Prompt, size: tuple[int, int]) -> None:
    view = View(trial, "title " * 30, ["status page: http://127.0.0.1:1/"], prompt)
    for number in range(30):
        view.say(f"  answer {number} \x1b[2J \u202e " + "漢字" * 50)
    for key in "a word " * 20:
        prompt.key(key)
    async with trial.running():
        await trial.kubelet.wait("example.com/token", 40, 40)
        for down in (0, 10, 1000, -5):
            view.scroll_devices(down)
            view.scroll_answers(down)
            lines, (column, line) = view.frame(*size)
            assert len(lines) == size[1]
            assert max(cell_len(plain(text)) for text in lines) <= size[0]
            assert (column, line) == (min(size[0] - 1, 2 + 20 * 7), size[1] - 1)
            assert "\x1b[2J" not in "".join(lines)
            assert "\u202e" not in "".join(lines)


async def test_nothing_hostile_gets_out_and_nothing_wide_is_cut(
    trial: Trial, prompt: Prompt
) -> None:
    view = View(trial, "of \x1b[2J\udcff.yaml", ["status page: http://127.0.0.1:1/"], prompt)
    view.say("漢字" * 50 + "end")
    for key in "漢" * 60 + "end":  # of which the end is seen
        prompt.key(key)
    async with trial.running():
        await trial.kubelet.wait("example.com/token", 40, 40)
        lines, (column, _) = view.frame(80, 24)
    shown = [plain(line) for line in lines]
    assert shown[0] == r"of \x1b[2J\udcff.yaml"
    assert "\n".join(shown).count("漢字" * 10) >= 5
    assert any(line.endswith("字end") for line in shown)
    assert shown[-1] == "漢" * 38 + "end"
    assert cell_len(shown[-1]) == column
    for _ in range(70):
        prompt.key("\x1b[D")
    lines, (column, _) = view.frame(80, 24)
    assert plain(lines[-1]).startswith("> 漢")
    assert column == 2


async def test_what_does_not_fit_is_counted(trial: Trial, prompt: Prompt) -> None:
    view = View(trial, "title", [], prompt)
    async with trial.running():
        await trial.kubelet.wait("example.com/token", 40, 40)
        await trial.kubelet.wait("example.com/none", 0, 0)
        everything = [plain(line) for line in view.frame(80, 100)[0]]
        first = [plain(line) for line in view.frame(80, 24)[0]]
        shown = first.index("─" * 80)
        assert first[: shown - 1] == everything[: shown - 1]
        hidden = everything.index("─" * 80) - shown + 1
        assert first[shown - 1] == f"  … {hidden} more lines: PgDn"
        view.scroll_devices(1000)
        last = [plain(line) for line in view.frame(80, 24)[0]]
        assert last[1] == f"  … {hidden} lines above: PgUp"
        assert last[shown - 1] == everything[everything.index("─" * 80) - 1]
