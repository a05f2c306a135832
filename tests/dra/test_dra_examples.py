"""Every example with `backend: dra`, on a host with its devices: published, and given to claims."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import yaml
from _pytest.mark import ParameterSet

from devhost.hostfs.files import HostFiles
from devhost.library.plugin import TRUSTED
from devhost.model.resource_state import State
from tests.docs import pages
from tests.dra.world import World
from tests.support import cdiverify, dra_build
from tests.support.examples import ALL_EXAMPLES
from tests.support.hardware import HostTree
from tests.support.root import needs_root

TESTS: Final = Path(__file__).parents[1]
_VERSION: Final = re.compile("^version: v1$", re.MULTILINE)
_TREE: Final = re.compile(r"^== host\.tree\n(.*?)^==", re.MULTILINE | re.DOTALL)
pytestmark = [needs_root, pytest.mark.program("cdiverify"), pytest.mark.program("dra")]


def examples() -> Iterator[ParameterSet]:
    """Yield configurations with the hardware of their hosts, if they have any."""
    for file in ALL_EXAMPLES:
        if file.parent.name == "hardware":
            tree: str | None = (TESTS / f"unit/trees/{file.stem}.tree").read_text()
        else:
            match = _TREE.search((TESTS / f"library/golden/{file.stem}.txt").read_text())
            tree = match and match[1]
        yield pytest.param(file.read_text(), tree, id=file.stem)
    for page in pages.PAGES:
        for number, block in enumerate(pages.blocks(page)):
            is_valid = "…" not in block.text and not (block.title or "").startswith("bad")
            is_whole = _VERSION.search(block.text) and "\nresources:" in block.text
            if block.language == "yaml" and is_valid and is_whole:
                yield pytest.param(block.text, pages.host(page), id=f"{page}-{number}")


def with_dra(text: str) -> str:
    """Return a configuration that changes nothing on this machine, offered by DRA."""
    config = yaml.safe_load(text)
    for resource in config["resources"]:
        resource.pop("health", None)
        for step in resource.get("preStart", ()):
            step["run"] = ["true"]
    return yaml.safe_dump({**config, "backend": "dra"}, sort_keys=False)


@pytest.mark.parametrize(("text", "tree"), [*examples()])
async def test_example_serves_claims(
    world: World, tmp_path: Path, text: str, tree: str | None
) -> None:
    host = HostTree(tmp_path / "host")
    host.hardware(tree or "")
    world.files, world.policy = HostFiles(str(host.root)), replace(TRUSTED, dra=True)
    if versions := dra_build.versions():
        binary = dra_build.build(versions[-1])
        world.api.admit = lambda content: dra_build.admitted(binary, content)
    async with world.serve(with_dra(text)):
        names, granted = list[str](), set[str]()
        for served in world.host.resources:
            await world.until(served.name, State.REGISTERED)
            assert not served.publication.status.warnings
        for number, content in enumerate(world.slices()):
            device = content["spec"]["devices"][0]
            share = {"shareID": "s"} if "capacity" in device else {}
            resource = content["spec"]["pool"]["name"].partition("/")[2]
            granted.add(resource)
            claim = world.claim(f"u{number}", resource, device["name"], **share)
            answer = await world.kubelet.prepare(claim, f"u{number}")
            assert not answer.error
            brought = {name for device in answer.devices for name in device.cdi_device_ids}
            # Those of vendors are in specs of the host.
            names += sorted(name for name in brought if name.startswith("dra.devhost/"))
            assert brought or "node: none" in text
        assert granted == {
            served.name
            for served in world.host.resources
            if any(device.healthy for device in served.devices.offered.present_devices)
        }
        injected = cdiverify.inject(world.cdi, names)
        assert not injected["errors"]
        assert not injected["unresolved"]
