"""No output moves the cursor, turns the text around, or hides a part: names may be any bytes."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.cli import main
from devhost.config.loader import loads
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.asking import get
from tests.support.daemon import Daemon, until

CONTROLS: Final = "\x01\a\b\t\n\r\x1b\x7f\x85\x9b\x9d"
BIDI: Final = "\u061c\u200e\u200f\u202a\u202d\u202e\u2066\u2067\u2069"
ZERO_WIDTH: Final = "\xad\u180e\u200b\u200c\u200d\u2060\ufeff\ufff9\U0001d173\U000e0041"
LINES: Final = "\u2028\u2029"
BLANK: Final = "\u115f\u2800\u3164\ufe0f"  # printable, as Unicode has it
HIDDEN: Final = CONTROLS + BIDI + ZERO_WIDTH + LINES + BLANK
NOT_UTF8: Final = "\udc9b\udcff"
UNSEEN: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}

NAMES: Final = st.one_of(
    st.text(st.sampled_from("ab.é世" + HIDDEN + NOT_UTF8), min_size=1, max_size=12),
    st.binary(min_size=1, max_size=12).map(os.fsdecode),
    st.text(st.characters(exclude_categories=()), min_size=1, max_size=12)
    .map(lambda text: text.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")),
).filter(lambda name: not {"/", "\0"} & {*name} and name not in (".", ".."))  # fmt: skip

# Names become IDs, paths of devices with IDs of their own, and the targets of links.
CONFIG: Final = """\
version: v1
resources:
  - name: example.com/names
    sources: [directory: /names]
    allocate: {env: {NAME: "${name}", ID: "${id}"}}
  - name: example.com/groups
    sources: [dev: {pattern: "(?P<n>[0-9]+)(?s:.*)", types: file}]
    id: n${n}
    allocate: {devices: [], env: {"P_${n}": "${path}"}, mounts: ["${path}"]}
  - name: example.com/links
    sources: [/links/*]
    allocate: {devices: [], env: {"TARGET": "${realpath}"}}
"""
PLAN: Final = (
    "plan", "--allocate", "example.com/names=1", "--allocate", "example.com/groups=1",
    "--allocate", "example.com/links=1", "--allow-path", "*", "--root",
)  # fmt: skip


def check(shown: bytes) -> str:
    """Assert that nothing in an output is unseen, but for the ends of its lines."""
    text = shown.decode()
    odd = {repr(char) for char in text if unicodedata.category(char) in UNSEEN and char != "\n"}
    assert not odd, text
    return text


def tree(root: Path, names: Iterable[str]) -> Path:
    for place in ("names", "dev", "links", "targets"):
        (root / place).mkdir()
    for number, name in enumerate(names):
        (root / "names" / name).touch()
        (root / "dev" / f"{number}{name}").touch()
        (root / "targets" / name).touch()
        (root / "links" / f"l{number}").symlink_to(f"/targets/{name}")
    return root


def unusable(name: str) -> bool:
    return any(char < " " or char == "\x7f" or unicodedata.category(char) == "Cs" for char in name)


ODD: Final = [f"a{char}" for char in HIDDEN + NOT_UTF8]
UNUSABLE: Final = [name for name in ODD if unusable(name)]


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True), st.booleans())
@example(ODD, False)
@example(ODD, True)
@settings(max_examples=30)
def test_plan_of_any_names_shows_nothing_unseen(names: Sequence[str], as_json: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        root, config = tree(Path(place), names), Path(place) / f"{names[0]}.yaml"
        config.write_text(CONFIG)
        arguments = [*PLAN, str(root), str(config), *(["-o", "json"] if as_json else [])]
        done = CliRunner().invoke(main, arguments)
        check(done.stderr_bytes)
        shown = check(done.stdout_bytes)
    if not as_json:
        assert "example.com/groups" in shown
        return
    of = {entry["name"]: entry for entry in json.loads(shown)["resources"]}
    ids = [device["id"] for entry in of.values() for device in entry["devices"]]
    assert not {*map(unicodedata.category, "".join(ids))} & UNSEEN
    # What is not refused is shown as it is to who reads the JSON.
    paths = [path for device in of["example.com/groups"]["devices"] for path in device["paths"]]
    assert {f"/dev/{n}{name}" for n, name in enumerate(names) if not unusable(name)} == {*paths}


def test_id_with_what_cannot_be_seen_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """Two IDs would look alike; a declared one is an error."""
    root = tree(tmp_path, [*(f"a{char}b" for char in HIDDEN + NOT_UTF8), "ab"])
    config = root / "c.yaml"
    config.write_text(CONFIG)
    done = CliRunner().invoke(main, [*PLAN, str(root), str(config), "-o", "json"])
    names, *_ = json.loads(done.stdout)["resources"]
    assert [device["id"] for device in names["devices"]] == ["ab"]
    reasons = [entry["reason"] for entry in names["skipped"]]
    assert len(reasons) == len(HIDDEN + NOT_UTF8)
    assert all(re.search("cannot be seen|unusable name", reason) for reason in reasons)
    for hidden in HIDDEN:
        resource = {"name": "example.com/a", "sources": [{"static": [f"a{hidden}"]}]}
        problems = loads(json.dumps({"version": "v1", "resources": [resource]})).problems
        assert [problem.severity for problem in problems] == ["error"], repr(hidden)
        assert str(problems[0]).isprintable()


@pytest.mark.parametrize("command", ["plan", "validate", "try"])
def test_process_with_odd_arguments_shows_nothing_unseen(tmp_path: Path, command: str) -> None:
    root = tree(tmp_path, ODD)
    good, bad = root / f"{HIDDEN}.yaml", root / "bad\x9b\u202e\x1b.yaml"
    good.write_text(CONFIG)
    bad.write_text(CONFIG + "    unknown\u202ekey\xad: 1\n    sources: 'a\u200b${b\ufeff}'\n")
    below = [] if command == "validate" else ["--root", str(root)]
    once = ["--once"] if command == "try" else []
    for arguments in (
        [*once, *below, str(good)],
        [*once, *below, str(bad)],
        [*once, *below, str(root / "\x9bmissing\u202e")],
        [str(good), "\x9bsurplus\u202e", f"--{HIDDEN}"],
        ["--allow-path", "\x9b\u202e", str(good)],
    ):
        program = [sys.executable, "-m", "devhost", command, *arguments]
        done = subprocess.run(program, capture_output=True, check=False)
        assert check(done.stdout + done.stderr).strip()


@pytest.mark.parametrize("form", ["text", "json"])
async def test_daemon_log_status_and_metrics_show_nothing_unseen(
    daemon: Daemon, standin: SimulatedKubelet, directory: Path, form: str
) -> None:
    root, log = tree(directory / "colas", ODD), directory / "log"
    daemon.flags = ["--root", str(root), "--listen", "127.0.0.1:0", "--allow-path", "*"]
    daemon.flags += ["--status-listen", "127.0.0.1:0", "--log-level", "debug", "--log-format", form]
    with log.open("wb") as stream:
        daemon.stderr = stream.fileno()
        await daemon.start(CONFIG)
        await standin.wait("example.com/groups", *[len(ODD) - len(UNUSABLE)] * 2)
        address = rb"listening%s[ \",].*?127\.0\.0\.1:([0-9]+)"
        ports = {}
        for kind, paths in ((b" for status", ("/status",)), (b"", ("/metrics", "/readyz"))):
            pattern = re.compile(address % kind)
            await until(lambda pattern=pattern: pattern.search(log.read_bytes()), "listening")
            ports[kind] = int(pattern.findall(log.read_bytes())[0])
            for path in paths:
                check((await get(ports[kind], path)).body)
        program = [sys.executable, "-m", "devhost", "status", "--status-listen"]
        program.append(f":{ports[b' for status']}")
        for output in ("text", "wide", "json", "yaml"):
            done = await asyncio.create_subprocess_exec(*program, "-o", output, stdout=PIPE)
            shown, _ = await done.communicate()
            assert "\\u202e" in check(shown)
        daemon.write(CONFIG + "    unknown\u202ekey\xad: 1\n")
        await until(lambda: b"unknown" in log.read_bytes(), "a rejected file")
        assert await daemon.stop() == 0
    assert "\\u202e" in check(log.read_bytes())
