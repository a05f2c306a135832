"""The attacker of these tests: edits the configuration, and makes files and links below a root.

An attack goes the way that a configuration goes with `devhost run`: the loader, which only warns
of a missing right, a scan, the CDI spec, and Allocate for each device, also for unhealthy ones.
"""

import asyncio
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from devhost.allocation import cdi
from devhost.allocation.cdi import cdi_devices
from devhost.allocation.policy import Policy
from devhost.backends.deviceplugin import servicer
from devhost.config.loader import loads
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError, PreStartError
from devhost.hostfs.files import HostFiles
from devhost.model import config as model
from devhost.model.allocation import Allocation
from devhost.model.config import Step
from devhost.model.device import HostDevice, Snapshot
from devhost.node.pre_start import StepRun, run_steps
from devhost.watch.threads import BlockingCalls
from tests.support.devices import skip_reasons
from tests.support.offered import offered
from tests.support.scanning import nobody, selected, snapshot_of

NAME: Final = "example.com/loot"
NULL, MEM, KMEM, PORT, FULL = (1, 3), (1, 1), (1, 2), (1, 4), (1, 7)
DISK: Final = (8, 0)
CONSTANTS: Final = {"resource": NAME, "nodeName": "node-1", "index": "0", "count": "1"}

Resource = Mapping[str, Any]


def config(*resources: Resource, **top: object) -> str:
    named = [{"name": NAME, **resource} for resource in resources]
    return yaml.safe_dump({"version": "v1", **top, "resources": named})


def policy(*allow: str, execs: bool = False) -> Policy:
    """Return a policy that has been given the same globs for mounts and for nodes."""
    domain = ("example.com/*",)
    return Policy(
        allow, allow_exec=execs, enforced=True, allow_devices=allow, allow_annotations=domain
    )


@dataclass(frozen=True)
class Outcome:
    """The result of an attack.

    Attributes:
        refusals: Why something was refused: by the loader, or device by device by Allocate.
        answers: What containers would receive, by device.
        spec: The CDI spec; empty if there is none.
        snapshot: What was found.
    """

    refusals: tuple[str, ...] = ()
    answers: Mapping[str, Allocation] | None = None
    spec: str = ""
    snapshot: Snapshot = field(default_factory=Snapshot)

    def nothing(self, *why: str) -> None:
        """Assert that no container receives anything, for these reasons."""
        assert self.refusals or self.snapshot.skipped, "it was neither refused nor left out"
        assert not self.answers
        assert not self.spec
        text = "\n".join((*self.refusals, *skip_reasons(self.snapshot.skipped).values()))
        for part in why:
            assert part in text

    def nowhere(self, *texts: str) -> None:
        """Assert that no answer and no CDI spec has any of these texts."""
        received = f"{self.answers}\n{self.spec}"
        for text in texts:
            assert text not in received

    @property
    def only(self) -> Allocation:
        assert not self.refusals, self.refusals
        assert self.answers
        (answer,) = self.answers.values()
        return answer


class Victim:
    """A node whose files are below a root."""

    def __init__(self, root: Path | None) -> None:
        self.root = root or Path("/")
        self.files = HostFiles(str(self.root))
        self.now = 0.0

    def at(self, path: str) -> Path:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def file(self, path: str, text: str = "secret", mode: int = 0o600) -> Path:
        place = self.at(path)
        place.write_text(text)
        place.chmod(mode)
        return place

    def directory(self, path: str) -> Path:
        place = self.at(path)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def link(self, path: str, target: str) -> Path:
        place = self.at(path)
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        return place

    def hard_link(self, path: str, target: str) -> Path:
        place = self.at(path)
        place.hardlink_to(self.at(target))
        return place

    def node(self, path: str, number: tuple[int, int] = NULL, kind: int = stat.S_IFCHR) -> Path:
        place = self.at(path)
        place.unlink(missing_ok=True)
        os.mknod(place, 0o600 | kind, os.makedev(*number))
        return place

    def scanner(self, resource: Resource, *allow: str, execs: bool = False) -> Scanner:
        """Load a configuration of one resource, or raise `ConfigError`."""
        (loaded,) = loads(config(resource)).require().resources
        return self.scanner_of(loaded, *allow, execs=execs)

    def scanner_of(self, resource: model.Resource, *allow: str, execs: bool = False) -> Scanner:
        """Compile a resource as `run` does."""
        allowed = policy(*allow, execs=execs)
        files = replace(self.files, shown=allowed.shown_paths)
        return Scanner(resource, files, allowed, "node-1", settle_s=0)

    def found(self, source: object, *allow: str) -> Mapping[str, HostDevice]:
        """Return the devices of a source that gives containers nothing."""
        resource = {"sources": [source], "allocate": {"devices": []}}
        return self.scan(self.scanner(resource, *allow)).devices

    def scan(self, scanner: Scanner, previous: Snapshot | None = None) -> Snapshot:
        self.now += 1
        return snapshot_of(scanner, selected(scanner), previous or Snapshot(), nobody, self.now)

    def attack(self, resource: Resource, *allow: str) -> Outcome:
        """Load, scan, write as CDI spec and allocate a configuration's resource."""
        loaded = loads(config(resource))
        if loaded.config is None:
            return Outcome(tuple(str(p) for p in loaded.problems if p.severity == "error"))
        return self.outcome(self.scanner(resource, *allow))

    def outcome(self, scanner: Scanner) -> Outcome:
        snapshot = self.scan(scanner)
        return Outcome(*allocated(scanner, snapshot), written(scanner, snapshot), snapshot)

    def by_both_ways(self, resource: Resource, *allow: str) -> list[Outcome]:
        """Attack by the kubelet's answer, and by a CDI spec."""
        return [self.attack({**resource, "inject": way}, *allow) for way in ("deviceSpecs", "cdi")]

    def gives_no_node(self, resource: Resource) -> None:
        """Attack by both ways: no container gets a node, a mount or a CDI device."""
        for outcome in self.by_both_ways(resource):
            assert not any(answer.specs for answer in (outcome.answers or {}).values())
            assert not outcome.spec

    def refuses(self, resource: Resource, *allow: str, why: str = "") -> None:
        """Attack by both ways: no container receives anything, for this reason."""
        for outcome in self.by_both_ways(resource, *allow):
            outcome.nothing(why)


def allocated(
    scanner: Scanner, snapshot: Snapshot
) -> tuple[tuple[str, ...], dict[str, Allocation]]:
    """Allocate each device alone; return why it was refused, and what was handed out."""
    refusals, answers = [], {}
    for device_id in snapshot.devices:
        try:
            answers[device_id] = scanner.allocate(snapshot, offered(device_id))
        except AllocationError as error:
            refusals.append(str(error))
        else:
            servicer.container_response(answers[device_id]).SerializeToString()
    return tuple(refusals), answers


def written(scanner: Scanner, snapshot: Snapshot) -> str:
    """Return the CDI spec that would be written; it is JSON, of one document."""
    if scanner.resource.inject != "cdi":
        return ""
    content = cdi.serialize(NAME, cdi_devices(scanner, snapshot))
    if content is None:
        return ""
    assert yaml.safe_load(content) == json.loads(content)
    return content.decode()


def edits(spec: str) -> Sequence[Mapping[str, Any]]:
    return [device["containerEdits"] for device in json.loads(spec)["devices"]]


def asks(entry: object, section: str = "devices", **options: object) -> dict[str, Any]:
    """Return a resource of one token that asks for something on the host."""
    return {"sources": [{"static": 1}], "allocate": {section: [entry]}, **options}


async def stepped(
    node: Victim, device: HostDevice, step: dict[str, Any], *allow: str, execs: bool = True
) -> None:
    """Run a step for a device, or raise `PreStartError`."""
    resource = {"sources": ["/dev/*"], "preStart": [step]}
    (loaded,) = loads(config(resource), policy=policy("*", execs=True)).require().resources
    await run_step(loaded.pre_start[0], device, node.files, policy(*allow, execs=execs))


async def run_step(step: Step, device: HostDevice, files: HostFiles, allowed: Policy) -> None:
    """Run a step of the loader's for a device, or raise `PreStartError`."""
    deadline = asyncio.get_running_loop().time() + 60
    calls = BlockingCalls("preStart")
    start = StepRun(device, CONSTANTS, files, allowed, calls, deadline)
    if (why := await run_steps([(0, step)], start)) is not None:
        raise PreStartError(why)
