"""Attacks by steps and health checks that run nothing: modes, oracles, slow patterns."""

import asyncio
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from devhost.discovery.health import check
from devhost.errors import PreStartError
from devhost.host import preparation
from devhost.loading.loader import loads
from devhost.model.device import Checked, Snapshot
from tests.support.steps import run_step, start_of
from tests.trust.attack import MEM, NAME, NULL, Victim, as_root, config, policy

SECRET = "root:$6$salt$hash:1:0:99999:7:::"


def checked(node: Victim, source: object, *checks: object, allow: str = "") -> Checked:
    """Return the outcome of health checks of the one device of a source."""
    resource = {"sources": [source], "health": [*checks], "allocate": {"devices": []}}
    scanner = node.scanner(resource, *filter(None, [allow]))
    (device,) = node.scan(scanner).devices.values()
    assert scanner.resource.health is not None
    return check(
        scanner.resource.health, device, node.files, scanner.constants, allow=scanner.policy
    )


def reads(path: str, pattern: str) -> dict[str, Any]:
    return {"file": {"path": path, "matches": pattern}}


async def stepped(
    node: Victim, snapshot: Snapshot, step: dict[str, Any], *allow: str, execs: bool = True
) -> None:
    """Run a step for the one device of a snapshot."""
    resource = {"sources": [{"static": 1}], "preStart": [step]}
    (loaded,) = loads(config(resource), policy=policy(execs=True)).require().resources
    (device,) = snapshot.devices.values()
    start = start_of(
        resource=NAME,
        device=device,
        constants={"resource": NAME, "nodeName": "node-1", "index": "0", "count": "1"},
        files=node.files,
        policy=policy(*allow, execs=execs),
        deadline=asyncio.get_running_loop().time() + 60,
    )
    await run_step(0, loaded.pre_start[0], start)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ── the step `mode` ──


@as_root
async def test_a_mode_needs_the_consent_of_commands(node: Victim) -> None:
    """It changes the node for all users of the host."""
    place = node.node("/dev/x", NULL)
    resource = {"sources": ["/dev/x"], "preStart": [{"mode": "0000"}]}
    (problem,) = loads(config(resource), policy=policy("*")).problems
    assert (problem.severity, problem.path) == ("error", "resources[0].preStart[0].mode")
    assert "--allow-exec" in problem.message
    assert [one.severity for one in loads(config(resource)).problems] == ["warning"]
    snapshot = node.scan(node.scanner({"sources": ["/dev/x"]}))
    with pytest.raises(PreStartError, match="--allow-exec"):
        await stepped(node, snapshot, {"mode": "0666"}, execs=False)
    assert mode_of(place) == 0o600
    await stepped(node, snapshot, {"mode": "0666"})
    assert mode_of(place) == 0o666


@as_root
async def test_a_link_to_shadow_does_not_change_its_mode(node: Victim) -> None:
    """A device whose link is bent to a file after the scan: the file keeps its mode."""
    shadow = node.file("/etc/shadow")
    node.node("/dev/real", NULL)
    node.link("/dev/x", "/dev/real")
    snapshot = node.scan(node.scanner({"sources": ["/dev/x"]}))
    node.link("/dev/x", "/etc/shadow")
    with pytest.raises(PreStartError, match="no longer a char device"):
        await stepped(node, snapshot, {"mode": "0666"})
    assert mode_of(shadow) == 0o600


async def test_a_file_is_no_node_whose_mode_is_changed(node: Victim) -> None:
    """Files that a source finds, also by a link, keep their modes."""
    shadow = node.file("/etc/shadow")
    node.link("/in/a", "/etc/shadow")
    snapshot = node.scan(node.scanner({"sources": [{"directory": "/in"}]}))
    with pytest.raises(PreStartError, match="no device node"):
        await stepped(node, snapshot, {"mode": "0666"})
    assert mode_of(shadow) == 0o600


@as_root
@pytest.mark.parametrize(
    ("path", "number", "kind"),
    [
        ("/dev/x", MEM, stat.S_IFCHR),
        ("/dev/x", (8, 0), stat.S_IFBLK),
        ("/opt/x", NULL, stat.S_IFCHR),
    ],
)
async def test_what_may_not_be_handed_out_keeps_its_mode(
    node: Victim, path: str, number: tuple[int, int], kind: int
) -> None:
    """Memory, disks and nodes beside /dev are not opened to all users of the node."""
    place = node.node(path, number, kind)
    resource = {"sources": [{"glob": path}], "allocate": {"devices": []}}
    snapshot = node.scan(node.scanner(resource))
    with pytest.raises(PreStartError, match="needs --allow-"):
        await stepped(node, snapshot, {"mode": "0666"})
    assert mode_of(place) == 0o600


@as_root
@pytest.mark.parametrize("exchange", ["link", "link to a twin", "file", "memory"])
async def test_an_exchange_between_look_and_change_changes_nothing(
    node: Victim, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    """What is opened is looked at again, and a link is not followed then."""
    shadow = node.file("/etc/shadow")
    twin = node.node("/opt/x", NULL)
    place = node.node("/dev/x", NULL)
    snapshot = node.scan(node.scanner({"sources": ["/dev/x"]}))
    change = preparation._change_mode_of

    def exchange_then_change(*arguments: Any) -> None:
        place.unlink()
        if exchange == "link":
            place.symlink_to(shadow)
        elif exchange == "link to a twin":
            place.symlink_to(twin)
        elif exchange == "file":
            os.link(shadow, place)
        else:
            node.node("/dev/x", MEM)
        change(*arguments)

    monkeypatch.setattr(preparation, "_change_mode_of", exchange_then_change)
    with pytest.raises(PreStartError, match="another file"):
        await stepped(node, snapshot, {"mode": "0666"})
    assert [mode_of(one) for one in (shadow, twin, place)] == [0o600] * 3


@pytest.mark.parametrize("mode", ["10666", "u+s", "0o777", "-1", "8", "", "77", "066 6"])
def test_a_mode_is_three_or_four_octal_digits(mode: str) -> None:
    """Nothing else is taken for permission bits."""
    resource = {"sources": [{"static": 1}], "preStart": [{"mode": mode}]}
    assert loads(config(resource), policy=policy()).config is None


# ── the step `waitFor` ──


@pytest.mark.parametrize("path", ["/dev/../etc/x", "${id}", "etc/x", "/a\n"])
async def test_nothing_but_a_plain_path_is_waited_for(node: Victim, path: str) -> None:
    """A path that would lead out, or is none, is refused before it is looked for."""
    resource = {"sources": [{"static": {"ids": ["../x"]}}], "preStart": [{"waitFor": path}]}
    loaded = loads(config(resource), policy=policy())
    if loaded.config is None:
        return
    snapshot = node.scan(node.scanner({"sources": resource["sources"]}))
    with pytest.raises(PreStartError, match="absolute path"):
        await stepped(node, snapshot, {"waitFor": path})


async def test_what_is_waited_for_is_below_the_root(tmp_path: Path) -> None:
    """A link does not lead the look out of the root: what is beside it has not appeared."""
    (tmp_path / "out").touch()
    node = Victim(tmp_path / "root")
    node.link("/in", "../../../../../../../../out")
    node.link("/absolute", str(tmp_path / "out"))
    snapshot = node.scan(node.scanner({"sources": [{"static": 1}]}))
    for path in ("/in", "/absolute"):
        with pytest.raises(PreStartError, match="did not appear"):
            await stepped(node, snapshot, {"waitFor": path, "timeout": "100ms"})


@pytest.mark.parametrize("place", ["/root/there", "/root/absent", "/root/deep/er"])
async def test_what_is_in_a_private_directory_is_not_waited_for(node: Victim, place: str) -> None:
    """A step that ends, or does not, would tell whether a path exists there."""
    node.file("/root/there").parent.chmod(0o700)
    snapshot = node.scan(node.scanner({"sources": [{"static": 1}]}))
    step = {"waitFor": place, "timeout": "100ms"}
    with pytest.raises(PreStartError, match=f"/root: it needs --allow-path '{place}'"):
        await stepped(node, snapshot, step)
    node.file("/root/deep/er")
    node.file("/root/absent")
    await stepped(node, snapshot, step, "/root/*")


# ── health checks ──


@pytest.mark.parametrize(
    ("path", "mode", "above"),
    [
        ("/etc/shadow", 0o600, 0o755),
        ("/etc/shadow", 0o640, 0o755),
        ("/root/.kube/config", 0o644, 0o700),
        ("/root/.kube/config", 0o644, 0o750),
        ("/in/link", 0o644, 0o700),
        ("/in/link", 0o600, 0o755),
    ],
)
@pytest.mark.parametrize("pattern", ["root:.*", "x.*", ""])
def test_a_secret_is_not_matched(
    node: Victim, path: str, mode: int, above: int, pattern: str
) -> None:
    """A file that not everyone can read is no oracle: every pattern has the same outcome."""
    if path == "/in/link":
        secret = node.file("/root/secret", SECRET, mode)
        node.link(path, "../root/secret")
    else:
        secret = node.file(path, SECRET, mode)
    secret.parent.chmod(above)
    outcome = checked(node, {"static": 1}, reads(path, pattern))
    assert outcome.failure is None
    assert "--allow-path" in (outcome.unknown or "")
    assert "root:" not in f"{outcome}"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/1/environ",
        "/proc/1/cmdline",
        "/proc/1/maps",
        "/proc/7/task/7/maps",
        "/proc/self/maps",
        "/proc/net/tcp",
        "/proc/net/unix",
        "/proc/kallsyms",
        "/proc/modules",
        "/proc/iomem",
        "/proc/ioports",
        "/proc/keys",
        "/proc/mtrr",
        "/proc/bus/pci/00/01.0",
        "/sys/bus/pci/devices/0000:00:01.0/config",
    ],
)
def test_what_the_kernel_shows_to_root_alone_is_not_matched(node: Victim, path: str) -> None:
    """Some of /proc has bits for everyone, and other content for root: that is no oracle either."""
    node.link("/proc/self", "7")
    node.link("/proc/net", "self/net")
    node.link("/sys/bus/pci/devices/0000:00:01.0", "../../../devices/pci0000:00/0000:00:01.0")
    secret = (
        *("1/environ", "1/cmdline", "1/maps", "7/maps", "7/task/7/maps"),
        *("7/net/tcp", "7/net/unix", "7/net/netlink", "bus/pci/00/01.0"),
        *("kallsyms", "modules", "iomem", "ioports", "keys", "mtrr"),
    )
    for place in (
        *(f"/proc/{name}" for name in secret),
        "/sys/devices/pci0000:00/0000:00:01.0/config",
    ):
        node.file(place, SECRET, 0o444)
    outcome = checked(node, {"static": 1}, reads(path, "root:*"))
    assert outcome.failure is None
    assert "--allow-path" in (outcome.unknown or "")
    opened = checked(node, {"static": 1}, reads(path, "root:*"), allow="*")
    assert (opened.failure, opened.unknown) == (None, None)


@pytest.mark.parametrize("path", ["/proc/net/dev", "/proc/self/mounts", "/proc/net/bonding/bond0"])
def test_what_the_kernel_shows_to_everyone_is_matched(node: Victim, path: str) -> None:
    node.link("/proc/self", "7")
    node.link("/proc/net", "self/net")
    for name in ("net/dev", "mounts", "net/bonding/bond0"):
        node.file(f"/proc/7/{name}", "well", 0o444)
    outcome = checked(node, {"static": 1}, reads(path, "well"))
    assert (outcome.failure, outcome.unknown) == (None, None)


def test_a_content_is_not_told(node: Victim) -> None:
    """What does not match is not shown to who reads the failure."""
    node.file("/etc/public", SECRET, 0o644)
    outcome = checked(node, {"static": 1}, reads("/etc/public", "x"))
    assert "does not match" in (outcome.failure or "")
    assert "salt" not in f"{outcome}"


@pytest.mark.parametrize("path", ["/dev/../etc/x", "/in/${id}/x", "${id}", "/a\n"])
def test_nothing_but_a_plain_path_is_read(node: Victim, path: str) -> None:
    """A path that would lead out, or is none, is refused before it is opened."""
    node.file("/etc/x", SECRET, 0o644)
    source = {"static": {"ids": ["../etc"]}}
    resource = {"sources": [source], "health": [reads(path, "*")]}
    if loads(config(resource), policy=policy()).config is None:
        return
    outcome = checked(node, source, reads(path, "root:*"))
    assert outcome.failure is not None


@as_root
def test_a_device_or_pipe_is_not_read_as_a_file(node: Victim) -> None:
    """To open a device may have consequences, and a pipe may block without end."""
    node.node("/dev/x", NULL).chmod(0o666)
    os.mkfifo(node.at("/dev/pipe"), 0o666)
    node.at("/dev/pipe").chmod(0o666)
    for path in ("/dev/x", "/dev/pipe"):
        outcome = checked(node, {"static": 1}, reads(path, "*"))
        assert "not a regular file" in (outcome.failure or "")


def test_to_be_readable_tells_nothing_of_a_content(node: Victim) -> None:
    """The check opens what the source has found, through a link too, and reads nothing."""
    node.file("/etc/shadow", SECRET)
    node.link("/in/a", "/etc/shadow")
    before = (node.root / "etc/shadow").stat()
    outcome = checked(node, {"directory": "/in"}, "readable", "writable")
    assert "salt" not in f"{outcome}"
    after = (node.root / "etc/shadow").stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a+)+$", "(a|aa)+b", "(.*)*x", "((a{0,30}){0,30})b", "(?:a?){900}b"]
)
def test_a_pattern_does_not_stop_the_process(node: Victim, pattern: str) -> None:
    """Patterns take linear time; what is too large is refused."""
    for name in ("a" * 200, "a" * 201):
        node.file(f"/dev/{name}", mode=0o644)
    resource = {"sources": [{"dev": {"pattern": pattern, "types": "file"}}]}
    began = time.process_time()
    if loads(config(resource), policy=policy()).config is not None:
        node.attack(resource)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("glob", ["*" * 900 + "b", "/in/" + "*a" * 400 + "b", "/in/" + "?*" * 400])
def test_a_glob_does_not_stop_the_process(node: Victim, glob: str) -> None:
    """Nor do globs: of sources, of what they exclude, of contents, of nodes' names."""
    node.file("/etc/long", "a" * 60_000, 0o644)
    for name in ("a" * 200, "a" * 201):
        node.file(f"/in/{name}", mode=0o644)
    resource = {
        "sources": [{"glob": {"paths": f"/{glob.lstrip('/')}", "exclude": [glob]}}],
        "nodeNames": [glob],
    }
    began = time.process_time()
    loaded = loads(config(resource), policy=policy())
    if loaded.config is not None:
        loaded.config.resources[0].applies_to("a" * 253)
        checked(node, {"static": 1}, reads("/etc/long", glob))
        node.attack(resource)
    assert time.process_time() - began < 5
