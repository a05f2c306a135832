r"""The devices of a resource from one scan to the next: scans/*.txt has hosts that change.

A case begins with ``== what it shows`` and the options of a resource. A line ``$ …`` changes the host, its
steps between `` ; ``, and scans it; below it are the devices, those that must leave the list with
``!``, and what is skipped. The steps: ``file`` (``PATH[=TEXT]``, with ``\n`` and ``\t``), ``char`` and ``block`` (``PATH[=NUMBER]``), ``rm``, ``link``,
``hardlink`` and ``mv`` of paths; ``tree NAME [OLD~NEW…]``, which plugs in what trees/NAME.tree has and is
not there, with other words, ``spec NAME PATH``, a CDI spec as specs/NAME.yaml, ``plug LINE`` and ``unplug NAME…``; ``after SECONDS``; ``hold SECONDS``; ``set OPTIONS``, in place of
those of the same name; ``fail SOURCE`` and ``mend``; ``claim NODE``, which another resource offers from then on;
``allow GLOB``, the flag; ``pod ID…``, which scans and shows what a container gets and its first start would do, and nothing else; ``events``, those of the kernel that count.
`DEVHOST_TEST_WRITE=1 pytest …` writes what is found now.
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import yaml

from devhost.allocation.policy import Policy
from devhost.allocation.steps import planned_steps
from devhost.devices.scan import for_new_spec
from devhost.errors import AllocationError, PreStartError
from devhost.model.device import HostDevice
from tests.support.devices import reason_of, remaining_nodes
from tests.support.hardware import HostTree
from tests.support.offered import offered
from tests.support.scanning import Scans, selected

HERE: Final = Path(__file__).parent
GOLDEN: Final = sorted((HERE / "scans").iterdir())


class Host(Scans):
    """A host that changes, and a resource."""

    def __init__(self, root: Path, options: str) -> None:
        self._tree, self._options = HostTree(root), yaml.safe_load(options)
        self._tree.directory("/dev")
        self._failed, self._claimed = set[int](), set[str]()
        super().__init__(self._tree.root, options)

    def step(self, step: str) -> Iterator[str]:  # noqa: C901, PLR0912 (a branch for each kind)
        """Take a step; yield what it shows."""
        tree, (verb, _, rest) = self._tree, step.partition(" ")
        words = shlex.split(rest)
        match verb:
            case "file":
                for path, _, text in (word.partition("=") for word in words):
                    tree.file(path, text.replace(r"\n", "\n").replace(r"\t", "\t"))
            case "char" | "block":
                for path, _, number in (word.partition("=") for word in words):
                    major, _, minor = (number or "3").rpartition(":")
                    (tree.block if verb == "block" else tree.char)(
                        path, int(major or 1), int(minor)
                    )
            case "rm":
                for path in words:
                    tree.remove(path)
            case "link":
                tree.link(*words)
            case "hardlink":
                tree.at(words[1]).hardlink_to(tree.at(words[0]))
            case "mv":
                tree.at(words[0]).rename(tree.at(words[1]))
            case "tree":
                text = (HERE / f"trees/{words[0]}.tree").read_text()
                for old, new in (word.split("~") for word in words[1:]):
                    text = text.replace(old, new)
                tree.hardware(text)
            case "spec":
                tree.file(words[1], (HERE / f"specs/{words[0]}.yaml").read_text())
            case "plug":
                tree.hardware(rest.replace(r"\n", "\n"))
            case "unplug":
                for name in words:
                    tree.unplug(name)
            case "after":
                self.now += float(words[0])
            case "hold":
                self.settle_s = float(words[0])
                self.configure(yaml.safe_dump(self._options))
            case "set":
                former, self._options = self.scanner.resource, self._options | yaml.safe_load(rest)
                self.configure(yaml.safe_dump(self._options))
                self.last = for_new_spec(self.last, former, self.scanner.resource)
            case "fail":
                self._failed.add(int(rest))
            case "mend":
                self._failed.clear()
            case "claim":
                self._claimed.add(rest)
            case "allow":
                self.policy = Policy((rest,), enforced=True)
                self.configure(yaml.safe_dump(self._options))
            case "events":
                heard = {name for root in self.scanner.locations for name in root.subsystems}
                yield f"events: {' '.join(sorted(heard))}"
            case "pod":
                yield from self._given(words)
            case _:
                raise ValueError(verb)

    def shown(self) -> Iterator[str]:
        """Scan, and yield what is found."""
        selection = selected(self.scanner)
        if self._failed:
            nodes = tuple(node for node in selection.nodes if node.source not in self._failed)
            failed = dict.fromkeys(self._failed, "Input/output error")
            selection = replace(selection, nodes=nodes, failed_sources=failed)
        first = dict.fromkeys(self._claimed, "e.com/first")
        snapshot = self.scan(claimed=first.get, selection=selection)
        for device in snapshot.devices.values():
            yield f"{'! ' if device.id in self.replaced else ''}{_shown(device)}"
        yield from (f"skipped {entry.candidate}: {reason_of(entry)}" for entry in snapshot.skipped)
        yield from (f"error: {error}" for error in (snapshot.error,) if error)
        yield from (f"note: {note}" for note in snapshot.notes)
        if snapshot.again_at is not None:
            yield f"again in {round(snapshot.again_at - self.now, 3):g} s"

    def _given(self, ids: list[str]) -> Iterator[str]:
        self.scan()
        try:
            answer = self.scanner.allocate(self.last, offered(*ids))
            devices = [self.last.devices[step] for step in ids if step in self.last.devices]
            names = {"resource": "e.com/a", "nodeName": "node"}
            steps = planned_steps(
                self.scanner.resource, devices, names, self.scanner.files.to_local
            )
        except (AllocationError, PreStartError) as error:
            yield f"refused: {error}"
            return
        yield f"pod: {' '.join(answer.device_ids)}"
        yield from (f"env {name}={value}" for name, value in answer.envs.items())
        yield from (f"annotation {key}={value}" for key, value in answer.annotations.items())
        yield from (f"cdi {name}" for name in answer.cdi_devices)
        for node in answer.devices:
            yield f"{node.host_path} as {node.container_path} {node.permissions}"
        for mount in answer.mounts:
            mode = "ro" if mount.read_only else "rw"
            yield f"mount {mount.host_path} as {mount.container_path} {mode}"
        for step in steps:
            often = f"every {step['every']}, in {step['timeout']:g} s"
            yield f"step of {step['device']}: {step['step']} {step['value']} ({often})"


def _shown(device: HostDevice) -> str:
    nodes = " ".join(node.shown or "token" for node in device.nodes)
    remaining = " ".join(sorted(remaining_nodes(device)))
    left = f", left: {remaining}" if remaining else ""
    numa = f", numa {' '.join(map(str, device.numa_nodes))}" if device.numa_nodes else ""
    reason = f" ({reason_of(device)}{left})" if reason_of(device) else ""
    return f"{device.id}: {nodes}{numa}{reason}"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_scans_find_what_the_golden_file_shows(golden: Path, tmp_path: Path) -> None:
    text = golden.read_text()
    cases = re.findall(r"^== .*\n(?:(?!== ).*\n)*", text, re.MULTILINE)
    seen = "".join(_seen(case, tmp_path / str(number)) for number, case in enumerate(cases))
    if os.environ.get("DEVHOST_TEST_WRITE"):
        golden.write_text(seen)
    assert seen == text


def _seen(case: str, root: Path) -> str:
    head, *steps = re.split(r"^\$ ", case, flags=re.MULTILINE)
    host = Host(root, head.partition("\n")[2])
    for line in (step.partition("\n")[0] for step in steps):
        shown = [seen for step in filter(None, line.split(" ; ")) for seen in host.step(step)]
        if " pod " not in f" {line}":
            shown += host.shown()
        head += f"$ {line}\n" + "".join(f"  {result}\n" for result in shown)
    return head.replace(str(host.root), "$ROOT")
