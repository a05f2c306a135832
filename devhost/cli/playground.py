"""``devhost try`` in a terminal: a prompt to play a cluster, below what kubelet sees."""

import asyncio
import contextlib
import itertools
import os
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from devhost.cli.playground_view import View
from devhost.cli.prompt import Prompt
from devhost.cli.terminal import Terminal
from devhost.discovery.command import Ended
from devhost.observe import logs
from devhost.standin.kubelet import AdmissionError, Answer
from devhost.standin.trial import Trial

_FRAME_S: Final = 0.05  # between two frames, when a lot happens
_LOOKED_S: Final = 1.0  # what changes without an event is seen by then
_HELP: Final = """\
allocate RESOURCE [N]  as a pod that requests N devices, or one
free POD | all         the pod ends
restart                kubelet restarts, and devhost registers again
edit                   the configuration, in $VISUAL or $EDITOR
reload                 read the configuration; after a change it is read anyway
quit                   as Ctrl-D and Ctrl-C; Ctrl-Z suspends
Commands can be shortened, and RESOURCE to a part of its name; Tab completes.
PgUp, PgDn: more devices. Ctrl-B, Ctrl-F: earlier and later answers."""


class CommandError(Exception):
    """A command cannot be understood or done; the text says why."""


class Playground:
    """A trial, and the person who plays with it.

    Args:
        trial: The host and its kubelet.
        file: The configuration file, if there is one.
        addresses: What is served where.
        take_logs: Whether the log would be in the way on the terminal.
    """

    def __init__(
        self, trial: Trial, file: str | None, addresses: Sequence[str], *, take_logs: bool
    ) -> None:
        self._trial, self._file, self._take_logs = trial, file, take_logs
        self._commands: Mapping[str, Callable[[list[str]], Awaitable[None]]] = {
            "allocate": self._allocate,
            "free": self._free,
            "restart": self._restart,
            "edit": self._edit,
            "reload": self._reload,
            "help": self._help,
            "quit": self._quit,
        }
        self._numbers = itertools.count(1)
        self._entered: asyncio.Queue[str | None] = asyncio.Queue()  # None: quit
        self._changed = asyncio.Event()
        self._terminal = Terminal(self._keys, self._changed.set)
        self._prompt = Prompt(self._completions)
        title = "What kubelet sees" + (f" of {file}" if file else "")
        self._view = View(trial, title, addresses, self._prompt)

    async def run(self) -> None:
        """Play until the person quits, or until cancelled."""
        loop = asyncio.get_running_loop()

        def log(line: str) -> None:
            loop.call_soon_threadsafe(self._say, line, "yellow")

        with logs.shown_by(log if self._take_logs else None), self._terminal.taken():
            async with self._trial.running(self._changed.set), asyncio.TaskGroup() as tasks:
                drawing = tasks.create_task(self._draw_always(), name="draw")
                self._say("allocate RESOURCE, or help", "dim")
                while (line := await self._entered.get()) is not None:
                    await self._execute(line)
                drawing.cancel()

    async def _draw_always(self) -> None:
        while True:
            self._changed.clear()
            self._terminal.draw(*self._view.frame(*self._terminal.size))
            await asyncio.sleep(_FRAME_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOKED_S):
                    await self._changed.wait()

    def _say(self, text: str, style: str = "") -> None:
        self._view.say(text, style)
        self._changed.set()

    def _keys(self, keys: Sequence[str] | None) -> None:
        if keys is None:
            self._entered.put_nowait(None)
            return
        page = self._terminal.size[1] // 2
        for key in keys:
            match key:
                case "\x04" if not self._prompt.text:
                    self._entered.put_nowait(None)
                case "\x1b[5~" | "\x1b[6~":
                    self._view.scroll_devices(page if key == "\x1b[6~" else -page)
                case "\x02" | "\x06":
                    self._view.scroll_answers(page if key == "\x02" else -page)
                case "\x0c":
                    self._terminal.redraw()
                case _:
                    if line := self._prompt.key(key):
                        self._entered.put_nowait(line)
        self._changed.set()

    def _completions(self, before: str) -> Iterable[str]:
        command, *arguments = before.split(" ")
        if not arguments:
            return self._commands
        if len(arguments) == 1 and command:
            if "allocate".startswith(command):
                return self._view.names()
            if "free".startswith(command):
                return (*self._trial.kubelet.held(), "all")
        return ()

    # ── commands ──

    async def _execute(self, line: str) -> None:
        self._say(f"> {line}", "bold")
        try:
            word, *arguments = shlex.split(line)
            await self._commands[_chosen("command", word, self._commands, str.startswith)](
                arguments
            )
        except (AdmissionError, CommandError, ValueError) as error:
            self._say(str(error), "red")

    async def _allocate(self, arguments: list[str]) -> None:
        part, count = (*arguments, "1")[:2] if len(arguments) in (1, 2) else ("", "")
        if not count.isdecimal():
            raise CommandError("usage: allocate RESOURCE [N]")
        resource = _chosen("resource", part, self._view.names(), str.__contains__)
        pod = f"pod-{next(self._numbers)}"
        answer = (await self._trial.kubelet.admit(pod, {"app": {resource: int(count)}}))["app"]
        ids = ", ".join(answer["deviceIds"].get(resource, ())) or "no devices"
        lines = list(received(answer))
        self._say(f"{pod} has {ids}; its container receives{'' if lines else ' nothing'}", "green")
        for text in lines:
            self._say(f"  {text}")

    async def _free(self, arguments: list[str]) -> None:
        pods = list(self._trial.kubelet.held())
        wanted = pods if arguments == ["all"] else arguments
        if not wanted or not set(wanted) <= set(pods):
            raise CommandError(f"usage: free POD | all; pods: {', '.join(pods) or 'none'}")
        for pod in wanted:
            await self._trial.kubelet.free(pod)
        self._say(f"{', '.join(wanted)} ended", "green")

    async def _restart(self, _arguments: list[str]) -> None:
        await self._trial.kubelet.restart()
        self._say("kubelet has restarted: it knows its pods, and awaits registrations", "green")

    async def _edit(self, _arguments: list[str]) -> None:
        if self._file is None:
            raise CommandError("there is no configuration file")
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        with self._terminal.lent():
            try:
                process = await asyncio.create_subprocess_exec(*shlex.split(editor), self._file)
            except OSError as error:
                raise CommandError(f"cannot run {editor}: {error.strerror} (set EDITOR)") from None
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                process.terminate()
                raise
        if status:
            raise CommandError(f"{editor} {Ended(status).description()}")
        await self._reload([])

    async def _reload(self, _arguments: list[str]) -> None:
        if self._trial.host.source is None:
            raise CommandError("there is no configuration file")
        self._trial.host.source.reload_soon()
        self._say(f"{self._file} is read again", "green")

    async def _help(self, _arguments: list[str]) -> None:
        for line in _HELP.splitlines():
            self._say(line)

    async def _quit(self, _arguments: list[str]) -> None:
        self._entered.put_nowait(None)


def received(answer: Answer) -> Iterator[str]:
    """Say what a container receives, a line for each thing."""
    for name, value in answer["envs"].items():
        yield f"env {name}={value}"
    for device in answer["devices"]:
        yield f"device {device['hostPath']} as {device['containerPath']} ({device['permissions']})"
    for mount in answer["mounts"]:
        mode = "read-only" if mount["readOnly"] else "read-write"
        yield f"mount {mount['hostPath']} at {mount['containerPath']} ({mode})"
    for key, value in answer["annotations"].items():
        yield f"annotation {key}={value}"
    for name in answer["cdiDevices"]:
        yield f"cdi {name}"


def _chosen(what: str, part: str, names: Iterable[str], fits: Callable[[str, str], bool]) -> str:
    """Return the one name that is meant.

    Raises:
        CommandError: It is none or not clear.
    """
    known = list(names)
    found = [part] if part in known else [name for name in known if fits(name, part)]
    if len(found) != 1:
        raise CommandError(
            f"which {what} is {part}? {', '.join(found or known) or 'none is known'}"
        )
    return found[0]
