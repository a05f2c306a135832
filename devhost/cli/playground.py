"""``devhost try`` in a terminal: a prompt to play a cluster; what changes is printed above it."""

import asyncio
import contextlib
import itertools
import os
import readline
import shlex
import signal
import sys
import termios
from typing import Any, Final

from devhost.cli import output
from devhost.host.status import resource_report
from devhost.observe import logs
from devhost.standin.kubelet import AdmissionError
from devhost.standin.trial import Trial
from devhost.watch.threads import run_in_thread

_PROMPT: Final = "> "
_HELP: Final = """\
allocate RESOURCE [N]  a pod requests N devices, or one
free POD | all         the pod ends
devices                what kubelet sees, and why a device is unhealthy
restart                kubelet restarts, and devhost registers again
edit                   the configuration, in $VISUAL or $EDITOR
quit                   as Ctrl-D and Ctrl-C
RESOURCE may be a part of a name. Tab completes."""
_COMMANDS: Final = [line.split(" ")[0] for line in _HELP.splitlines()[:-1]]


class Playground:
    """A trial, and the person who plays with it and with its configuration file, if any."""

    def __init__(self, trial: Trial, file: str | None) -> None:
        self._trial, self._file = trial, file
        self._names = (f"pod-{number}" for number in itertools.count(1))
        self._pods: dict[str, dict[str, list[str]]] = {}  # what each holds, by resource
        self._asking = False

    async def run(self) -> None:
        """Play until the person quits, or until cancelled."""
        loop, modes = asyncio.get_running_loop(), termios.tcgetattr(sys.stdin)
        readline.set_completer(self._complete)
        readline.set_completer_delims(" ")
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")

        def log(line: str) -> None:
            loop.call_soon_threadsafe(self._say, line)

        # A log that goes to a file stays there.
        on_screen = sys.stderr is not None and sys.stderr.isatty()
        try:
            with logs.redirect_to(log) if on_screen else contextlib.nullcontext():
                async with asyncio.TaskGroup() as tasks:
                    shown = tasks.create_task(self._trial.live(self._say), name="live")
                    self._say("allocate RESOURCE, or help")
                    while (line := await self._asked()) not in (None, "quit"):
                        await self._execute(line or "")
                        _set(modes)  # an editor may have left others
                    shown.cancel()
        finally:
            _set(modes)

    async def _asked(self) -> str | None:
        """Return the next line, ``None`` at the end of the input."""
        self._asking = True
        try:
            return (await run_in_thread("prompt", lambda: input(_PROMPT))).strip()
        except UnicodeDecodeError:
            return ""
        except (EOFError, OSError):
            return None
        finally:
            self._asking = False

    def _say(self, text: str) -> None:
        """Print above the prompt, and the prompt again."""
        if self._asking:
            sys.stdout.write("\r\x1b[K")
        for line in text.splitlines():
            output.echo(line)
        if self._asking:
            sys.stdout.write(_PROMPT + readline.get_line_buffer())
            sys.stdout.flush()

    def _complete(self, text: str, state: int) -> str | None:
        before = readline.get_line_buffer()[: readline.get_begidx()].split()
        match before:
            case []:
                found = [one for one in _COMMANDS if one.startswith(text)]
            case ["allocate"]:
                found = [one.name for one in self._trial.host.resources if text in one.name]
            case ["free", *_]:
                found = [one for one in (*self._pods, "all") if text in one]
            case _:
                found = []
        return f"{found[state]} " if state < len(found) else None

    async def _execute(self, line: str) -> None:
        try:
            match shlex.split(line):
                case []:
                    pass
                case ["allocate", part]:
                    await self._allocate(part, 1)
                case ["allocate", part, count] if count.isdecimal():
                    await self._allocate(part, int(count))
                case ["free", *pods] if pods:
                    await self._free(pods)
                case ["devices"]:
                    self._devices()
                case ["restart"]:
                    await self._trial.kubelet.restart()
                    self._say("kubelet has restarted")
                case ["edit"] if self._file is not None:
                    await self._edit(self._file)
                case _:
                    self._say(_HELP)
        except (AdmissionError, OSError, ValueError) as error:
            self._say(str(error))

    async def _allocate(self, part: str, count: int) -> None:
        known = await self._trial.kubelet.capacity()
        found = [part] if part in known else [name for name in known if part in name]
        if len(found) != 1:
            raise ValueError(f"which resource is {part}? {', '.join(found or known) or 'none yet'}")
        pod = next(self._names)
        answer = (await self._trial.kubelet.admit(pod, {"app": {found[0]: count}}))["app"]
        self._pods[pod] = answer["deviceIds"]
        ids = ", ".join(self._pods[pod].get(found[0], ())) or "no devices"
        lines = list(output.received(answer))
        self._say(f"{pod} has {ids}; its container receives{'' if lines else ' nothing'}")
        for line in lines:
            self._say(f"  {line}")

    async def _free(self, pods: list[str]) -> None:
        pods = [*self._pods] if pods == ["all"] else pods
        if unknown := [pod for pod in pods if pod not in self._pods]:
            raise ValueError(f"no pod {unknown[0]}; pods: {', '.join(self._pods) or 'none'}")
        for pod in pods:
            await self._trial.kubelet.free(pod)
            del self._pods[pod]
            self._say(f"{pod} ended")

    def _devices(self) -> None:
        for served in self._trial.host.resources:
            shown = resource_report(served, served.snapshot).as_json()
            held = ((pod, has.get(served.name, ())) for pod, has in self._pods.items())
            some = {one: [pod] for pod, ids in held for one in ids}
            output.print_resource(shown, output.pods(some), wide=False)

    async def _edit(self, file: str) -> None:
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        # Ctrl-C is the editor's, which gets the default action, unlike of an ignored signal.
        ours = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            process = await asyncio.create_subprocess_exec(*shlex.split(editor), file)
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()
        finally:
            signal.signal(signal.SIGINT, ours)


def _set(modes: list[Any]) -> None:
    with contextlib.suppress(termios.error):  # the terminal has gone
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
