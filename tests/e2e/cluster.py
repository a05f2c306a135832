"""A real cluster of one node, and what the tests do with it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.deploy.build import Image
from tests.deploy.machine import ROOT, Unavailable
from tests.e2e import configuration, images
from tests.e2e.node import HIERARCHIES, cgroups
from tests.e2e.programs import Programs

PATIENCE: Final = 120.0  # seconds that only a failure takes
NODE: Final = configuration.NODE

Json = dict[str, Any]


class CommandError(Exception):
    """A command failed; the text is what it printed."""


class Cluster:
    """The node and its processes.

    Attributes:
        logs: A file for each program.
    """

    def __init__(self, programs: Programs, logs: Path) -> None:
        self.logs = logs
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._directory = Path()  # as the processes of the node see it
        self._init = 0  # the first process of the namespaces
        path = f"{programs.kubernetes}:{programs.containerd}:/usr/sbin:/usr/bin:/sbin:/bin"
        self._environment = {"PATH": path, "LANG": "C.UTF-8"}

    # ── its life ──

    def start(self, image: Image) -> None:
        """Start everything, with an image of devhost; pods can run when this returns.

        Raises:
            Unavailable: This machine does not permit namespaces or cgroups.
        """
        self._start_node()
        configuration.write(self._directory, self.host("/"))
        home = {"HOME": str(self._directory), "KUBECONFIG": f"{self._directory}/kubeconfig"}
        self._environment |= home
        for name in ("containerd", "etcd", "kube-apiserver"):
            self.run(name)
        self.until("the API server is ready", lambda: self.kubectl("get", "--raw=/readyz"))
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.run(name)
        self._import(image)
        self.run("kubelet")
        self.until("pods can be created", self._ready)

    def stop(self) -> None:
        """End all processes of the node, and remove what was made for it."""
        if node := self._processes.get("node"):
            assert node.stdin
            assert node.stdout
            node.stdin.close()
            node.stdout.close()
        for process in self._processes.values():
            process.wait(PATIENCE)

    def run(self, name: str) -> None:
        """Start a program that does not run."""
        command = configuration.commands(self._directory)[name]
        self._spawn(name, [*self._inside("--pid"), *command])

    def restart(self, name: str) -> None:
        """End a program by SIGKILL, and start it again."""
        process = self._processes[name]
        os.kill(_child(process.pid), 9)
        process.wait(PATIENCE)
        self.run(name)

    def _start_node(self) -> None:
        command = [sys.executable, "-m", "tests.e2e.node", str(self._programs.debian)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        node = self._spawn("node", command, **pipes)
        assert node.stdout
        line = node.stdout.readline().decode().strip()
        if not line:
            last = (self.logs / "node.log").read_text().strip().splitlines()[-1:]
            raise Unavailable(f"no namespaces for a node: {''.join(last)}")
        self._directory = Path(line)
        self._init = _child(_child(node.pid))

    def _spawn(self, name: str, command: list[str], **pipes: int) -> "subprocess.Popen[bytes]":
        with (self.logs / f"{name}.log").open("ab") as log:
            files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(
                command,
                start_new_session=True,  # an interrupt from the terminal is for pytest
                cwd=ROOT,
                env=self._environment,
                **files | pipes,
            )
        self._processes[name] = process
        return process

    def _import(self, image: Image) -> None:
        archive = self.host(f"{self._directory}/image.tar")
        self.until("containerd is ready", lambda: self.ctr("version"))
        images.devhost(image, archive)
        self.ctr("images", "import", f"{self._directory}/image.tar")
        images.busybox(self._programs.busybox, archive)
        self.ctr("images", "import", f"{self._directory}/image.tar")
        archive.unlink()

    def _ready(self) -> bool:
        if not self.items("serviceaccounts", "--field-selector=metadata.name=default"):
            return False
        node = self.get("node", NODE)
        return is_ready(node) and not node["spec"].get("taints")

    # ── what the tests do ──

    def host(self, path: str) -> Path:
        """Return where this process sees a path of the node."""
        return Path(f"/proc/{self._init}/root{path}")

    def command(self, *command: str, stdin: str = "") -> str:
        """Run a command with the node's mounts and network, and return what it prints.

        Raises:
            CommandError: It failed.
        """
        completed = subprocess.run(
            [*self._inside(), *command],
            check=False,
            capture_output=True,
            text=True,
            input=stdin,
            env=self._environment,
            timeout=PATIENCE,
        )
        if completed.returncode != 0:
            raise CommandError(f"{' '.join(command)}\n{completed.stdout}{completed.stderr}")
        return completed.stdout

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self.command("kubectl", *arguments, stdin=stdin)

    def ctr(self, *arguments: str) -> str:
        """Run containerd's command line in the namespace of the kubelet's containers."""
        address = f"--address={configuration.CONTAINERD}"
        return self.command("ctr", address, "--namespace=k8s.io", *arguments)

    def cgroup(self, controller: str) -> Path:
        """Return the cgroup of all pods."""
        return next(
            cgroup
            for cgroup in cgroups(self._directory.name)
            if cgroup.parent.name in (controller, HIERARCHIES.name)
        )

    def get(self, *arguments: str) -> Json:
        """Return an object of the API, as ``kubectl get`` names it."""
        content: Json = json.loads(self.kubectl("get", "--output=json", *arguments))
        return content

    def items(self, *arguments: str) -> list[Json]:
        """Return the objects of a list."""
        objects: list[Json] = self.get(*arguments)["items"]
        return objects

    def apply(self, *documents: Json) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": documents}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(listed))

    def until(self, text: str, condition: Callable[[], object]) -> None:
        """Wait until a condition is true.

        Args:
            text: The condition, for the message.
            condition: Evaluates it. A failed command or a missing object counts as false.

        Raises:
            AssertionError: It does not become true.
        """
        deadline = time.monotonic() + PATIENCE
        last: object = None
        while time.monotonic() < deadline:
            try:
                if last := condition():
                    return
            except (CommandError, LookupError, ValueError) as error:
                last = error
            time.sleep(0.2)
        raise AssertionError(f"not in {PATIENCE:.0f} s: {text}; last: {last!r}")

    def explain(self) -> str:
        """Return pods, events and the log of devhost, for the report of a failed test."""
        ours = "--selector=app.kubernetes.io/name=devhost"
        pods = self.items("pods", "--all-namespaces", ours)
        namespaces = {pod["metadata"]["namespace"] for pod in pods}
        commands = [
            ("get", "pods", "--all-namespaces"),
            ("events", "--all-namespaces"),
            *(("logs", ours, f"--namespace={name}", "--tail=100") for name in namespaces),
        ]
        texts = []
        for command in commands:
            try:
                texts.append(self.kubectl(*command)[-8000:])
            except CommandError as error:
                texts.append(str(error))
        return "\n".join(texts)

    def _inside(self, *options: str) -> Sequence[str]:
        return ["nsenter", f"--target={self._init}", "--mount", "--net", *options, "--"]


def is_ready(entry: Json) -> bool:
    """Whether a node or a pod has the condition ``Ready``."""
    conditions = entry["status"].get("conditions", ())
    return ("Ready", "True") in [
        (condition["type"], condition["status"]) for condition in conditions
    ]


def names_of(objects: Iterable[Json]) -> list[str]:
    return [entry["metadata"]["name"] for entry in objects]


def without_deleted(objects: Iterable[Json]) -> list[Json]:
    """Return the objects that are not being deleted."""
    return [entry for entry in objects if "deletionTimestamp" not in entry["metadata"]]


def _child(pid: int) -> int:
    """Return the only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
