"""What flags allow, and what is done with nodes that none allows."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.discovery.health import check
from devhost.errors import PreStartError
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import FileKind
from tests.support.kernel import shows
from tests.trust.attack import Victim, as_root, config
from tests.trust.test_steps_and_checks import stepped

WATCHDOG: Final = (10, 130)
WIDE: Final = ["/dev/*", "/dev/**", "*/*", "/*", "/dev*", "/d*", "/**", "/dev/[!s]*", "/dev/?*"]
NARROW: Final = ["/dev/sd[b-z]", "/dev/sd*", "/dev/disk/*", "/dev/ttyUSB*", "/srv/*", "/dev/???"]


def refused(policy: Policy, path: str, kind: FileKind, number: tuple[int, int]) -> bool:
    return HostPaths(HostFiles(), policy).refused_node(path, kind, number) is not None


# ── outside of /dev ──


@as_root
@pytest.mark.parametrize("number", [(1, 3), (1, 1), (8, 0), (10, 232)])
@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_files_that_are_allowed_are_no_nodes_that_are_allowed(
    node: Victim, number: tuple[int, int], kind: int
) -> None:
    """A stick that is plugged in may have nodes of any number on its filesystem."""
    node.node("/media/usb/x", number, kind)
    node.file("/media/usb/file", mode=0o644)
    policy = Policy(("/media/usb/*", "/media/usb/x", "*"), enforced=True, allow_devices=("block",))
    assert refused(policy, "/media/usb/x", FileKind.CHAR, number)
    assert refused(policy, "/media/usb/x", FileKind.BLOCK, number)
    by_class = Policy(enforced=True, allow_devices=("null", "block", "kvm", "memory"))
    assert refused(by_class, "/media/usb/x", FileKind.CHAR, number)
    assert refused(by_class, "/media/usb/x", FileKind.BLOCK, number)


def test_a_glob_for_nodes_opens_them_outside_of_dev_but_not_memory() -> None:
    policy = Policy(enforced=True, allow_devices=("/opt/dev/*",))
    assert not refused(policy, "/opt/dev/null", FileKind.CHAR, (1, 3))
    assert not refused(policy, "/opt/dev/disk", FileKind.BLOCK, (8, 0))
    assert refused(policy, "/opt/dev/mem", FileKind.CHAR, (1, 1))
    assert refused(policy, "/opt/null", FileKind.CHAR, (1, 3))


@pytest.mark.parametrize("place", ["/dev/shm", "/dev/mqueue", "/dev/hugepages"])
def test_other_filesystems_below_dev_are_outside(place: str) -> None:
    """More than the kernel and udev make files there."""
    assert refused(Policy(enforced=True), f"{place}/null", FileKind.CHAR, (1, 3))


# ── memory ──


@pytest.mark.parametrize("number", [(1, 1), (1, 2), (1, 4)])
def test_memory_is_only_given_by_its_own_path(number: tuple[int, int]) -> None:
    """By its resolved path, without wildcards; a class does not do, nor a flag for mounts."""
    for word in (
        *WIDE,
        *NARROW,
        "/dev/me[m]",
        "/dev/m?m",
        "memory",
        "mem",
        "/dev/mem/",
        "/dev//mem",
    ):
        policy = Policy(("/dev/mem",), enforced=True, allow_devices=(word,))
        assert refused(policy, "/dev/mem", FileKind.CHAR, number), word
    assert not refused(Policy(allow_devices=("/dev/mem",)), "/dev/mem", FileKind.CHAR, number)
    odd = Policy(allow_devices=("/dev/me[m]",))
    assert refused(odd, "/dev/me[m]", FileKind.CHAR, number)


# ── wildcards ──


@pytest.mark.parametrize("glob", WIDE)
def test_a_wildcard_over_all_of_dev_is_a_warning(glob: str) -> None:
    (warning,) = Policy(allow_devices=(glob,)).warnings
    assert warning.startswith(f"--allow-device '{glob}' covers all of /dev")


@pytest.mark.parametrize("glob", NARROW)
def test_a_narrow_one_is_none(glob: str) -> None:
    assert Policy(("*",), allow_devices=(glob, "tpm")).warnings == ()


def devhost(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if "DEVHOST_" not in key}
    return subprocess.run(
        [sys.executable, "-m", "devhost", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )


def test_the_warning_is_shown(tmp_path: Path) -> None:
    """Where files are validated, and at the start of the daemon."""
    file = tmp_path / "config.yaml"
    file.write_text(config({"sources": [{"static": 1}]}))
    done = devhost("validate", file, "--allow-device", "/dev/*", "-o", "json")
    assert "warning: --allow-device '/dev/*' covers all of /dev" in done.stderr
    assert json.loads(done.stdout)["valid"]
    done = devhost("run", file, "--allow-device", "/dev/*", "--plugin-dir", tmp_path / "gone")
    assert "--allow-device '/dev/*' covers all of /dev" in done.stderr


@pytest.mark.parametrize("text", ["*", "tty*", "dev/ttyS0", "s?", "./x", "10c4:ea6", "0x10c4:ea60"])
def test_what_is_neither_a_class_nor_usb_numbers_nor_a_path_is_a_usage_error(
    tmp_path: Path, text: str
) -> None:
    done = devhost("validate", tmp_path, "--allow-device", text)
    assert done.returncode == 2
    assert text in done.stderr


# ── checks and steps ──


@pytest.fixture
def watchdog(node: Victim) -> Victim:
    """A node with a watchdog, which has another name."""
    node.node("/dev/thing", WATCHDOG)
    shows(node.root, WATCHDOG, "misc", "watchdog")
    return node


@as_root
@pytest.mark.parametrize("how", ["readable", "writable"])
@pytest.mark.parametrize("enforced", [True, False])
def test_a_check_does_not_open_what_is_not_allowed(
    watchdog: Victim, monkeypatch: pytest.MonkeyPatch, how: str, enforced: bool
) -> None:
    """To open a watchdog and to close it resets the machine: the outcome is unknown."""
    opened: list[int] = []
    real = os.open

    def watched(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if not flags & os.O_PATH:
            opened.append(flags)
        return real(path, flags, *more, **options)

    resource = {"sources": ["/dev/thing"], "health": [how], "allocate": {"devices": []}}
    scanner = watchdog.scanner(resource)
    (device,) = watchdog.scan(scanner).devices.values()
    checks = scanner.resource.health
    assert checks is not None
    assert device.healthy
    with monkeypatch.context() as patch:
        patch.setattr("devhost.discovery.health.os.open", watched)
        found = check(
            checks, device, watchdog.files, scanner.constants, allow=Policy(enforced=enforced)
        )
    assert not opened
    assert found.failure is None
    assert "needs --allow-device watchdog" in str(found.unknown)
    allow = Policy(enforced=True, allow_devices=("watchdog",))
    with monkeypatch.context() as patch:
        patch.setattr("devhost.discovery.health.os.open", watched)
        patch.setattr("devhost.discovery.health._touch", lambda *_: opened.append(0))
        check(checks, device, watchdog.files, scanner.constants, allow=allow)
    assert opened


@as_root
def test_what_is_judged_is_what_is_opened(
    watchdog: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that takes the place of another after it was judged is not opened."""
    watchdog.node("/dev/fine", (1, 3))
    resource = {"sources": ["/dev/fine"], "health": ["readable"]}
    scanner = watchdog.scanner(resource)
    (device,) = watchdog.scan(scanner).devices.values()
    numbers: list[int] = []

    def exchanged(path: str, _mode: int) -> None:
        watchdog.node("/dev/fine", WATCHDOG)
        numbers.append(os.stat(path).st_rdev)

    monkeypatch.setattr("devhost.discovery.health._touch", exchanged)
    assert scanner.resource.health is not None
    check(
        scanner.resource.health,
        device,
        watchdog.files,
        scanner.constants,
        allow=Policy(enforced=True),
    )
    assert numbers == [os.makedev(1, 3)]


@as_root
async def test_a_step_does_not_open_it_to_the_users_of_the_node(watchdog: Victim) -> None:
    resource = {"sources": ["/dev/thing"], "allocate": {"devices": []}}
    snapshot = watchdog.scan(watchdog.scanner(resource))
    with pytest.raises(PreStartError, match="of class watchdog"):
        await stepped(watchdog, snapshot, {"mode": "0666"})
    assert stat.S_IMODE(watchdog.at("/dev/thing").stat().st_mode) == 0o600


# ── plan and try ──


@as_root
@pytest.mark.parametrize("command", ["plan", "try"])
def test_a_dry_run_judges_as_run_does(watchdog: Victim, tmp_path: Path, command: str) -> None:
    """What run refuses is unhealthy with the reason, until it is shown as if allowed."""
    file = tmp_path / "config.yaml"
    resource = {"sources": ["/dev/thing"], "health": ["readable"]}
    file.write_text(config(resource))
    more = ["-o", "json"] if command == "plan" else ["--once"]

    def devices(*flags: str) -> tuple[str, str | None]:
        done = devhost(command, file, "--root", watchdog.root, *more, *flags)
        ((device,),) = (one["devices"] for one in json.loads(done.stdout)["resources"])
        return device["health"], device["reason"]

    refusal = "/dev/thing is of class watchdog: it needs --allow-device watchdog"
    assert devices() == ("Unhealthy", refusal)
    assert devices("--as-if-allowed") == ("Healthy", None)
    scanner = watchdog.scanner(resource)
    assert [one.reason for one in watchdog.scan(scanner).devices.values()] == [refusal]


@as_root
def test_what_a_configuration_asks_for_is_a_warning_in_a_dry_run(node: Victim) -> None:
    """A laptop can show what a cluster would do."""
    text = config({"sources": [{"static": 1}], "allocate": {"mounts": ["/opt/x"]}})
    loaded = loads(text, policy=Policy())
    assert [one.severity for one in loaded.problems] == ["warning"]
