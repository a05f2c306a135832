"""What sources find of files and hardware: hardware/*.txt has trees, sources, and the devices of each.

A line ``$ …`` has the sources of a resource, and behind ``|`` its further options; ``+ …`` is a
second resource of the same file. ``? …`` shows the variables of templates too. What is found is below.
`DEVHOST_TEST_WRITE=1 pytest …` writes what is found now.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.dry_run import report
from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model.device import HostDevice
from devhost.model.template import variables
from tests.support.devices import reason_of
from tests.support.hardware import HostTree
from tests.support.root import needs_root

GOLDEN: Final = sorted(Path(__file__).with_name("hardware").iterdir())

pytestmark = needs_root


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_sources_find_what_the_golden_file_of_a_host_shows(golden: Path, tmp_path: Path) -> None:
    text = golden.read_text()
    head, hardware, body = re.split("^==.*\n", text, flags=re.MULTILINE)
    tree = HostTree(tmp_path / "host")
    tree.directory("/dev")
    tree.hardware(hardware)
    shown = "".join(
        _shown(block, tree) for block in re.findall(r"(?:#.*\n)*[$?] .*\n(?:\+ .*\n)*", body)
    )
    seen = text.removesuffix(body) + shown
    assert head
    if os.environ.get("DEVHOST_TEST_WRITE"):
        golden.write_text(seen)
    assert seen == text


def _shown(block: str, tree: HostTree) -> str:
    shown = "".join(f"  {line}\n" for line in _found(block, tree))
    return block + shown.replace(str(tree.root), "$ROOT")


def _found(block: str, tree: HostTree) -> Iterator[str]:
    config = "version: v1\nresources:\n"
    for sign, sources, options in re.findall(r"^([$?+]) (.*?)(?: [|] (.*))?$", block, re.MULTILINE):
        one = sources if sources[0] in "{/" else f"{{{sources}}}"
        name = "b" if sign == "+" else "a"
        config += f"- {{name: example.com/{name}, sources: [{one}], {options}}}\n"
    for found in report(loads(config).require(), HostFiles(str(tree.root)), Policy(), "node"):
        for device in found.snapshot.devices.values():
            reason = reason_of(device)
            unhealthy = f" ({reason})" if reason else ""
            nodes = ", ".join(node.shown or "no node" for node in device.nodes)
            yield f"{device.id}: {nodes}{unhealthy}"
            yield from _variables(device) if "\n?" in f"\n{block}" else ()
        yield from (f"skipped {one.candidate}: {reason_of(one)}" for one in found.snapshot.skipped)
        yield from (f"error: {one}" for one in (found.snapshot.error,) if one)
        yield from (f"warning: {one}" for one in found.warnings if "--allow-device" not in one)


def _variables(device: HostDevice) -> Iterator[str]:
    """Yield those of the first node; of what a role repeats, the path."""
    found = variables(device.nodes[0], device.id, device.nodes)
    roles = tuple(
        f"{name.removesuffix('realpath')}" for name in found if name.endswith(".realpath")
    )
    for name, value in sorted(found.items()):
        if not name.startswith(roles) or name.endswith(".path"):
            yield f"  {name}={value}"


def test_sources_hear_of_the_devices_above_that_they_select_by() -> None:
    text = "sysfs: {subsystem: tty, parent: [{subsystem: usb, driver: cdc}]}"
    (declared,) = (
        loads(f"version: v1\nresources: [{{name: e.com/a, sources: [{{{text}}}]}}]\n")
        .require()
        .resources
    )
    scanner = Scanner(declared, HostFiles(), Policy(), "node", settle_s=0.0)
    assert {name for root in scanner.locations for name in root.subsystems} == {"tty", "usb"}
