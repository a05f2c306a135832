"""``devhost test``: what it accepts, and that it fails where a configuration does something else."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from devhost.errors import ConfigError
from devhost.testing import can_make_nodes, case_file

CONFIG: Final = r"""
version: v1
resources:
  - name: example.com/licence
    sources:
      - directory: {path: /etc/licences, include: '*.lic'}
    allocate:
      env: {LICENCES: "${name}"}
      mounts: ["${path}"]
  - name: example.com/serial
    sources:
      - usb: {device: 0403:6001, node: tty}
    id: ${usb.serial}
"""
HEAD: Final = """
version: v1
config: config.yaml
allow: {paths: [/etc/licences/*]}
tests:
"""
LICENCES: Final = """
  - name: licences
    host:
      files: {/etc/licences/a.lic: "", /etc/licences/README: ""}
    steps:
"""
STICK: Final = """
  - name: a stick
    host:
      hardware: &stick |
        pci 0000:00:14.0 8086:06ed class=0c0330
          usb usb1 1d6b:0002 class=090001 bus=1 dev=1
            usb 1-2 0403:6001 bus=1 dev=5 serial=AH06W0EQ
              if 1-2:1.0 ffffff ftdi_sio
                tty ttyUSB0 188:0
    steps:
"""


def devhost_test(directory: Path, *arguments: str, config: str = CONFIG) -> tuple[int, str, str]:
    """Run the command in a directory with the configuration; return status, stdout and stderr."""
    (directory / "config.yaml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "devhost", "test", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def run(directory: Path, text: str, *arguments: str) -> tuple[int, str, str]:
    """Do so with a file of tests."""
    (directory / "cases.yaml").write_text(HEAD + text)
    return devhost_test(directory, "cases.yaml", *arguments)


def test_files_come_and_go_and_are_allocated(tmp_path: Path) -> None:
    """As in the host: a device that is gone stays in the list as unhealthy."""
    text = (
        LICENCES
        + """
      - expect:
          example.com/licence: {devices: [a.lic], skipped: {/etc/licences/README: not included}}
          example.com/serial: 0
      - add: {files: {/etc/licences/b.lic: "", /etc/licences/c: ""}}
      - expect: {example.com/licence: 2}
      - allocate: {example.com/licence: [b.lic]}
        pod: one
        receives:
          env: {LICENCES: b.lic}
          mounts: [/etc/licences/b.lic]
          devices: []
      - allocate: {example.com/licence: 2}
        fails: "Requested: 2, Available: 1"
      - free: one
      - restartKubelet: true
      - allocate: {example.com/licence: 2}
      - remove: [/etc/licences/b.lic]
      - expect:
          example.com/licence:
            {devices: {a.lic: Healthy, b.lic: Unhealthy}, reasons: {b.lic: not found}}
"""
    )
    assert run(tmp_path, text) == (0, "ok    licences\n", "1 passed, 0 failed\n")


@pytest.mark.skipif(not can_make_nodes(), reason="creating device nodes needs root")
def test_the_example_of_the_page(tmp_path: Path) -> None:
    """With its output, also when an expectation is wrong."""
    page = (Path(__file__).parents[2] / "docs" / "cases.md").read_text()
    config, cases = re.findall(r"^```yaml\n# \w+\.yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    passes, fails = re.findall(
        r"^\$ devhost test cases.yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    for text, status, shown in (
        (cases, 0, passes),
        (cases.replace("example.com/licence: 2\n", "example.com/licence: 3\n"), 1, fails),
    ):
        (tmp_path / "cases.yaml").write_text(f"# cases.yaml\n{text}")
        found, out, err = devhost_test(tmp_path, "cases.yaml", config=config)
        assert (found, out + err) == (status, shown)


@pytest.mark.skipif(not can_make_nodes(), reason="creating device nodes needs root")
def test_hardware_is_unplugged_and_plugged_in(tmp_path: Path) -> None:
    text = (
        STICK
        + """
      - expect: {example.com/serial: {devices: [AH06W0EQ], paths: {AH06W0EQ: [/dev/ttyUSB0]}}}
      - unplug: [1-2]
      - expect: {example.com/serial: {devices: {AH06W0EQ: Unhealthy}}}
      - add: {hardware: *stick}
      - expect: {example.com/serial: 1}
      - allocate: {example.com/serial: 1}
        receives: {devices: [/dev/ttyUSB0]}
"""
    )
    assert run(tmp_path, text) == (0, "ok    a stick\n", "1 passed, 0 failed\n")


FAILING: Final = [
    ("expect: {example.com/licence: 2}", "example.com/licence: capacity: expected 2, found 1"),
    (
        "expect: {example.com/licence: {devices: []}}",
        "example.com/licence: devices: expected {}, found {'a.lic': 'Healthy'}",
    ),
    (
        "expect: {example.com/licence: {skipped: {/etc/licences/README: not a}}}",
        "example.com/licence: /etc/licences/README: expected 'not a', found 'not included'",
    ),
    (
        "expect: {example.com/licence: {paths: {b: []}}}",
        "example.com/licence: paths of b: expected [], found None",
    ),
    ("expect: {example.com/other: 0}", "example.com/other: not in the configuration"),
    (
        "{allocate: {example.com/licence: 1}, receives: {env: {}}}",
        "env: expected {}, found {'LICENCES': 'a.lic'}",
    ),
    (
        "{allocate: {example.com/licence: 1}, receives: {mounts: []}}",
        "mounts: expected [], found [{'hostPath': '/etc/licences/a.lic'",
    ),
    ("{allocate: {example.com/licence: 1}, fails: x}", "not rejected; expected: x"),
    ("allocate: {example.com/licence: 2}", "rejected: Allocate failed due to requested number"),
    ("free: pod-1", "there is no pod pod-1"),
    ("unplug: [1-2]", "no device '1-2' in sysfs"),
    ("remove: [/etc/licences/x]", "/etc/licences/x: No such file or directory"),
]


def test_what_is_not_as_expected_fails(tmp_path: Path) -> None:
    """Each step is a test, so that one process runs them all."""
    host = LICENCES.split("\n", 2)[2]
    text = "".join(f"  - name: {step!r}\n{host}      - {step}\n" for step, _ in FAILING)
    status, out, err = run(tmp_path, text)
    assert (status, err) == (1, f"0 passed, {len(FAILING)} failed\n")
    failed = out.split("FAIL  ")[1:]
    for number, ((step, failure), shown) in enumerate(zip(FAILING, failed, strict=True)):
        assert f"cases.yaml:{number * 5 + 10}: {failure}" in shown, step


def test_the_values_of_the_chart(tmp_path: Path) -> None:
    """With what they allow, and one of their profiles."""
    body = "".join(f"      {line}\n" for line in CONFIG.splitlines())
    values = f"""allow: {{paths: [/etc/licences/*]}}
config: {{resources: []}}
profiles:
  - name: edge
    config:{body}"""
    step = (
        "      - {allocate: {example.com/licence: 1}, receives: {mounts: [/etc/licences/a.lic]}}\n"
    )
    head = HEAD.replace("allow: {paths: [/etc/licences/*]}", "profile: edge")
    (tmp_path / "cases.yaml").write_text(head + LICENCES + step)
    found = devhost_test(tmp_path, "cases.yaml", config=values)
    assert found == (0, "ok    licences\n", "1 passed, 0 failed\n")


def test_a_change_that_does_nothing_is_waited_for(tmp_path: Path) -> None:
    """Else the step before would meet the expectation."""
    text = f"{LICENCES}      - add: {{files: {{/etc/licences/b.lic: ''}}}}\n"
    status, out, _ = run(tmp_path, text + "      - expect: {example.com/licence: 1}\n")
    assert (status, out.splitlines()[0]) == (1, "FAIL  licences")


def test_tests_are_chosen_by_name(tmp_path: Path) -> None:
    text = LICENCES + "      - expect: {example.com/licence: 1}\n" + STICK + "      - free: x\n"
    assert run(tmp_path, text, "-k", "lic")[:2] == (0, "ok    licences\n")
    status, _, err = run(tmp_path, text, "-k", "none")
    assert status == 1
    assert "no test has a name that contains 'none'" in err


def test_an_invalid_configuration_is_an_error_of_it(tmp_path: Path) -> None:
    """Once, not for each test, and with what `run` would refuse."""
    (tmp_path / "cases.yaml").write_text(
        HEAD.replace("allow: {paths: [/etc/licences/*]}", "") + LICENCES + "      - free: x\n"
    )
    status, out, err = devhost_test(tmp_path, "cases.yaml")
    assert (status, out) == (1, "")
    assert err.count("config.yaml:9:") == 1
    assert "--allow-path" in err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: v1", "1:1: error: needs 'config'"),
        ("version: v1\nconfig: x\ntests: []", "3:8: error: tests: needs at least one item"),
        ("version: v1\nconfg: x", "2:1: error: confg: unknown key 'confg'; did you mean 'config'?"),
        ("a: [", ""),
        ("[]", "1:1: error: should be a mapping"),
    ],
)
def test_the_file_has_errors(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        case_file.load(str(path))
    assert f"{path}:{problem}" in str(raised.value)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("{}", "should have exactly one of add, remove, unplug, expect, allocate, free"),
        ("{free: a, remove: [b]}", "exactly one of"),
        ("{free: a, pod: b}", "'pod', 'receives' and 'fails' belong to 'allocate'"),
        ("{allocate: {a/b: 1}, fails: x, receives: {}}", "exclude each other"),
        ("{expect: {}}", "'expect' needs a resource"),
        ("{allocate: {a/b: 0}}", "allocate.a/b: should be at least 1, not 0"),
        ("{expect: {a/b: {device: 1}}}", "unknown key 'device'; did you mean 'devices'?"),
        ("{expect: {a/b: {devices: {x: Sick}}}}", "should be 'Healthy' or 'Unhealthy'"),
        ("{add: {nodes: {/dev/x: c12}}}", "should be the type and the number of a node"),
        ("{allocate: {a/b: 1}, receives: {mounts: [{hostPath: x}]}}", "needs 'containerPath'"),
    ],
)
def test_a_step_has_errors(tmp_path: Path, step: str, problem: str) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(f"version: v1\nconfig: x\ntests: [{{name: a, steps: [{step}]}}]")
    with pytest.raises(ConfigError, match=r"cases\.yaml:3:") as raised:
        case_file.load(str(path))
    (found,) = raised.value.problems
    assert problem in str(found)
    assert found.path.startswith("tests[0].steps[0]")


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("{files: {/srv/../../x: a}}", "must not contain '..'"),
        ("{files: {srv: a}}", "must be absolute"),
        ("{directories: [/srv], files: {/srv: a}}", "/srv: Is a directory"),
        ("{links: {/srv: " + "a" * 5000 + "}}", "/srv: File name too long"),
        ("{hardware: bogus}", "should be SUBSYSTEM NAME"),
    ],
)
def test_a_host_that_cannot_be_has_its_line(tmp_path: Path, host: str, message: str) -> None:
    step = "{example.com/serial: 0}"
    text = f"  - name: a\n    host: {host}\n    steps:\n      - expect: {step}\n"
    status, output, _ = run(tmp_path, text)
    assert status == 1
    assert "FAIL  a\n      cases.yaml:7: " in output
    assert message in output
