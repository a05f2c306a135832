"""Attacks by health checks: what they open, and what they tell of files."""

import os
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.health_check import check_device
from devhost.model.device import Checked
from tests.security.attack import NULL, Victim, config, policy
from tests.support.hardware import HostTree
from tests.support.root import needs_root

SECRET = "root:$6$salt$hash:1:0:99999:7:::"
WATCHDOG = (10, 130)


def checked(node: Victim, source: object, *checks: object, allow: Policy | None = None) -> Checked:
    resource = {"sources": [source], "health": [*checks], "allocate": {"devices": []}}
    scanner = node.scanner(resource)
    (device,) = node.scan(scanner).devices.values()
    assert scanner.resource.health is not None
    return check_device(
        scanner.resource.health, device, node.files, scanner.constants, allow=allow or policy()
    )


def reads(path: str, pattern: str) -> dict[str, Any]:
    return {"file": {"path": path, "matches": pattern}}


@pytest.fixture
def watchdog(node: Victim) -> Victim:
    """A node with a watchdog, which has another name."""
    node.node("/dev/thing", WATCHDOG)
    HostTree(node.root).hardware("misc watchdog 10:130")
    return node


@needs_root
@pytest.mark.parametrize(("how", "enforced"), [("readable", True), ("writable", False)])
def test_check_does_not_open_a_node_that_is_refused(
    watchdog: Victim, monkeypatch: pytest.MonkeyPatch, how: str, *, enforced: bool
) -> None:
    """Opening and closing a watchdog resets the machine: the outcome is unknown."""
    opened: list[str] = []
    monkeypatch.setattr("devhost.devices.health_check._touch", lambda *_: opened.append(how))
    outcome = checked(watchdog, "/dev/thing", how, allow=Policy(enforced=enforced))
    assert not opened
    assert outcome.failure is None
    assert "needs --allow-device watchdog" in str(outcome.unknown)
    allowed = Policy(enforced=True, allow_devices=("watchdog",))
    checked(watchdog, "/dev/thing", how, allow=allowed)
    assert opened == [how]


@needs_root
def test_check_opens_the_judged_node(watchdog: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that takes the place of another after it was judged is not opened."""
    watchdog.node("/dev/fine", NULL)
    numbers: list[int] = []

    def exchanged(path: str, _mode: int) -> None:
        watchdog.node("/dev/fine", WATCHDOG)
        numbers.append(os.stat(path).st_rdev)

    monkeypatch.setattr("devhost.devices.health_check._touch", exchanged)
    checked(watchdog, "/dev/fine", "readable", allow=Policy(enforced=True))
    assert numbers == [os.makedev(*NULL)]


@pytest.mark.parametrize(
    ("path", "mode", "above"),
    [("/etc/shadow", 0o640, 0o755), ("/root/.kube/config", 0o644, 0o754),
     ("/in/link", 0o644, 0o700), ("/in/link", 0o600, 0o755)],
)  # fmt: skip
def test_check_of_a_private_file_is_unknown(node: Victim, path: str, mode: int, above: int) -> None:
    """Every pattern has the same outcome, so that a check is no oracle."""
    target = "/root/secret" if path == "/in/link" else path
    secret = node.file(target, SECRET, mode)
    if target != path:
        node.link(path, "../root/secret")
    secret.parent.chmod(above)
    for pattern in ("root:*", "x.*"):
        outcome = checked(node, {"static": 1}, reads(path, pattern))
        assert outcome.failure is None
        assert "--allow-path" in (outcome.unknown or "")
        assert "root:" not in f"{outcome}"


@pytest.mark.parametrize(
    ("path", "place"),
    [(f"/proc/{name}", f"/proc/{name}") for name in (
        "1/environ", "1/cmdline", "1/maps", "7/task/7/maps", "kallsyms", "modules", "iomem",
        "ioports", "keys", "mtrr", "bus/pci/00/01.0")]
    + [("/proc/self/maps", "/proc/7/maps"), ("/proc/net/tcp", "/proc/7/net/tcp"),
       ("/sys/bus/pci/devices/1/config", "/sys/devices/pci0000:00/1/config")],
)  # fmt: skip
def test_check_of_a_kernel_secret_is_unknown(node: Victim, path: str, place: str) -> None:
    """Some of /proc has bits for everyone, and other content for root: that is no oracle either."""
    node.link("/proc/self", "7")
    node.link("/proc/net", "self/net")
    node.link("/sys/bus/pci/devices/1", "../../../devices/pci0000:00/1")
    node.file(place, SECRET, 0o444)
    outcome = checked(node, {"static": 1}, reads(path, "root:*"))
    assert outcome.failure is None
    assert "--allow-path" in (outcome.unknown or "")
    opened = checked(node, {"static": 1}, reads(path, "root:*"), allow=policy("*"))
    assert (opened.failure, opened.unknown) == (None, None)


@pytest.mark.parametrize("path", ["/proc/net/dev", "/proc/self/mounts", "/proc/net/bonding/bond0"])
def test_check_of_what_the_kernel_tells_everybody_is_made(node: Victim, path: str) -> None:
    node.link("/proc/self", "7")
    node.link("/proc/net", "self/net")
    for name in ("net/dev", "mounts", "net/bonding/bond0"):
        node.file(f"/proc/7/{name}", "well", 0o444)
    outcome = checked(node, {"static": 1}, reads(path, "well"))
    assert (outcome.failure, outcome.unknown) == (None, None)


def test_check_of_a_path_with_dots_from_an_id_fails(node: Victim) -> None:
    node.file("/etc/x", SECRET, 0o644)
    node.directory("/in")
    for path in ("/in/${id}/x", "${id}"):
        outcome = checked(node, {"static": {"ids": ["../etc"]}}, reads(path, "root:*"))
        assert outcome.failure is not None


@pytest.mark.parametrize("glob", ["*" * 900 + "b", "/in/" + "?*" * 400])
def test_glob_takes_linear_time(node: Victim, glob: str) -> None:
    """A glob may stand in sources, their exclusions, contents and names of nodes."""
    node.file("/etc/long", "a" * 60_000, 0o644)
    for name in ("a" * 200, "a" * 201):
        node.file(f"/in/{name}", mode=0o644)
    source = {"glob": {"paths": f"/{glob.lstrip('/')}", "exclude": [glob]}}
    resource = {"sources": [source], "nodeNames": [glob]}
    loaded = loads(config(resource), policy=policy())
    if loaded.config is not None:
        loaded.config.resources[0].applies_to("a" * 253)
        checked(node, {"static": 1}, reads("/etc/long", glob))
        node.attack(resource)
