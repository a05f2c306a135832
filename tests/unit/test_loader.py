"""A file to a configuration, or every mistake with its place and its fix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from devhost.allocation.policy import Policy
from devhost.errors import ConfigError
from devhost.loading import shapes, yamltree
from devhost.loading.loader import PROBLEMS_MAX, Loaded, load, loads
from devhost.loading.syntax import SIZE_MAX
from devhost.model.config import Config, Resource

HEAD: Final = "version: v1\nresources:\n  - name: example.com/a\n"  # three lines
KVM: Final = HEAD + "    sources: [dev: kvm]\n"  # four
SLOTS: Final = HEAD + "    sources: [static: 2]\n"
TWO: Final = KVM + "  - name: example.com/b\n    sources: [static: 1]\n"
TRUSTING: Final = Policy(allow_paths=("*",))


def problems(text: str, policy: Policy | None = None) -> list[str]:
    return [str(problem) for problem in loads(text, "f.yaml", policy).problems]


def source(text: str) -> str:
    return f"{HEAD}    sources:\n      - {text}\n"


def env(line: str) -> str:
    return f"{KVM}    allocate:\n      env:\n        {line}\n"


def devices(*entries: str, section: str = "devices") -> str:
    lines = "".join(f"        - {entry}\n" for entry in entries)
    return f"{KVM}    allocate:\n      {section}:\n{lines}"


A: Final = "resources[0]"
S: Final = f"{A}.sources[0]"
ENV: Final = f"{A}.allocate.env"
DEVICES: Final = f"{A}.allocate.devices"


@pytest.mark.parametrize(
    ("text", "at", "path", "says"),
    [
        ("", "1:1", "", "the file is empty; needs 'version: v1' and 'resources:'"),
        (env("A: 0x" + "f" * 5000), "7:12", "", "quote it"),
        (env("A: 1" + ":59" * 300 + ".5"), "7:12", "", "quote it"),
        (source("dev: " + "a" * 1001), "5:14", f"{S}.dev", "at most 1000 are allowed"),
        (source("glob: /" + "[" * 1000), "5:15", f"{S}.glob", "glob of 1001 characters; at most 1000 are allowed"),
        (source("glob: /**" + "/a" * 100), "5:15", f"{S}.glob", "path of 102 parts; at most 100 are allowed"),
        (KVM + "    nodeNames: [a, '" + "[" * 1001 + "']", "5:20", f"{A}.nodeNames[1]", "glob of 1001 characters; at most 1000 are allowed"),
        (devices(*["/dev/x"] * 201), "5:5", f"{A}.allocate", "201 entries, more than 200"),
        (devices(*["'/dev/${id}'"] * 17), "5:5", f"{A}.allocate", "17 names and container paths that are made from the device, more than 16"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_an_error_where_it_is(text: str, at: str, path: str, says: str) -> None:
    loaded = loads(text, "f.yaml")
    assert loaded.config is None
    start = f"f.yaml:{at}: error: {path}: " if path else f"f.yaml:{at}: error: "
    found = [str(problem) for problem in loaded.problems]
    assert any(line.startswith(start) and says in line for line in found), found


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [("a", "b", True), ("a", "a", False), ("${id}", "${id}", True), ("a", "${id}", True)],
)
def test_two_resources_that_set_one_variable_are_a_warning(
    first: str, second: str, *, warned: bool
) -> None:
    """Unless both set the same value whatever devices there are."""
    allocate = "    allocate: {{env: {{A: '{}'}}}}\n"
    text = KVM + allocate.format(first) + TWO.removeprefix(KVM) + allocate.format(second)
    says = "example.com/a also sets the env A: if a container requests both"
    assert [says in line for line in problems(text)] == [True] * warned


def test_all_errors_of_a_file_come_in_one_run() -> None:
    """Errors of every kind are listed together, in the order of the file."""
    text = (
        "version: v1\n"
        "resources:\n"
        "  - name: example.com/a\n"
        "    sources: [dev: 'a(']\n"
        "    replica: 1\n"
        "  - name: example.com/b\n"
        "    sources: [dev: kvm]\n"
        "    allocate:\n"
        "      env: {A: '${nope}', B: '${none}'}\n"
        "  - name: bad\n"
        "    sources:\n"
        "other: 1\n"
    )
    found = loads(text, "f.yaml").problems
    assert [(problem.line, problem.column) for problem in found] == sorted(
        (problem.line, problem.column) for problem in found
    )
    assert {5, 9, 10, 11, 12} <= {problem.line for problem in found}
    assert len({problem.column for problem in found if problem.line == 9}) >= 2


# ── files ──


@pytest.mark.parametrize(
    ("content", "at", "says"),
    [
        (b"", "1:1", "the file is empty"),
        (b"a: 1\nb: \xff\n", "2:4", "not UTF-8"),
        (b"#" * 10_000_000, "1:1", "larger than 1024 KiB"),
        (b"#" * (SIZE_MAX + 1), "1:1", "larger than 1024 KiB"),
        (b"\x00", "1:1", "control characters"),
        ("é: é\né\0\n\n\n".encode(), "2:2", "control characters"),
        (b"\xef\xbb\xbfa\rb: \xc3\xa9\xff", "2:5", "not UTF-8"),
    ],
    ids=["empty", "latin-1", "10 MB", "a byte too long", "NUL", "NUL after é", "after CR"],
)
def test_unusable_files(tmp_path: Path, content: bytes, at: str, says: str) -> None:
    """A file that cannot be a configuration is one error with its place."""
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    [problem] = load(str(file)).problems
    assert str(problem).startswith(f"{file}:{at}: error: ")
    assert says in problem.message


def test_a_missing_file_and_a_directory_are_errors(tmp_path: Path) -> None:
    """What cannot be read is an error that says why."""
    assert "No such file" in load(str(tmp_path / "none")).problems[0].message
    assert "Is a directory" in load(str(tmp_path)).problems[0].message


def test_a_name_that_no_file_can_have_is_an_error() -> None:
    """No name and an impossible name are errors that show where the name belongs."""
    assert str(load("").problems[0]) == ("'':1:1: error: cannot be read: the file name is empty")
    assert "NUL" in load("a\0b").problems[0].message


def test_a_closed_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no stdin at all where it was closed when the process began."""
    monkeypatch.setattr("sys.stdin", None)
    assert str(load("-").problems[0]) == "-:1:1: error: cannot be read: standard input is closed"


# ── the number and length of problems ──


def test_errors_beyond_measure_are_cut_off() -> None:
    """After so many errors one says that there are more."""
    lines = "".join(f"a{number}: b\n" for number in range(PROBLEMS_MAX * 2))
    found = problems(f"version: v1\n{lines}")
    assert len(found) == PROBLEMS_MAX + 1
    assert [line for line in found if "more than 1000 errors; the rest is not shown" in line]


def test_many_unknown_keys_are_not_compared_with_each_other() -> None:
    """The hint for one looks at the keys of the language, not at all those that are there."""

    class Keys(dict[str, Any]):
        reads = 0

        def __iter__(self) -> Iterator[str]:
            Keys.reads += len(self)
            return super().__iter__()

    tree = yamltree.parse(KVM + "".join(f"    odd{number}: 1\n" for number in range(500)))
    given = tree.data["resources"][0]
    with pytest.raises(ValidationError) as caught:
        Resource.model_validate(given)
    tree.data["resources"][0] = Keys(given)
    found = [*shapes.shape_problems(caught.value.errors(), ("resources", 0), tree, set())]
    assert len(found) == 500
    assert Keys.reads == 0


def test_more_resources_than_may_be_are_not_looked_at() -> None:
    """One error says how many there are, and those beyond are not validated."""
    text = HEAD.split("  - name")[0] + "".join(
        f"  - {{name: example.com/a{number}, sources: [static: 1]}}\n" for number in range(1001)
    )
    (line,) = problems(text + "  - {}\n")
    assert line == "f.yaml:2:1: error: resources: 1002 resources, more than 1000"
    assert loads(text.rpartition("  - ")[0]).config is not None


def test_warnings_beyond_measure_hide_no_error() -> None:
    """Warnings are cut off too, but each error is still found; without one it loads."""
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
    found = problems(
        f"{text}    replicas: 60000\n  - name: a.b/c\n    sources: [static: 1]\n    id: $x\n"
    )
    assert [line for line in found if ": error: " in line]


@pytest.mark.parametrize(
    "text",
    [
        env('"A\\n\\e[2J": x'),
        env('A: "x\\u2028$y"'),
        HEAD.replace("example.com/a", "x" * 9000) + "    sources: [static: 1]",
        KVM + "    allocate: {cdi: [" + "x" * 9000 + "]}",
        "? " + "k" * 9000 + "\n: {a: }",
    ],
)
def test_a_problem_is_one_line_that_can_be_read(text: str) -> None:
    """What a file holds neither breaks a problem's line nor makes it endless."""
    found = problems(text)
    assert found
    assert all(line.isprintable() and len(line) < 2000 for line in found), found


def test_too_many_patterns_are_one_error() -> None:
    """Patterns are counted over the whole file, each once."""
    for form, count, fits in (
        ("a{}", 999, True),  # and 'x'
        ("a{}", 1000, False),
        ("a" * 994 + "{:05}", 100, True),
        ("a" * 995 + "{:05}", 100, False),
    ):
        patterns = [f"dev: {form.format(number)}" for number in range(count)]
        found = problems(f"{HEAD}    sources: [dev: x, {', '.join(patterns)}]\n")
        assert bool(found) != fits
        assert fits or (len(found) == 1 and "the file has more than" in found[0])
    assert problems(f"{HEAD}    sources: [{', '.join(['dev: a'] * 2000)}]\n") == []


@pytest.mark.parametrize(
    "content", [KVM.encode(), b"\xef\xbb\xbf" + KVM.encode(), KVM.replace("\n", "\r\n").encode()]
)
def test_a_good_file_loads(tmp_path: Path, content: bytes) -> None:
    """A file loads, also with a byte order mark or line ends of Windows."""
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    loaded = load(str(file))
    assert loaded.problems == ()
    assert loaded.require().resources[0].name == "example.com/a"


def test_require_raises_every_problem() -> None:
    """Who needs the configuration gets the problems as one error that prints them all."""
    loaded = loads("version: v2\nresource: []\n", "f.yaml")
    with pytest.raises(ConfigError) as caught:
        loaded.require()
    assert caught.value.problems == loaded.problems
    assert str(caught.value).splitlines() == [str(problem) for problem in loaded.problems]


# ── what is legal ──


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("00", 0), ("10", 10), ("+10", 10), ("0x1F", 31)]
)
def test_numbers_that_every_yaml_reads_alike(text: str, count: int) -> None:
    """What YAML 1.1 and 1.2 agree on is a number."""
    (resource,) = loads(source(f"static: {text}")).require().resources
    assert resource.sources[0].static is not None
    assert resource.sources[0].static.count == count


def test_extension_keys_are_ignored() -> None:
    """Top-level keys that begin with x- may hold anything, and are a place for anchors."""
    notes = "x-b: ~\nx-c: [{d: ~}]\nx-d: {1: a, ~: {2: b}}\n"
    text = f"x-a: &a {{env: {{A: b}}}}\n{notes}{KVM}    allocate:\n      <<: *a\n"
    loaded = loads(text)
    assert loaded.problems == ()
    assert list(loaded.require().resources[0].allocate.env) == ["A"]


def test_extension_keys_that_are_used_are_judged() -> None:
    text = f"x-a: &a {{1: b}}\n{KVM}    allocate:\n      env: {{<<: *a}}\n"
    assert [problem.path for problem in loads(text).problems] == [ENV]


def test_overriding_a_merged_key_is_no_duplicate() -> None:
    """A key beside ``<<`` takes the place of the merged one."""
    text = f"x-a: &a {{A: b, C: d}}\n{KVM}    allocate:\n      env: {{<<: *a, A: z}}\n"
    envs = loads(text).require().resources[0].allocate.env
    assert {name: str(entry.value) for name, entry in envs.items()} == {"A": "z", "C": "d"}


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"sources": ["/dev/x*"]}, {"sources": [{"glob": {"paths": ["/dev/x*"]}}]}),
        ({"sources": [{"glob": "/x"}]}, {"sources": [{"glob": {"paths": ["/x"]}}]}),
        ({"sources": [{"glob": ["/x", "/y"]}]}, {"sources": [{"glob": {"paths": ["/x", "/y"]}}]}),
        ({"sources": [{"directory": "/x"}]}, {"sources": [{"directory": {"path": "/x"}}]}),
        ({"sources": [{"dev": "kvm"}]}, {"sources": [{"dev": {"pattern": "kvm"}}]}),
        ({"sources": [{"static": 3}]}, {"sources": [{"static": {"count": 3}}]}),
        ({"sources": [{"static": ["a"]}]}, {"sources": [{"static": {"ids": ["a"]}}]}),
        (
            {"sources": [{"glob": {"paths": "/x", "exclude": "a", "types": "char"}}]},
            {"sources": [{"glob": {"paths": ["/x"], "exclude": ["a"], "types": ["char"]}}]},
        ),
        (
            {"sources": [{"directory": {"path": "/x", "include": "a", "exclude": "b"}}]},
            {"sources": [{"directory": {"path": "/x", "include": ["a"], "exclude": ["b"]}}]},
        ),
        ({"id": "${name}"}, {"id": ["${name}"]}),
        ({"nodeNames": "a*"}, {"nodeNames": ["a*"]}),
        ({"allocate": {"env": {"A": "b"}}}, {"allocate": {"env": {"A": {"value": "b"}}}}),
        (
            {"allocate": {"annotations": {"a": "b"}}},
            {"allocate": {"annotations": {"a": {"value": "b"}}}},
        ),
        (
            {"allocate": {"devices": ["/dev/a"]}},
            {"allocate": {"devices": [{"hostPath": "/dev/a"}]}},
        ),
        ({"health": "readable"}, {"health": {"checks": ["readable"]}}),
        ({"health": {"exec": ["x"]}}, {"health": {"checks": [{"exec": ["x"]}]}}),
        (
            {"health": {"checks": {"file": {"path": "/x", "matches": "y"}}}},
            {"health": {"checks": [{"file": {"path": "/x", "matches": "y"}}]}},
        ),
        ({"allocate": {"mounts": ["/a"]}}, {"allocate": {"mounts": [{"hostPath": "/a"}]}}),
    ],
)
def test_a_shorthand_equals_its_long_form(short: dict[str, Any], long: dict[str, Any]) -> None:
    """A scalar or list where a mapping is expected is its main option."""

    def loaded(part: dict[str, Any]) -> Config:
        resource = {"name": "example.com/a", "sources": [{"dev": "kvm"}], **part}
        text = yaml.safe_dump({"version": "v1", "resources": [resource]})
        return loads(text, policy=TRUSTING).require()

    assert loaded(short) == loaded(long)


@pytest.mark.parametrize(
    ("body", "variable"),
    [
        ("sources: [/dev/serial/by-id/*]", "path"),
        ("sources: [dev: v4l/by-path/.*]", "path"),
        ("sources: [directory: {path: /dev/disk/by-id, types: block}]", "path"),
        ("sources: [{glob: /dev/serial/by-id/*, as: tty}], group: x", "tty.path"),
    ],
)
def test_the_path_of_a_link_that_is_not_in_the_container_is_a_warning(
    body: str, variable: str
) -> None:
    """Where `devices` is left out, the container has the node under its own name."""
    policy = Policy(allow_devices=("/dev/*",), allow_annotations=("*",))
    name, own = f"${{{variable}}}", f"${{{variable.removesuffix('path')}realpath}}"

    def said(allocate: str) -> list[str]:
        text = "version: v1\nresources:\n- {name: e.com/a, %s, allocate: {%s}}\n"
        return problems(text % (body, allocate), policy)

    (found,) = said(f"env: {{PORT: '{name}'}}")
    assert ": warning: resources[0].allocate.env.PORT: " in found
    assert f"{name} may be a link, but the container" in found
    assert f'use {own}, or set `devices: ["{name}"]`' in found
    assert said(f"env: {{PORT: '{own}'}}") == []
    assert said(f"env: {{PORT: '{name}'}}, devices: ['{name}']") == []
    assert said(f"annotations: {{e.com/port: '{name}'}}") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("preStart: [{run: [mkfs -q, /dev/x]}]", "there is no shell: write mkfs, -q"),
        ("health: {exec: [mkfs -q]}", "there is no shell: write mkfs, -q"),
        ("health: {exec: [ls, a, '|', b]}", "'|' is an argument: there is no shell"),
    ],
)
def test_a_command_as_a_shell_takes_it_is_a_warning(text: str, says: str) -> None:
    (problem,) = problems(f"{KVM}    {text}\n", Policy(allow_exec=True))
    assert "warning" in problem
    assert says in problem


# ── trust ──

ASKING: Final = KVM + "    allocate:\n      mounts: [/opt/x]\n      devices: [/srv/y]\n"


@pytest.mark.parametrize(("enforced", "severity"), [(True, "error"), (False, "warning")])
def test_asking_for_more_names_the_flag(enforced: bool, severity: str) -> None:
    """Paths beyond what the process allows are errors where enforced, else warnings."""
    loaded = loads(ASKING, "f.yaml", Policy(enforced=enforced))
    assert (loaded.config is None) == enforced
    mount, device = (str(problem) for problem in loaded.problems)
    assert mount.startswith(f"f.yaml:6:16: {severity}: {A}.allocate.mounts[0]: ")
    assert "--allow-path '/opt/x'" in mount
    assert device.startswith(f"f.yaml:7:17: {severity}: {DEVICES}[0]: ")
    assert "--allow-device '/srv/y'" in device


def test_allowed_paths_are_no_problem() -> None:
    """What the flags name may be asked for: mounts by one, nodes by the other."""
    policy = Policy(allow_paths=("/opt/*",), allow_devices=("/srv/y",), enforced=True)
    assert loads(ASKING, policy=policy).problems == ()


def test_usual_links_are_known() -> None:
    """/var/run is /run on nearly every machine: to ask for both would contradict the scan."""
    text = ASKING.replace("/opt/x", "/var/run/x").replace("/srv/y", "/var/run/y")
    for allowed, refused in (("/run/*", 0), ("/var/*", 0), ("/opt/*", 2)):
        policy = Policy(allow_paths=(allowed,), allow_devices=(allowed,), enforced=True)
        assert len(loads(text, policy=policy).problems) == refused


@pytest.mark.parametrize("path", ["/dev/mem", "/dev/kmem", "/dev/port", "/dev//mem", "/dev/./mem"])
def test_memory_needs_the_flag(path: str) -> None:
    """Nodes of memory and ports are refused by their names, but where a flag is just the name."""
    for allow in ((), ("/dev/sd*",), ("/dev/*", "/dev/???", "memory", "*")):
        policy = Policy(allow_paths=allow, allow_devices=allow, enforced=True)
        [line] = problems(devices("{hostPath: %s, containerPath: /x}" % path), policy)  # noqa: UP031 (braces)
        assert line.startswith(f"f.yaml:7:11: error: {DEVICES}[0]: /dev/")
        assert "of class memory" in line
        assert "needs --allow-device '/dev/" in line
    plain = path.replace("//", "/").replace("/./", "/")
    assert problems(devices(path), Policy(enforced=True, allow_devices=(plain,))) == []


def test_block_devices_need_the_flag() -> None:
    """A source of block devices alone needs --allow-device."""
    [problem] = loads(
        source("dev: {pattern: x, types: block}"), policy=Policy(enforced=True)
    ).problems
    assert problem.severity == "error"
    assert "--allow-device" in problem.message


# ── nothing gets through as a traceback ──


@given(
    st.text(alphabet="a_A1,:/.${}=-\n\x00é", max_size=12),
    st.text(alphabet="ab/${}id(.*", max_size=9),
)
@example("${id", "x")
@example("a", "(?P<1>x)")
def test_any_texts_in_a_configuration_are_accepted_or_refused(one: str, two: str) -> None:
    """Whatever texts stand where texts may stand, the checks find words for it."""
    entry = {"hostPath": one, "containerPath": two}
    allocate = {
        "env": {one: two},
        "annotations": {two: one},
        "devices": [one, entry],
        "mounts": [entry],
        "cdi": [two],
    }
    for kind in ({"dev": two}, {"static": [one]}, "/" + one, {"directory": "/" + two}):
        for more in ({}, {"env": {one: two}}, {"devices": [entry]}, allocate):
            resource = {"name": "example.com/a", "sources": [kind], "allocate": more}
            other = {"name": "example.com/b", "sources": [kind], "id": [two], "allocate": more}
            document = {"version": "v1", "resources": [resource, other]}
            text = yaml.dump(document, Dumper=yaml.CSafeDumper)
            assert isinstance(loads(text), Loaded)


def test_a_misshapen_part_hides_no_mistake_elsewhere() -> None:
    """Each is at its own place."""
    text = """version: v1
resources:
  - name: Bad.example/a
    replcas: 3
    sources: [dev: kvm]
    allocate:
      env: {A: 0403, B: "${nn}"}
      mounts: [5, {hostPath: /a}]
      devices:
        - {hostPath: /dev/x, permissions: rx}
        - {hostPath: dev/y}
"""
    found = problems(text)
    places = [line.split(" ")[0].removesuffix(":") for line in found]
    assert places == [
        "f.yaml:3:11",
        "f.yaml:4:5",
        "f.yaml:7:16",
        "f.yaml:8:16",
        "f.yaml:10:43",
        "f.yaml:11:22",
    ], found
