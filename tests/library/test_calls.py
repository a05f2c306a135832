"""Calls of an author's methods: the results that they may return, and their failures."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from devhost import Allocation, Device, DeviceSpec, MountSpec
from devhost.library.methods import CallError, PluginMethods
from tests.library.scripted import Scripted, failing
from tests.support.devices import skip_reasons

IDS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "devices() raised TypeError: 'NoneType' object is not iterable"),
        ("abc", "devices() returned a str, not a list of Devices or IDs"),
        (map(str, itertools.count()), "devices() returned more than 20000 devices"),
    ],
)
def test_devices_that_are_no_list_are_an_error(returned: Any, text: str) -> None:
    with pytest.raises(CallError) as caught:
        PluginMethods(Scripted(returned)).devices()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("item", "shown", "problem"),
    [
        ("", "''", "a device ID must not be empty"),
        ("x" * 64, "x" * 64, "its ID has 64 characters; at most 63 are allowed"),
        (7, "7", "not a Device or an ID (a str)"),
        (Device(8), "8", "its id, reason and paths should be of type str"),  # type: ignore[arg-type]
        (Device("a", paths=["dev/x"]), "a", "'dev/x' is not an absolute path (beginning with '/')"),
        (Device("a", paths=[3]), "a", "its id, reason and paths should be of type str"),  # type: ignore[list-item]
        (Device("a", numa_nodes=[-1]), "a", "numa_nodes: (-1,) should be numbers of NUMA nodes"),
        (Device("a", numa_nodes=[1024]), "a", "numa_nodes: (1024,) should be numbers of NUMA nodes"),
    ],
)  # fmt: skip
def test_device_that_cannot_be_offered_is_skipped(item: Any, shown: str, problem: str) -> None:
    result = PluginMethods(Scripted(["good", item])).devices()
    assert (result[0], skip_reasons(result[1])) == ([Device("good")], {shown: problem})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"A": "b"}, "allocate() returned a dict; return a devhost.Allocation or None"),
        (Allocation(envs={"A": 1}), "allocate() raised TypeError"),  # type: ignore[dict-item]
        (Allocation(envs={"A=": "1"}), "'A=' is not a valid name of an environment variable"),
        (Allocation(devices=(DeviceSpec("/dev/null", "dev/x", "rw"),)), "'dev/x' is not an absolute path"),
        (Allocation(mounts=(MountSpec("x", "/x", read_only=True),)), "'x' is not an absolute path"),
        (Allocation(devices=(DeviceSpec("/dev/null", "/dev/x", "rx"),)), "'rx' should be one or more of the letters r"),
        (Allocation(mounts=(MountSpec("/x", "/x", read_only="no"),)), "read_only: 'no' should be True or False"),  # type: ignore[arg-type]
        (Allocation(annotations={"cdi.k8s.io/x": "y"}), "such annotations control the runtime"),
        (Allocation(annotations={"a": "\0"}), "a control character"),
        (Allocation(cdi_devices=("x",)), "'x' is not a fully qualified CDI name"),
    ],
)  # fmt: skip
def test_allocate_that_returns_no_answer_is_an_error(answer: Any, text: str) -> None:
    plugin = Scripted(IDS)
    plugin.then["allocate"] = lambda _devices: answer
    with pytest.raises(CallError) as caught:
        PluginMethods(plugin).allocate([Device("a")])
    assert text in str(caught.value)


@pytest.mark.parametrize("chosen", [["a"], ["a", "a"], ["a", "x"], ["a", 7]])
def test_preferred_that_is_no_choice_is_an_error(chosen: list[object]) -> None:
    plugin = Scripted(IDS)
    plugin.then["preferred"] = lambda *_: chosen
    with pytest.raises(CallError) as caught:
        PluginMethods(plugin).preferred(IDS, (), 2)
    assert str(caught.value) == f"preferred() returned {chosen}, not 2 of the available IDs"


class ExitError(BaseException):
    """No `Exception`."""


class TextlessError(Exception):
    """Its text cannot be told."""

    def __str__(self) -> str:
        raise self


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), ExitError("out"), TextlessError()]
)
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
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info
    plugin.now = None
    with pytest.raises(CallError):
        calls.devices()
    assert len(caplog.records) == 2


def test_refresh_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Scripted(["a"])
    plugin.then["refresh"] = failing
    calls = PluginMethods(plugin)
    calls.refresh_due = True
    assert calls.devices() == ([Device("a")], [])
    assert "refresh() raised ValueError: boom" in str(caplog.records[0].__dict__)
