"""A plugin that does what a test says, and a log of what was asked of it."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from devhost import Allocation, Device, DevicePlugin

NAME = "example.com/coded"


class Scripted(DevicePlugin):
    """Overrides all methods.

    Attributes:
        now: What `devices` returns; a function is called.
        then: By method, what it does: a function is called with its arguments.
        calls: The methods that were called, `devices` apart, with their first arguments.
        order: Of `devices` and `refresh`, which was called when.
    """

    def __init__(self, now: Any, name: str = NAME, **options: Any) -> None:
        super().__init__(name, **options)
        self.now = now
        self.then: dict[str, Callable[..., Any]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.order: list[str] = []

    def called(self, method: str) -> list[Any]:
        return [argument for name, argument in self.calls if name == method]

    def devices(self) -> Iterable[Device | str]:
        self.order.append("devices")
        result: Iterable[Device | str] = self.now() if callable(self.now) else self.now
        return result

    def _do(self, method: str, *arguments: Any) -> Any:
        self.calls.append((method, arguments[0] if arguments else None))
        work = self.then.get(method)
        return work(*arguments) if work else None

    def allocate(self, devices: Sequence[Device]) -> Allocation | None:
        answer: Allocation | None = self._do("allocate", devices)
        return answer

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str] | None:
        answer: Sequence[str] | None = self._do("preferred", available, must_include, size)
        return answer

    def pre_start(self, devices: Sequence[Device]) -> None:
        self._do("pre_start", devices)

    def refresh(self) -> None:
        self.order.append("refresh")
        self._do("refresh")

    def destroy(self) -> None:
        self._do("destroy")


class Plain(DevicePlugin):
    def __init__(self, now: Iterable[Device | str], name: str = NAME, **options: Any) -> None:
        super().__init__(name, **options)
        self.now = now

    def devices(self) -> Iterable[Device | str]:
        return self.now


def failing(*_: object) -> None:
    raise ValueError("boom")


class Hang:
    """A function that returns when a test says so."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.entered, self.release = threading.Event(), threading.Event()
        self.threads = 0

    def __call__(self, *_: object) -> Any:
        self.threads += 1
        self.entered.set()
        self.release.wait(60)
        return self.result


def fields(records: Iterable[Any], message: str) -> list[Mapping[str, Any]]:
    return [getattr(record, "fields", {}) for record in records if record.getMessage() == message]
