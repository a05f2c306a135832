"""Files to configurations. What is said of a wrong one is in test_loading_problems."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devhost.allocation.policy import Policy
from devhost.config.loader import PROBLEMS_MAX, load, loads
from devhost.config.yaml_errors import SIZE_MAX
from devhost.errors import ConfigError
from devhost.model.config import Config

HEAD: Final = "version: v1\nresources:\n  - name: example.com/a\n"
KVM: Final = HEAD + "    sources: [dev: kvm]\n"


def problems(text: str, policy: Policy | None = None) -> list[str]:
    return [str(problem) for problem in loads(text, "f.yaml", policy).problems]


def source(text: str) -> str:
    return f"{HEAD}    sources:\n      - {text}\n"


def devices(*entries: str) -> str:
    return f"{KVM}    allocate: {{devices: [{', '.join(entries)}]}}\n"


@pytest.mark.parametrize(
    "content", [KVM.encode(), b"\xef\xbb\xbf" + KVM.encode(), KVM.replace("\n", "\r\n").encode()]
)
def test_load_with_byte_order_mark_or_crlf_is_valid(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    loaded = load(str(file))
    assert loaded.problems == ()
    assert loaded.require().resources[0].name == "example.com/a"


@pytest.mark.parametrize(
    ("content", "at", "says"),
    [
        (b"", "1:1", "the file is empty"),
        (b"#" * (SIZE_MAX + 1), "1:1", "larger than 1024 KiB"),
        (b"\xef\xbb\xbfa\rb: \xc3\xa9\xff", "2:5", "not UTF-8"),
        ("é: é\né\0\n\n\n".encode(), "2:2", "control characters"),
    ],
    ids=["empty", "a byte too long", "not UTF-8", "NUL"],
)
def test_load_of_no_text_is_one_error(tmp_path: Path, content: bytes, at: str, says: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    [problem] = load(str(file)).problems
    assert str(problem).startswith(f"{file}:{at}: error: ")
    assert says in problem.message


def test_load_of_unreadable_file_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert str(load("").problems[0]) == "'':1:1: error: cannot be read: Is a directory"
    assert load("-").problems[0].message == "cannot be read: standard input is closed"


def test_loaded_require_raises_every_problem() -> None:
    loaded = loads("version: v2\nresource: []\n", "f.yaml")
    with pytest.raises(ConfigError) as caught:
        loaded.require()
    assert caught.value.problems == loaded.problems
    assert str(caught.value).splitlines() == [str(problem) for problem in loaded.problems]


def config_map(**values: str) -> str:
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": values}
    )


def test_values_allow_something_only_where_nothing_is_handed_out() -> None:
    """A file that `run` reads must not allow itself what the flags do not."""
    step = "{name: a.b/c, sources: [static: 1], preStart: [{run: [x], every: start}]}"
    text = f"allow: {{exec: true, cdi: ['a*']}}\nconfig: {{resources: [{step}]}}\n"
    enforced = Policy(allow_cdi=("b*",), enforced=True)
    assert loads(text, policy=enforced).config is None
    loaded = loads(text, policy=replace(enforced, adds_values=True))
    assert loaded.config is not None
    assert loaded.policy.allow_cdi == ("b*", "a*")
    assert loaded.policy.allow_exec
    assert not loaded.policy.runs_commands, "plan and try would run commands of a file"


def test_problem_in_a_value_has_the_line_of_the_file_or_of_the_value(tmp_path: Path) -> None:
    """The text of a block is as long as it is in the file; a quoted one is all on one line of it."""
    file = tmp_path / "f.yaml"
    text = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    version: v1\n    resources: 1\n"
    for end in ("\n", "\r\n", "\r"):
        file.write_bytes(text.replace("\n", end).encode())
        [problem] = load(str(file)).problems
        assert problem.excerpt is not None
        assert (problem.line, problem.column, problem.excerpt.line) == (6, 16, 6)
    file.write_text(config_map(a=f"{KVM}    replcas: 2\n"))
    [problem] = load(str(file)).problems
    assert problem.resource == "example.com/a"
    assert problem.excerpt is not None
    assert (problem.excerpt.text, problem.excerpt.line) == ("    replcas: 2", 0)


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        (source("dev: " + "a" * 1001), "5:14", "pattern of 1001 characters; at most 1000 are allowed, split it into several patterns"),
        (source("glob: /" + "[" * 1000), "5:15", "glob of 1001 characters; at most 1000 are allowed"),
        (source("glob: /**" + "/a" * 100), "5:15", "path of 102 parts; at most 100 are allowed"),
        (KVM + "    id: " + "${a}" * 1001, "5:9", "more than 1000 variables"),
        (devices(*["/dev/x"] * 201), "5:5", "201 entries, more than 200"),
        (devices(*["'/dev/${id}'"] * 17), "5:5", "17 names and container paths that are made from the device, more than 16"),
        (HEAD.split("  - name")[0] + "  - {}\n" * 1001, "2:1", "1001 resources, more than 1000"),
        (config_map(**dict.fromkeys(map(str, range(101)), KVM)), "1:1", "more than 100 configurations in one file"),
    ],
)  # fmt: skip
def test_load_beyond_a_limit_is_an_error(tmp_path: Path, text: str, at: str, says: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    loaded = load(str(file))
    assert loaded.config is None
    assert (at, says) in [(f"{p.line}:{p.column}", p.message) for p in loaded.problems]


def test_patterns_limit_counts_each_pattern_of_the_file_once() -> None:
    for form, count, fits in (
        ("a{}", 999, True),  # and 'x'
        ("a{}", 1000, False),
        ("a" * 994 + "{:05}", 100, True),
        ("a" * 995 + "{:05}", 100, False),
    ):
        patterns = [f"dev: {form.format(number)}" for number in range(count)]
        reported = problems(f"{HEAD}    sources: [dev: x, {', '.join(patterns)}]\n")
        assert bool(reported) != fits
        assert fits or (len(reported) == 1 and "the file has more than" in reported[0])
    assert problems(f"{HEAD}    sources: [{', '.join(['dev: a'] * 2000)}]\n") == []


def test_problems_beyond_the_limit_are_cut_off_errors_apart_from_warnings() -> None:
    lines = "".join(f"a{number}: b\n" for number in range(PROBLEMS_MAX * 2))
    reported = problems(f"version: v1\n{lines}")
    assert len(reported) == PROBLEMS_MAX + 1
    assert [line for line in reported if "more than 1000 errors; the rest is not shown" in line]
    entries = ", ".join(f"/d{number}" for number in range(100))
    text = "version: v1\nresources:\n" + "".join(
        f"  - name: a.b/r{number}\n    sources: [dev: kvm]\n    allocate: {{devices: [{entries}]}}\n"
        for number in range(PROBLEMS_MAX // 100 + 1)
    )
    loaded = loads(text)
    assert loaded.config is not None
    assert [line.message for line in loaded.problems if "more than" in line.message] == [
        "more than 1000 warnings; the rest is not shown"
    ]
    assert any(": error: " in line for line in problems(f"{text}    replicas: 60000\n"))


def test_x_keys_hold_anchors_for_merge() -> None:
    notes = "x-b: ~\nx-c: [{d: ~}]\nx-d: {1: a, ~: {2: b}}\n"
    text = f"x-a: &a {{A: b, C: d}}\n{notes}{KVM}    allocate:\n      env: {{<<: *a, A: z}}\n"
    loaded = loads(text)
    assert loaded.problems == ()  # a key beside `<<` is no duplicate
    envs = loaded.require().resources[0].allocate.env
    assert {name: str(entry.value) for name, entry in envs.items()} == {"A": "z", "C": "d"}
    used = f"x-a: &a {{1: b}}\n{KVM}    allocate:\n      env: {{<<: *a}}\n"
    assert [problem.path for problem in loads(used).problems] == ["resources[0].allocate.env"]


SHORTHAND: Final = yaml.safe_load(Path(__file__).with_name("shorthand.yaml").read_text())


@pytest.mark.parametrize(("short", "long"), SHORTHAND)
def test_shorthand_equals_its_long_form(short: dict[str, Any], long: dict[str, Any]) -> None:
    def loaded(part: dict[str, Any]) -> Config:
        resource = {"name": "example.com/a", "sources": [{"dev": "kvm"}], **part}
        return loads(yaml.safe_dump({"version": "v1", "resources": [resource]})).require()

    assert loaded(short) == loaded(long)
