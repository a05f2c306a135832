"""Calls of an author's methods: what they may return, and what becomes of those that fail or hang."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devhost import Allocation, Device, DeviceSpec
from devhost.library import methods
from devhost.library.methods import UNRETURNED_MAX, CallError, PluginMethods
from tests.library.scripted import Hang, Scripted, failing

IDS = ["a", "b", "c"]


# ── results ──


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "devices() returned None, not a list of Devices or IDs"),
        ("abc", "devices() returned str 'abc', not a list of Devices or IDs"),
        (map(str, range(20_001)), "devices() returned more than 20000 devices"),
    ],
)
def test_devices_that_are_no_list_are_an_error(returned: Any, text: str) -> None:
    with pytest.raises(CallError) as caught:
        PluginMethods(Scripted(returned)).devices()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("good", None),
        ("", "id: a device ID must not be empty"),
        ("x" * 64, "id: it has 64 characters; at most 63 are allowed"),
        ("a::0", "id: a device ID must not contain '::', which is reserved for shares"),
        (7, "not a Device or an ID (a str)"),
        (Device(8), "id: int 8 is not a str"),  # type: ignore[arg-type]
        (Device("a", paths=["dev/x"]), "paths: 'dev/x' is not an absolute path (beginning with '/')"),
        (Device("a", paths=[3]), "paths: int 3 is not a str"),  # type: ignore[list-item]
        (Device("a", numa_nodes=[-1]), "numa_nodes: int -1 is not the number of a NUMA node"),
        (Device("a", reason=True), "reason: bool True is not a str"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_device_that_cannot_be_offered_has_a_problem(item: Any, problem: str | None) -> None:
    ((_, found),) = PluginMethods(Scripted([item])).devices()
    assert found == problem


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"A": "b"}, "allocate() returned dict {'A': 'b'}, not an Allocation or None"),
        (Allocation(envs={"A": 1}), "envs: int 1 is not a str"),  # type: ignore[dict-item]
        (Allocation(devices=(DeviceSpec("/dev/null", "dev/x", "rw"),)), "devices: 'dev/x' is not an absolute path"),
        (Allocation(devices=(DeviceSpec("/dev/null", "/dev/x", "rx"),)), "devices: permissions 'rx' should be of the letters r, w, m"),
        (Allocation(devices=["/dev/null"]), "returned devices with str '/dev/null', not a DeviceSpec"),  # type: ignore[arg-type]
        (Allocation(mounts=None), "allocate() raised TypeError"),  # type: ignore[arg-type]
        (Allocation(annotations={"cdi.k8s.io/x": "y"}), "such annotations control the runtime"),
        (Allocation(cdi_devices=("x",)), "'x' is not a fully qualified CDI name"),
    ],
)  # fmt: skip
def test_allocate_that_returns_no_answer_is_an_error(answer: Any, text: str) -> None:
    plugin = Scripted(IDS)
    plugin.then["allocate"] = lambda _devices: answer
    with pytest.raises(CallError) as caught:
        PluginMethods(plugin).allocate([Device("a")])
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (7, "preferred() returned int 7, not a list of IDs or None"),
        (["a"], "preferred() returned list ['a'], not 2 different IDs"),
        (["a", "a"], "not 2 different IDs"),
        (["a", "x"], "preferred() returned str 'x', which is not available"),
    ],
)
def test_preferred_that_is_no_choice_is_an_error(chosen: object, text: str) -> None:
    plugin = Scripted(IDS)
    plugin.then["preferred"] = lambda *_: chosen
    with pytest.raises(CallError) as caught:
        PluginMethods(plugin).preferred(IDS, (), 2)
    assert text in str(caught.value)


# ── failures ──


class ExitError(BaseException):
    """No `Exception`."""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ExitError("out")])
def test_method_that_exits_does_not_end_the_process(error: BaseException) -> None:
    def raising() -> Iterator[str]:
        yield "a"
        raise error

    with pytest.raises(CallError, match=rf"devices\(\) raised {type(error).__name__}"):
        PluginMethods(Scripted(raising)).devices()


def test_method_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Scripted(failing)
    calls = PluginMethods(plugin)
    for _ in range(3):
        with pytest.raises(CallError, match=r"devices\(\) raised ValueError: boom"):
            calls.devices()
    assert [one.levelname for one in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info
    plugin.now = None
    with pytest.raises(CallError):
        calls.devices()
    assert len(caplog.records) == 2


def test_refresh_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Scripted(["a"])
    plugin.then["refresh"] = failing
    calls = PluginMethods(plugin)
    calls.refresh_first()
    assert calls.devices() == [(Device("a"), None)]
    assert "refresh() raised ValueError: boom" in str(caplog.records[0].__dict__)


def called(calls: PluginMethods, method: str) -> None:
    every: dict[str, Callable[[], object]] = {
        "allocate": lambda: calls.allocate([Device("a")]),
        "preferred": lambda: calls.preferred(IDS, (), 1),
        "pre_start": lambda: calls.pre_start([Device("a")], 0.05),
        "destroy": calls.destroy,
    }
    every[method]()


@pytest.mark.parametrize("method", ["allocate", "preferred", "pre_start", "destroy"])
def test_method_that_hangs_is_given_up(
    method: str, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "ANSWER_S", 0.05)
    monkeypatch.setattr(methods, "DESTROY_S", 0.05)
    plugin = Scripted(IDS)
    plugin.then[method] = hang
    calls = PluginMethods(plugin)
    for _ in range(UNRETURNED_MAX):
        with pytest.raises(CallError, match=rf"{method}\(\) did not return within 0.05 s"):
            called(calls, method)
    with pytest.raises(CallError, match=f"{UNRETURNED_MAX} earlier calls have not returned"):
        called(calls, method)
    assert hang.threads == UNRETURNED_MAX
    del plugin.then[method]
    hang.release.set()
    while True:
        with contextlib.suppress(CallError):
            called(calls, method)
            break
