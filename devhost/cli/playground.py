"""``devhost try`` in a terminal: a prompt to play a cluster; changes are printed above it."""

import asyncio
import contextlib
import itertools
import readline
import shlex
import sys
import termios
from typing import Final

from devhost.cli import output
from devhost.daemon.status import resource_report
from devhost.fake_kubelet.kubelet import AdmissionError
from devhost.fake_kubelet.trial import Trial
from devhost.observe import logs
from devhost.watch.threads import run_in_thread

_PROMPT: Final = "> "
_HELP: Final = """\
allocate RESOURCE [N]  a pod requests N devices, or one
free POD | all         the pod ends
devices                what kubelet sees, and why a device is unhealthy
restart                kubelet restarts, and devhost registers again
quit                   as Ctrl-D and Ctrl-C
RESOURCE may be a part of a name. Tab completes."""
_COMMANDS: Final = [line.split(" ")[0] for line in _HELP.splitlines()[:-1]]


class Playground:
    """The prompt of a trial, for the person who plays with it."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._pods = trial, trial.kubelet.ledger.pods
        self._names = (f"pod-{number}" for number in itertools.count(1))
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
                    while (line := await self._read_line()) not in (None, "quit"):
                        await self._execute(line or "")
                    shown.cancel()
        finally:
            with contextlib.suppress(termios.error):  # the terminal has gone
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)

    async def _read_line(self) -> str | None:
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
        output.echo(*text.splitlines())
        if self._asking:
            sys.stdout.write(_PROMPT + readline.get_line_buffer())
            sys.stdout.flush()

    def _complete(self, text: str, state: int) -> str | None:
        before = readline.get_line_buffer()[: readline.get_begidx()].split()
        match before:
            case []:
                words = [command for command in _COMMANDS if command.startswith(text)]
            case ["allocate"]:
                words = [
                    served.name for served in self._trial.host.resources if text in served.name
                ]
            case ["free", *_]:
                words = [pod for pod in (*self._pods, "all") if text in pod]
            case _:
                words = []
        return f"{words[state]} " if state < len(words) else None

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
                case _:
                    self._say(_HELP)
        except (AdmissionError, ValueError) as error:
            self._say(str(error))

    async def _allocate(self, part: str, count: int) -> None:
        names = await self._trial.kubelet.capacity()
        full = [name for name in names if part in (name, name.rpartition("/")[2])]
        matches = full or [name for name in names if part in name]
        if len(matches) != 1:
            choice = ", ".join(matches or names) or "none yet"
            raise ValueError(f"which resource is {part}? {choice}")
        pod, name = next(self._names), matches[0]
        answer = (await self._trial.kubelet.admit(pod, {"app": {name: count}}))["app"]
        ids = ", ".join(answer["deviceIds"].get(name, ())) or "no devices"
        lines = [f"  {line}" for line in output.allocation_lines(answer)]
        title = f"{pod} has {ids}; its container receives{'' if lines else ' nothing'}"
        self._say("\n".join([title, *lines]))

    async def _free(self, pods: list[str]) -> None:
        pods = [*self._pods] if pods == ["all"] else pods
        if unknown := [pod for pod in pods if pod not in self._pods]:
            raise ValueError(f"no pod {unknown[0]}; pods: {', '.join(self._pods) or 'none'}")
        for pod in pods:
            await self._trial.kubelet.free(pod)
            self._say(f"{pod} ended")

    def _devices(self) -> None:
        for served in self._trial.host.resources:
            shown = resource_report(served, served.devices.offered).as_json()
            holders = {
                device_id: [pod]
                for pod, containers in self._pods.items()
                for container in containers.values()
                if served.name in container
                for device_id in container[served.name].ids
            }
            output.print_resource(shown, output.pods_by_device(holders), wide=False)
