"""The load generator, as seen from here: commands go in, what it measured comes out."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.build import build

_END_S = 10.0


class LoadError(Exception):
    """Something did not work, of which the load generator tells."""


class Load:
    """A load generator that plays kubelet in a plugin directory; `bench/load` has the commands."""

    def __init__(self, plugin_dir: Path) -> None:
        self._process = subprocess.Popen(
            [build("load"), str(plugin_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._input.close()  # its end, and so its child's
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def do(self, command: str, **arguments: object) -> Any:
        """Carry out a command; return its result.

        Raises:
            LoadError: It failed.
        """
        try:
            self._input.write(json.dumps({"do": command, "with": arguments}) + "\n")
            self._input.flush()
            line = self._output.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise LoadError(f"{command}: the load generator has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise LoadError(answer["error"])
        return answer.get("result")
