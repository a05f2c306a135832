"""Calls of a plugin's methods: with time limits, and with checked results."""

import contextlib
import threading
from collections.abc import Sequence
from typing import Final, TypeVar

from devhost.library import result_checks
from devhost.library.calls import CallError, Calls
from devhost.library.device import Device
from devhost.library.plugin import DevicePlugin
from devhost.model.allocation import Allocation

# Less than the 5 s after which Allocate fails with an error that does not name the method.
ANSWER_S: Final = 4.0
DESTROY_S: Final = 5.0

T = TypeVar("T")
Item = tuple[object, str | None]


class PluginMethods:
    """The methods of a plugin. They block, may be called from any thread, and raise `CallError`."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin, self._calls = plugin, Calls(plugin.name)
        self._refresh_due = threading.Event()
        self.interval = plugin.interval

    @property
    def prepares(self) -> bool:
        """Whether ``pre_start`` is overridden."""
        return self._overrides("pre_start")

    @property
    def waiting_for_devices(self) -> str | None:
        """The reason to report while a call of ``devices`` has not returned."""
        running = (one for one in ("refresh", "devices") if self._calls.running(one))
        method = next(running, None)
        return f"{method}() has not returned yet" if method else None

    def refresh_first(self) -> None:
        """Call ``refresh`` before the next call of ``devices``."""
        self._refresh_due.set()

    def devices(self) -> list[Item]:
        """Return the devices, each with its error if it is invalid. Has no time limit."""
        if self._refresh_due.is_set():
            self._refresh_due.clear()
            with contextlib.suppress(CallError):  # logged
                self._calls.call_here("refresh", self._plugin.refresh)
        return self._calls.call_here("devices", self._devices)

    def _devices(self) -> list[Item]:
        found: list[Item] = []
        for item in result_checks.listed(self._plugin.devices()):
            device = Device(item) if isinstance(item, str) else item
            found.append((device, result_checks.device_problem(device)))
        return found

    def allocate(self, devices: Sequence[Device]) -> Allocation | None:
        """Return what a container receives; ``None``: what the options declare."""
        if not self._overrides("allocate"):
            return None

        def work() -> Allocation | None:
            answer = self._plugin.allocate(devices)
            problem = None if answer is None else result_checks.allocation_problem(answer)
            return _checked(answer, "allocate", problem)

        return self._calls.call("allocate", work, ANSWER_S)

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...] | None:
        """Return which IDs a container should get; ``None``: by the option ``prefer``."""
        if not self._overrides("preferred"):
            return None

        def work() -> tuple[str, ...] | None:
            chosen = self._plugin.preferred(tuple(available), tuple(must_include), size)
            if chosen is None:
                return None
            problem = result_checks.preferred_problem(chosen, available, must_include, size)
            return tuple(_checked(chosen, "preferred", problem))

        return self._calls.call("preferred", work, ANSWER_S)

    def pre_start(self, devices: Sequence[Device], within: float) -> None:
        """Prepare a container's devices, within a number of seconds."""
        self._calls.call("pre_start", lambda: self._plugin.pre_start(devices), within)

    def destroy(self) -> None:
        """Call ``destroy``: the server has stopped."""
        self._calls.call("destroy", self._plugin.destroy, DESTROY_S)

    def _overrides(self, method: str) -> bool:
        return getattr(type(self._plugin), method) is not getattr(DevicePlugin, method)


def _checked(answer: T, method: str, problem: str | None) -> T:
    if problem is not None:
        raise CallError(f"{method}(): {problem}")
    return answer
