"""A file to a configuration, or every mistake with its place and its fix."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from devhost.allocation.policy import Policy
from devhost.errors import ConfigError
from devhost.loading import shapes, yamltree
from devhost.loading.loaded import SIZE_MAX, Loaded
from devhost.loading.loader import PROBLEMS_MAX, load, loads
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
        # the whole file
        ("", "1:1", "", "the file is empty; needs 'version: v1' and 'resources:'"),
        ("foo", "1:1", "", "should be a mapping with 'version: v1' and 'resources:', not 'foo'"),
        ("[]", "1:1", "", "should be a mapping, not a list"),
        ("resources: []", "1:1", "", "needs 'version: v1'"),
        ("version: v1", "1:1", "", "needs 'resources'"),
        ("version: v2\nresources: []", "1:10", "version", "should be 'v1', not 'v2'"),
        ("version: v1\nresources: {}", "2:12", "resources", "should be a list, not a mapping"),
        ("version: v1\nresources:", "2:1", "resources", "has no value"),
        ("version: v1\nresources: [x]", "2:13", "resources[0]", "should be a mapping, not 'x'"),
        # unknown and duplicate keys
        ("version: v1\nresource: []", "2:1", "resource", "did you mean 'resources'?"),
        (KVM + "    replica: 2", "5:5", f"{A}.replica", "unknown key 'replica'; did you mean 'rep"),
        (KVM + "    permissions: rw", "5:5", f"{A}.permissions", "it belongs below 'devices'"),
        (KVM + "    zzz: 1", "5:5", f"{A}.zzz", "unknown key 'zzz'; known keys: name, sources, id, group, allocate, inject, maxDevices, m"),
        (KVM + "    max_devices: 1", "5:5", f"{A}.max_devices", "did you mean 'maxDevices'?"),
        (KVM + "    maxDevices: 1\n    minDevices: 2", "6:17", f"{A}.minDevices", "minDevices 2 is more than maxDevices 1"),
        (KVM + "    minDevices: -1", "5:17", f"{A}.minDevices", "should be at least 0, not -1"),
        (source("usb: '1234'"), "5:14", f"{S}.usb", "'1234' should be vendor:product in hexadecimal, as lsusb and lspci -nn print it: 0403:6001, or 0403:* for all of a vendor"),
        (source("device: kvm"), "5:9", f"{S}.device", "unknown key 'device'; did you mean 'dev'?"),
        (env("A: {valu: x}"), "7:13", f"{ENV}.A.valu", "did you mean 'value'?"),
        (KVM + "    name: example.com/b", "5:5", f"{A}.name", "duplicate key (first defined on line 3)"),
        (KVM + "1: x", "5:1", "", 'quote it: "1"'),
        (env("off: x"), "7:9", ENV, 'key off is not a string in YAML; quote it: "off"'),
        (env("A: {{ .Values.x }}"), "7:13", f"{ENV}.A", "'{{ }}' is Helm's"),
        (source("{dev: kvm, exclude: x}"), "5:20", f"{S}.exclude", "it belongs below 'dev'"),
        (KVM + "    devices: [/dev/x]", "5:5", f"{A}.devices", "it belongs below 'allocate'"),
        (devices("{hostPath: /a, mountPath: /b}", section="mounts"), "7:26", f"{A}.allocate.mounts[0].mountPath", "did you mean 'containerPath'?"),
        (devices("{mountPath: /b}", section="mounts"), "7:12", f"{A}.allocate.mounts[0].mountPath", "did you mean 'containerPath'?"),
        (env("A: {name: x}"), "7:13", f"{ENV}.A.name", "unknown key 'name'; known keys: value, separator, optional"),
        (source("{dev: kvm, name: x}"), "5:20", f"{S}.name", "unknown key 'name'; known keys: directory, glob, dev, static, usb, pci, sysfs, as, optional"),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {}", "3:1", "", "no key of this ConfigMap has a configuration ('version: v1' and 'resources:')"),
        (devices("{name: A, value: x}", section="env"), "7:9", ENV, "should be a mapping, not a list"),
        (devices("A=b", section="annotations"), "7:9", f"{A}.allocate.annotations", "should be a mapping, not a list"),
        # templates without their '$'
        (env("A: {id}"), "7:12", f"{ENV}.A", 'write "${id}"'),
        (env("A: { id }"), "7:12", f"{ENV}.A", 'write "${id}"'),
        (devices("hostPath: {minor}"), "7:21", f"{DEVICES}[0].hostPath", 'write "${minor}"'),
        (KVM + "    id: [{name}]", "5:10", f"{A}.id[0]", 'write "${name}"'),
        (env("A: {value: }"), "7:13", f"{ENV}.A.value", "has no value; set one or remove the key"),
        (env("A: {value}"), "7:13", f"{ENV}.A.value", "has no value; set one or remove the key"),
        (env("A:\n          id:"), "8:11", f"{ENV}.A.id", "has no value; set one or remove the key"),
        # health
        (KVM + "    health: {file: {path: /x, matches: y}, interval: 1s}", "5:14", f"{A}.health.file", "it belongs below 'checks'"),
        (KVM + "    health: {exec: [x], file: {path: /x, matches: y}}", "5:13", f"{A}.health", "needs exactly one of file, exec"),
        (KVM + "    health: {checks: [readble]}", "5:23", f"{A}.health.checks[0]", "did you mean 'readable'?"),
        (KVM + "    health: {checks: [{fil: {path: /x}}]}", "5:24", f"{A}.health.checks[0].fil", "did you mean 'file'?"),
        (KVM + "    health: [{fil: {path: /x}}]", "5:15", f"{A}.health[0].fil", "did you mean 'file'?"),
        (KVM + "    health: {interval: 1s}", "5:5", f"{A}.health", "needs at least one check: readable, writable, file or exec"),
        (KVM + "    health: []", "5:5", f"{A}.health", "needs at least one check: readable, writable, file or exec"),
        (KVM + "    health: {exec: [bin/x, '${path}']}", "5:21", f"{A}.health.exec[0]", "'bin/x' is a relative path; write the absolute one"),
        (KVM + "    preStart: [run: [../x]]", "5:22", f"{A}.preStart[0].run[0]", "'../x' is a relative path; write the absolute one"),
        (KVM + "    health: {exec: ['${nope}']}", "5:21", f"{A}.health.exec[0]", "unknown variable ${nope}"),
        # missing values
        (source("dev:"), "5:9", f"{S}.dev", "has no value; set one or remove the key"),
        (source("directory: {path: }"), "5:21", f"{S}.directory.path", "has no value"),
        (env("A:"), "7:9", f"{ENV}.A", "has no value"),
        (env("A: ~"), "7:9", f"{ENV}.A", "has no value"),
        (KVM + "    id:", "5:5", f"{A}.id", "has no value"),
        (KVM + "    allocate:", "5:5", f"{A}.allocate", "has no value"),
        (KVM + "    id:${name}:", "5:5", f"{A}.id:${{name}}", "has no value; missing space after 'id:'"),
        # YAML 1.1
        (env("A: 0403"), "7:12", f"{ENV}.A", 'reads 0403 as a number; quote it: "0403"'),
        (env("A: off"), "7:12", f"{ENV}.A", 'should be a string: YAML reads off as a boolean; quote it: "off"'),
        (env("A: 1:30"), "7:12", f"{ENV}.A", 'reads 1:30 as a number; quote it: "1:30"'),
        (env("A: 1.10"), "7:12", f"{ENV}.A", 'reads 1.10 as a number; quote it: "1.10"'),
        (env("A: 5"), "7:12", f"{ENV}.A", 'should be a string: YAML reads 5 as a number; quote it: "5"'),
        (env("A: 2020-01-02"), "7:12", f"{ENV}.A", 'should be a string: YAML reads 2020-01-02 as a date; quote it: "2020-01-02"'),
        (env("A: 2020-13-45"), "7:12", "", "'2020-13-45' is not a valid timestamp; quote it"),
        (env("A: 0x" + "f" * 5000), "7:12", "", "quote it"),
        (env("A: 1" + ":59" * 300 + ".5"), "7:12", "", "quote it"),
        (KVM + "    allocate: {devices: !!seq x}", "5:25", "", "'x' is not a valid seq; quote it"),
        (source("static: 010"), "5:17", f"{S}.static", "should be an integer in plain digits, such as 10, not '010'"),
        (source("static: {count: 1:30}"), "5:25", f"{S}.static.count", "plain digits, such as 10, not '1:30'"),
        (KVM + "    replicas: 1_000", "5:15", f"{A}.replicas", "plain digits, such as 10, not '1_000'"),
        (KVM + "    topology: 01", "5:15", f"{A}.topology", "the number of a NUMA node, not '01'"),
        (KVM + "    replicas: '3'", "5:15", f"{A}.replicas", "remove the quotes of '3'"),
        (KVM + "    overlap: yes", "5:14", f"{A}.overlap", "should be 'allow' or 'deny'"),
        # values
        (HEAD.replace("example.com/a", "a") + "    sources: [static: 1]", "3:11", f"{A}.name", "example.com/a"),
        (HEAD.replace("example.com", "mykubernetes.io") + "    sources: [static: 1]", "3:11", f"{A}.name", "reserved"),
        (KVM + "    replicas: 0", "5:15", f"{A}.replicas", "should be at least 1, not 0"),
        (KVM + "    removeMissingAfter: soon", "5:25", f"{A}.removeMissingAfter", "should be never, or a duration with a unit (ms, s, m or h), such as 5m, not 'soon'"),
        (KVM + "    topology: numa", "5:15", f"{A}.topology", "auto, none or the number"),
        (KVM + "    prefer: pack", "5:13", f"{A}.prefer", "did you mean 'packed'?"),
        (devices("{hostPath: /dev/a, permissions: rwx}"), "7:43", f"{DEVICES}[0].permissions", "'rwx' should be one or more"),
        (devices("{hostPath: /dev/a, permissions: ''}"), "7:43", f"{DEVICES}[0].permissions", "r (read), w (write)"),
        (devices("{hostPath: /dev/a, permissions: rr}"), "7:43", f"{DEVICES}[0].permissions", "r (read), w (write)"),
        (devices("{containerPath: /dev/a}"), "7:11", f"{DEVICES}[0]", "needs 'hostPath'"),
        # sources
        (source("kvm"), "5:9", S, "write a path that begins with '/', or the kind of source, such as 'dev: kvm'"),
        (source("{dev: kvm, glob: /x}"), "5:9", S, "needs exactly one of directory, glob, dev, static, usb, pci, sysfs, not glob and dev"),
        (source("{}"), "5:9", S, "needs exactly one of directory, glob, dev, static, usb, pci, sysfs"),
        (source("directory: etc"), "5:20", f"{S}.directory", "not an absolute path"),
        (source("directory: /etc/../x"), "5:20", f"{S}.directory", "'/etc/../x' contains '..'; write the path without it"),
        (source("dev: /dev/kvm"), "5:14", f"{S}.dev", "a dev pattern matches the path below /dev; remove the leading '/dev/'"),
        (source("dev: a("), "5:14", f"{S}.dev", "'a(' is not an RE2 pattern: missing )"),
        (source("dev: '*x'"), "5:14", f"{S}.dev", "this is a regular expression, not a glob, write .*x"),
        (source("dev: a(?!b)"), "5:14", f"{S}.dev", "RE2 has no lookaround, use `exclude` for what must not match"),
        (source("dev: (?P<n>a)(?P<n>b)"), "5:14", f"{S}.dev", "'(?P<n>a)(?P<n>b)' has several groups named 'n'; rename them"),
        (source("dev: " + "a" * 1001), "5:14", f"{S}.dev", "at most 1000 are allowed"),
        (source("dev: {pattern: a, exclude: [b, '[']}"), "5:40", f"{S}.dev.exclude[1]", "unclosed '['"),
        (source("directory: {path: /x, include: 'x+|y'}"), "5:40", f"{S}.directory.include", "a glob, not a regular expression"),
        (source("glob: /" + "[" * 1000), "5:15", f"{S}.glob", "glob of 1001 characters; at most 1000 are allowed"),
        (source("glob: /**" + "/a" * 100), "5:15", f"{S}.glob", "path of 102 parts; at most 100 are allowed"),
        (source("glob: /**/a/**/**/**"), "5:15", f"{S}.glob", "more than 3 '**' in the path"),
        (KVM + "    nodeNames: [a, '" + "[" * 1001 + "']", "5:20", f"{A}.nodeNames[1]", "glob of 1001 characters; at most 1000 are allowed"),
        (KVM + "    nodeNames: []", "5:16", f"{A}.nodeNames", "needs at least one item"),
        (source("directory: {path: /x, types: [fil]}"), "5:39", f"{S}.directory.types[0]", "did you mean 'file'?"),
        (source("dev: x(?P<index>.)"), "5:14", f"{S}.dev", "the group 'index' has the name of a built-in variable; rename it"),
        (source("dev: x(?P<nodeName>.)"), "5:14", f"{S}.dev", "the group 'nodeName' has the name of a built-in variable; rename it"),
        (source("static: [a, a]"), "5:21", f"{S}.static[1]", "duplicate ID 'a'"),
        (source("/x/**/**/**/**"), "5:9", S, "more than 3 '**' in the path"),
        (source("static: {count: 1, ids: [a]}"), "5:17", f"{S}.static", "either count or ids"),
        (source("static: -1"), "5:17", f"{S}.static", "should be at least 0, not -1"),
        (source("static: {ids: [a, b, a]}"), "5:30", f"{S}.static.ids[2]", "duplicate ID 'a'"),
        (source("static: {ids: ['a::b']}"), "5:24", f"{S}.static.ids[0]", "'::', which is reserved"),
        (source("static: {ids: ['']}"), "5:24", f"{S}.static.ids[0]", "a device ID must not be empty"),
        # templates
        (env("A: ${idd}"), "7:12", f"{ENV}.A", "unknown variable ${idd}; did you mean 'id'? (known"),
        (env("A: ab $x"), "7:15", f"{ENV}.A", "write ${x}, or '$$x'"),
        (env("A: 'ab $x'"), "7:16", f"{ENV}.A", "write ${x}, or '$$x'"),
        (env("A: ab\n           c $x"), "7:12", f"{ENV}.A", "write ${x}, or '$$x'"),
        (env("A: 'it''s $x'"), "7:12", f"{ENV}.A", "write ${x}, or '$$x'"),
        (env("A: &a 'it $x'"), "7:12", f"{ENV}.A", "write ${x}, or '$$x'"),
        (env("A: $(X)"), "7:12", f"{ENV}.A", "invalid template; write ${X}, or '$$(' for a literal '$('"),
        (env("A_${id: x"), "7:9", f"{ENV}.A_${{id", "unclosed '${'; write ${id}, or '$$' for a literal '$'"),
        (env("A-B: x"), "7:9", f"{ENV}.A-B", "such as 'A_B'"),
        (env("A: 'a,${id}'"), "7:12", f"{ENV}.A", "the value contains ',', which separates the values of devices; set another `separator`"),
        (env('A: "a\\0b"'), "7:12", f"{ENV}.A", "control character"),
        (env("B: {A: ${id}}"), "7:17", "", 'quote a template: "${…}"'),
        (SLOTS + "    allocate: {env: {A: '${path}'}}", "5:25", f"{ENV}.A", "${path} has no value for some of the sources (tokens have no path)"),
        (SLOTS + "    id: ${realpath}", "5:9", f"{A}.id", "${realpath} has no value for some of the sources (tokens have no path)"),
        (KVM + "    id: ${id}", "5:9", f"{A}.id", "${id} is not available here"),
        (KVM + "    id: ['${name}', '${index}']", "5:21", f"{A}.id[1]", "${index} is not available here"),
        (KVM + "    id: fixed", "5:9", f"{A}.id", "every device would have the same ID; use a variable of the device"),
        # what a container receives
        (devices("dev/x"), "7:11", f"{DEVICES}[0]", "'dev/x' is not an absolute path (beginning with '/')"),
        (devices("/dev/../x"), "7:11", f"{DEVICES}[0]", "'/dev/../x' contains '..'; write the path without it"),
        (devices("{hostPath: /dev/a, containerPath: b}"), "7:45", f"{DEVICES}[0].containerPath", "'b' is not an absolute path (beginning with '/')"),
        (devices("{hostPath: /dev/a, containerPath: /c}", "{hostPath: /dev/b, containerPath: /c}"), "8:11", f"{DEVICES}[1]", "container path /c is set twice (first by allocate.devices[0])"),
        (devices("x", section="cdi"), "7:11", f"{A}.allocate.cdi[0]", "vendor.com/class=device"),
        (devices("vendor.com/class=${id}/x", section="cdi"), "7:11", f"{A}.allocate.cdi[0]", "not a fully qualified CDI name"),
        (KVM + "    allocate: {annotations: {cdi.k8s.io/x: a}}", "5:30", f"{A}.allocate.annotations.cdi.k8s.io/x", "'cdi.k8s.io/x': 'cdi.k8s.io/' annotations control the runtime and are not allowed"),
        (KVM + "    allocate: {annotations: {'a b': a}}", "5:30", f"{A}.allocate.annotations.a b", "not an annotation key"),
        # limits and things to come
        (devices(*["/dev/x"] * 201), "5:5", f"{A}.allocate", "201 entries, more than 200"),
        (devices(*["'/dev/${id}'"] * 17), "5:5", f"{A}.allocate", "17 names and container paths that are made from the device, more than 16"),
        (SLOTS + "    replicas: 15000", "5:5", f"{A}.replicas", "with this resource, the file has 30000 device IDs, more than 20000"),
        (SLOTS + "    replicas: 20001", "5:15", f"{A}.replicas", "should be at most 20000, not 20001"),
        (KVM + "    replicas: 20000\n" + TWO.split("resources:\n")[1].replace("a\n", "c\n", 1), "7:5", "resources[1].sources", "the file has 20001 device IDs"),
        (KVM + "    optional: true", "5:5", f"{A}.optional", "unknown key"),
        (KVM.replace("dev: kvm", "{dev: kvm, optional: true}"), "4:26", f"{A}.sources[0].optional", "only devices with several nodes can lack one; set `group` as well"),
        (TWO.replace("example.com/b", "example.com/a"), "5:11", "resources[1].name", "duplicate resource 'example.com/a' (first defined on line 3)"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_place_and_its_fix(text: str, at: str, path: str, says: str) -> None:
    """Every mistake is an error with file, line, column, path, and what would be right."""
    loaded = loads(text, "f.yaml")
    assert loaded.config is None
    start = f"f.yaml:{at}: error: {path}: " if path else f"f.yaml:{at}: error: "
    found = [str(problem) for problem in loaded.problems]
    assert any(line.startswith(start) and says in line for line in found), found


@pytest.mark.parametrize(
    "text",
    [
        source("dev:"),
        source("kvm"),
        source("directory: etc"),
        source("usb: x"),
        env("A: off"),
        KVM + "    replica: 2",
        SLOTS.replace("2", "-1"),
        env("A: $x"),
        env("A: {id}"),
        devices("/a", "{hostPath: {path}}"),
        devices("{name: A, value: x}", section="env"),
        KVM + "    health: {checks: [readble]}",
        KVM + "    health: {file: {path: /x, matches: y}, interval: 1s}",
        KVM + "    health: {checks: {fil: {path: /x}}}",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: }",
    ],
)
def test_one_mistake_is_one_problem(text: str) -> None:
    """A mistake is said once, without others that follow from it."""
    assert len(problems(text)) == 1, problems(text)


@pytest.mark.parametrize(
    "text",
    [KVM + "    overlap: yes", KVM + "    removeMissingAfter: 5", "version: 1\nresources: []"],
)
def test_quoting_is_advised_only_where_it_helps(text: str) -> None:
    """Where a quoted value would be as wrong, the message does not say to quote it."""
    assert not any("quote it" in line for line in problems(text)), problems(text)


def test_an_item_of_a_shorthand_list_has_its_own_place() -> None:
    """A mistake in a list that is short for a mapping is found at the item."""
    assert problems(source("static: [a, b, a]"))[0].startswith("f.yaml:5:24: error: ")


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
    found = [*shapes.shape_problems(caught.value.errors(), ("resources", 0), tree, set(), set())]
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


def test_what_to_do_is_said_also_of_a_long_text() -> None:
    """Of a long message the middle is left out, not the end."""
    [line] = problems(env("A: 0b" + "1" * 5000))
    assert line.endswith("is not a valid int; quote it")


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


def test_extension_keys_are_only_for_the_top_level() -> None:
    """Below the top level a key that begins with x- is as unknown as any."""
    assert "unknown key 'x-a'" in problems(KVM + "    x-a: 1")[0]


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
    ("text", "name"),
    [
        ("dev: ttyUSB.*", "ttyUSB0"),
        ("dev: 'ttyUSB[0-9]+'", "ttyUSB0"),
        ("dev: 'hidraw[1-9]'", "hidraw1"),
        ("dev: 'tty(USB|ACM)[0-9]+'", "ttyUSB0"),
        (r"dev: 'video\d*'", "video0"),
        ("dev: sda", "sda"),
        ("dev: 'sd[a-z]'", "sda"),
        ("dev: 'nvme[0-9]+n1'", "nvme0n1"),
        ("dev: 'gpiochip[0-9]+'", "gpiochip0"),
        ("dev: dri/renderD.*", "dri/renderD128"),
        ("/dev/video*", "video0"),
        ("/dev/input/**", "input/event0"),
        ("/dev/ttyACM3", "ttyACM3"),
        ("dev: kvm", None),
        ("dev: video", None),
        ("dev: videocard", None),
        ("dev: 'ttyUSB*'", None),
        ("dev: 'sd*'", None),
        ("/dev/serial/by-id/*", None),
        ("/dev/inp*", None),
        ("static: 1", None),
    ],
)
def test_ids_from_enumeration_are_a_warning(text: str, name: str | None) -> None:
    """Of IDs that the kernel counts up one is named that is really found."""
    found = [line for line in problems(source(text)) if "order of discovery" in line]
    assert len(found) == (name is not None)
    assert all(f": warning: {S}: IDs such as '{name}' depend" in line for line in found), found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttyUSB*", "does not match ttyUSB0: a regular expression, not a glob; write ttyUSB.*"),
        ("ttyUSB?", "does not match ttyUSB0: a regular expression, not a glob; write ttyUSB."),
        ("sd*", "does not match sda: a regular expression, not a glob; write sd.*"),
        ("snd/*", "does not match snd/0: a regular expression, not a glob; write snd/.*"),
        ("ttyUSB*|ttyACM*", "does not match ttyUSB0: a regular expression, not a glob; write ttyUSB.*|ttyACM.*"),
        ("(?P<a>x*y*)", "does not match x0y0: a regular expression, not a glob; write (?P<a>x.*y.*)"),
    ],
)  # fmt: skip
def test_a_glob_for_a_pattern_is_a_warning(text: str, says: str) -> None:
    """A pattern that looks like a glob, and does not match what the glob would."""
    assert problems(source(f"dev: '{text}'")) == [f"f.yaml:5:14: warning: {S}.dev: {says}"]


@pytest.mark.parametrize("timeout", ["", ", timeout: 10s"])
def test_steps_that_take_longer_than_kubelet_waits_are_a_warning(timeout: str) -> None:
    steps = ", ".join([f"{{waitFor: /run/a{timeout}}}"] * 4)
    (problem,) = problems(f"{KVM}    preStart: [{steps}]\n")
    assert "warning: resources[0].preStart: the timeouts of the steps add up to 40s" in problem


@pytest.mark.parametrize(
    "text",
    [r"x\d*", "x[ab*]", "x.*", "(x)?", "x[0-9]?", "x[0-9]+p?[0-9]*", r"\Qx*\Ey", "a*" * 500, "xB*[0-9]"],
)  # fmt: skip
def test_a_pattern_that_matches_what_it_should_is_no_glob(text: str) -> None:
    """A star or question mark that a regular expression has is left alone."""
    assert problems(source(f"dev: '{text}'")) == []


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


GIVEN: Final = "every device would get /dev/a0, a node of"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sources: [/dev/a0, /dev/a1]", f"{GIVEN} this resource: use `group`"),
        ("sources: ['/dev/a*']", f"{GIVEN} this resource"),
        ("sources: ['/dev/**']", f"{GIVEN} this resource"),
        ("sources: [dev: 'a[0-9]']", f"{GIVEN} this resource"),
        ("sources: [directory: {path: /dev, types: char, include: a?}]", f"{GIVEN} this resource"),
        ("sources: [dev: '(?P<n>a.)'], group: '${n}'", f"{GIVEN} this resource"),
        ("sources: [static: 2]}\n  - {name: a.b/d, sources: [/dev/a0]", f"{GIVEN} a.b/d: exclude it"),
        ("sources: ['/dev/a0/x*']", f"{GIVEN} this resource"),
        ("sources: [dev: a0/x.]", f"{GIVEN} this resource"),
        ("sources: [directory: {path: /dev/a0, types: char}]", f"{GIVEN} this resource"),
        ("sources: [/dev/a0]", None),
        ("sources: ['/dev/a*'], maxDevices: 1", None),
        ("sources: [/dev/a0, /dev/a1], group: both", None),
        ("sources: ['/dev/a*'], replicas: 2", None),
        ("sources: ['/dev/a*'], overlap: allow", None),
        ("sources: [glob: {paths: '/dev/a*', exclude: a0}]", None),
        ("sources: [dev: {pattern: a., exclude: a0}]", None),
        ("sources: [directory: {path: /dev, types: char, exclude: a0}]", None),
        ("sources: [directory: /dev]", None),
        ("sources: [dev: b.]", None),
        ("sources: ['/dev/*/a0']", None),
        ("sources: [static: 2]}\n  - {name: a.b/d, sources: [dev: a0], overlap: allow", None),
        ("sources: [static: 2], nodeNames: x}\n  - {name: a.b/d, sources: [dev: a0], nodeNames: y", None),
    ],
)  # fmt: skip
def test_a_device_that_each_device_would_get_is_an_error(body: str, says: str | None) -> None:
    body = f"{{name: a.b/c, allocate: {{devices: [/dev/a0]}}, {body}}}"
    found = problems(f"version: v1\nresources:\n  - {body}\n")
    found = [one for one in found if "error" in one]
    assert len(found) == (says is not None), found
    assert (says or "") in "".join(found)


def test_resources_that_meet_in_a_container_are_a_warning() -> None:
    """One constant name with two values in two resources is said, and is no error."""
    text = (
        f"{KVM}    allocate: {{env: {{A: x}}}}\n"
        "  - name: example.com/b\n    sources: [static: 1]\n    allocate: {env: {A: y}}\n"
    )
    loaded = loads(text, "f.yaml")
    assert loaded.config is not None
    [problem] = loaded.problems
    assert str(problem).startswith(
        "f.yaml:8:22: warning: resources[1].allocate.env.A: example.com/a"
    )


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
    text = ASKING.replace("/opt/x", "/var/run/x").replace("/srv/y", "/var/lock/y")
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


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
@example(b"a: !!bool b")
@example(b"a: !!timestamp b")
@example(b"\xed\xa0\x80")
def test_any_bytes_are_loaded_or_refused(tmp_path: Path, content: bytes) -> None:
    """Whatever a file holds, loading it gives a configuration or errors with places."""
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    loaded = load(str(file))
    assert isinstance(loaded, Loaded)
    assert loaded.config is not None or any(p.severity == "error" for p in loaded.problems)


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
    ], found


@pytest.mark.parametrize("content", ["version: v1\nresources: []", "version: [", "version: v2"])
def test_garbage_is_collected_again_after_a_load(content: str) -> None:
    loads(content)
    assert gc.isenabled()
    gc.disable()
    try:
        loads(content)
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()
