"""What an author's code does wrong is said by name, and hurts its resource alone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devhost import Allocation, Device, DevicePlugin, DeviceSpec, serve
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.library.scripted import NAME, Hang, Plain, Scripted, failing, fields
from tests.library.serving import Serving
from tests.support.daemon import until

WELL = "example.com/well"
FAILED = "plugin failed"


class ExitError(BaseException):
    """No `Exception`."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is given up soon."""
    monkeypatch.setattr("devhost.host.inventory.ANSWER_S", 1.0)
    monkeypatch.setattr("devhost.library.methods.ANSWER_S", 1.0)
    monkeypatch.setattr("devhost.library.methods.DESTROY_S", 1.0)
    monkeypatch.setattr("devhost.host.resource.WITHIN_S", 1.0)


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.release.set()


async def is_well(kubelet: SimulatedKubelet, pod: str = "well") -> None:
    """See that the other resource works."""
    await kubelet.wait(WELL, 1, 1)
    answer = await kubelet.admit(pod, {"app": {WELL: 1}})
    assert answer["app"]["deviceIds"] == {WELL: ["w"]}
    await kubelet.free(pod)


# ── devices ──


async def test_devices_raises(
    standin: SimulatedKubelet, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """What is known stays, as unhealthy, with what was raised; it is logged once."""
    plugin = Scripted(["a", "b"], interval=0.1)
    serving.start(plugin, Plain(["w"], WELL))
    await standin.wait(NAME, 2, 2)
    calls = 0

    def raising() -> None:
        nonlocal calls
        calls += 1
        raise ConnectionError("no answer\nfrom the controller")

    plugin.now = raising
    reason = r"devices() raised ConnectionError: no answer\nfrom the controller"
    await serving.reasons(NAME, {"a": reason, "b": reason})
    assert serving.snapshot(NAME).error == reason
    await standin.wait(NAME, 2, 0)
    await until(lambda: calls > 3, "called again")
    failures = [one for one in caplog.records if one.getMessage() == FAILED]
    assert [one.levelname for one in failures if one.levelname != "DEBUG"] == ["ERROR"]
    assert failures[0].exc_info
    await is_well(standin)
    plugin.now = ["a"]
    plugin.changed()
    await serving.reasons(NAME, {"a": None, "b": "not found any more"})


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ExitError("out")])
async def test_devices_ends_with_no_exception(
    standin: SimulatedKubelet, serving: Serving, error: BaseException
) -> None:
    """sys.exit() in a plugin is its own end, not that of the process."""

    def raising() -> Iterator[str]:
        yield "a"
        raise error

    serving.start(Scripted(raising), Plain(["w"], WELL))
    await standin.wait(NAME, 0, 0)
    assert type(error).__name__ in (serving.snapshot(NAME).error or "")
    await is_well(standin)


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, "devices() returned None, not a list of Devices or IDs"),
        ("abc", "devices() returned str 'abc', not a list of Devices or IDs"),
        ([str(n) for n in range(20_001)], "devices() returned more than 20000 devices"),
    ],
)
async def test_devices_returns_no_devices(
    standin: SimulatedKubelet, serving: Serving, returned: Any, reason: str
) -> None:
    serving.start(Scripted(returned), Plain(["w"], WELL))
    await standin.wait(NAME, 0, 0)
    assert serving.snapshot(NAME).error == reason
    await is_well(standin)


async def test_devices_that_cannot_be_offered(standin: SimulatedKubelet, serving: Serving) -> None:
    """Each is skipped with its reason; the others are served."""
    strange: list[Any] = [
        "good",
        "good",
        "",
        "x" * 64,
        "a::0",
        "new\nline",
        7,
        None,
        Device(8),  # type: ignore[arg-type]
        Device("path", paths=["dev/x"]),
        Device("paths", paths=[3]),  # type: ignore[list-item]
        Device("numa", numa_nodes=[-1]),
        Device("reason", reason=True),  # type: ignore[arg-type]
        Device("first", paths="/dev/null"),
        Device("second", paths=["/dev/zero", "/dev/../dev/null"]),
        Device("third", paths=["/dev/null"]),
    ]
    serving.start(Scripted(strange))
    await standin.wait(NAME, 2, 2)
    skipped = {one.candidate: one.reason for one in serving.snapshot(NAME).skipped}
    expected = {
        "good": "duplicate ID",
        "x" * 64: "id: it has 64 characters; at most 63 are allowed",
        "a::0": "id: a device ID must not contain '::', which is reserved for shares",
        r"new\nline": "id: a device ID must not contain '\\n', which cannot be seen",
        "int 7": "not a Device or an ID (a str)",
        "None": "not a Device or an ID (a str)",
        "path": "paths: 'dev/x' is not an absolute path (beginning with '/')",
        "paths": "paths: int 3 is not a str",
        "numa": "numa_nodes: int -1 is not the number of a NUMA node",
        "reason": "reason: bool True is not a str",
        "third": "node /dev/null also belongs to device first",
    }
    assert {key: skipped[key] for key in expected} == expected
    assert len(skipped) == len(expected) + 3
    assert "id: a device ID must not be empty" in skipped.values()
    assert "id: int 8 is not a str" in skipped.values()
    assert "contains '..'" in skipped["second"]


async def test_devices_hangs(
    standin: SimulatedKubelet, serving: Serving, short: None, hang: Hang
) -> None:
    """Its devices are unhealthy until it returns; it is not called a second time meanwhile."""
    plugin = Scripted(["a"])
    serving.start(plugin, Plain(["w"], WELL))
    await standin.wait(NAME, 1, 1)
    hang.result = ["a", "b"]
    plugin.now = hang
    plugin.changed()
    await serving.reasons(NAME, {"a": "devices() has not returned yet"})
    await standin.wait(NAME, 1, 0)
    plugin.changed()
    await is_well(standin)
    assert hang.threads == 1
    plugin.now = ["a", "b"]
    hang.release.set()
    await standin.wait(NAME, 2, 2)


# ── allocate ──


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (failing, "allocate() raised ValueError: boom"),
        (
            lambda _: {"A": "b"},
            "allocate() returned dict {'A': 'b'}, not an Allocation or None",
        ),
        (
            lambda _: Allocation(envs={"A B": "c"}),
            "envs: 'A B' is not a valid name of an environment",
        ),
        (lambda _: Allocation(envs={"A": 1}), "envs: int 1 is not a str"),  # type: ignore[dict-item]
        (
            lambda _: Allocation(devices=(DeviceSpec("/dev/null", "dev/x", "rw"),)),
            "devices: 'dev/x' is not an absolute path",
        ),
        (
            lambda _: Allocation(devices=(DeviceSpec("/dev/null", "/dev/x", "rx"),)),
            "devices: permissions 'rx' should be of the letters r, w, m",
        ),
        (
            lambda _: Allocation(devices=(DeviceSpec("/dev/gone", "/dev/x", "rw"),)),
            "/dev/gone does not exist",
        ),
        (
            lambda _: Allocation(devices=(DeviceSpec("/etc/passwd", "/dev/x", "rw"),)),
            "/etc/passwd is a file, not a device node",
        ),
        (
            lambda _: Allocation(devices=["/dev/null"]),  # type: ignore[arg-type]
            "returned devices with str '/dev/null', not a DeviceSpec",
        ),
        (lambda _: Allocation(mounts=None), "allocate() raised TypeError"),  # type: ignore[arg-type]
        (
            lambda _: Allocation(annotations={"cdi.k8s.io/x": "y"}),
            "such annotations control the runtime",
        ),
        (lambda _: Allocation(cdi_devices=("x",)), "'x' is not a fully qualified CDI name"),
    ],
)
async def test_allocate_fails(
    standin: SimulatedKubelet, serving: Serving, answer: Callable[..., Any], text: str
) -> None:
    """The pod is refused with the resource's name and the reason; the next may be admitted."""
    plugin = Scripted(["a"])
    plugin.then["allocate"] = answer
    serving.start(plugin, Plain(["w"], WELL))
    await standin.wait(NAME, 1, 1)
    with pytest.raises(AdmissionError) as caught:
        await standin.admit("pod", {"app": {NAME: 1}})
    assert f"{NAME}: " in str(caught.value)
    assert text in str(caught.value)
    del plugin.then["allocate"]
    await standin.admit("pod", {"app": {NAME: 1}})
    await is_well(standin)


async def test_allocate_hangs(
    standin: SimulatedKubelet, serving: Serving, short: None, hang: Hang
) -> None:
    """It fails in time, and after eight of them together: threads are bounded."""
    plugin = Scripted(["a"])
    plugin.then["allocate"] = hang
    serving.start(plugin, Plain(["w"], WELL))
    await standin.wait(NAME, 1, 1)
    for _ in range(8):
        with pytest.raises(AdmissionError, match=r"allocate\(\) did not return within 1 s"):
            await standin.admit("pod", {"app": {NAME: 1}})
    with pytest.raises(AdmissionError, match="8 earlier calls have not returned"):
        await standin.admit("pod", {"app": {NAME: 1}})
    assert hang.threads == 8
    await is_well(standin)
    del plugin.then["allocate"]
    hang.release.set()
    await until(lambda: not running("allocate"), "the threads have ended")
    await standin.admit("pod", {"app": {NAME: 1}})


def running(method: str) -> list[str]:
    import threading

    return [one.name for one in threading.enumerate() if one.name.startswith(f"{method} ")]


# ── preferred ──


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (failing, "preferred() raised ValueError: boom"),
        (lambda *_: 7, "preferred() returned int 7, not a list of IDs or None"),
        (lambda *_: ["a"], "preferred() returned list ['a'], not 2 different IDs"),
        (lambda *_: ["a", "a"], "not 2 different IDs"),
        (lambda *_: ["a", "x"], "preferred() returned str 'x', which is not available"),
    ],
)
async def test_preferred_fails(
    standin: SimulatedKubelet,
    serving: Serving,
    caplog: pytest.LogCaptureFixture,
    chosen: Callable[..., Any],
    text: str,
) -> None:
    """It is logged, and the kubelet chooses."""
    plugin = Scripted(["a", "b", "c"])
    plugin.then["preferred"] = chosen
    serving.start(plugin)
    await standin.wait(NAME, 3, 3)
    answer = (await standin.admit("pod", {"app": {NAME: 2}}))["app"]
    assert len(answer["deviceIds"][NAME]) == 2
    assert text in fields(caplog.records, FAILED)[0]["reason"]


async def test_preferred_hangs(
    standin: SimulatedKubelet, serving: Serving, short: None, hang: Hang
) -> None:
    plugin = Scripted(["a", "b"])
    plugin.then["preferred"] = hang
    serving.start(plugin)
    await standin.wait(NAME, 2, 2)
    await standin.admit("pod", {"app": {NAME: 1}})
    assert hang.threads == 1


# ── pre_start, refresh, destroy ──


async def test_pre_start_raises(standin: SimulatedKubelet, serving: Serving) -> None:
    """The container does not start, with the text; the next try may succeed."""
    plugin = Scripted(["a"])
    plugin.then["pre_start"] = failing
    serving.start(plugin, Plain(["w"], WELL))
    await standin.wait(NAME, 1, 1)
    await standin.admit("pod", {"app": {NAME: 1}}, start=False)
    with pytest.raises(AdmissionError, match=r"example.com/coded: pre_start\(\) raised ValueError"):
        await standin.start_container("pod", "app")
    await is_well(standin)
    del plugin.then["pre_start"]
    await standin.start_container("pod", "app")


async def test_pre_start_hangs(
    standin: SimulatedKubelet, serving: Serving, short: None, hang: Hang
) -> None:
    plugin = Scripted(["a"])
    plugin.then["pre_start"] = hang
    serving.start(plugin, Plain(["w"], WELL))
    await standin.wait(NAME, 1, 1)
    await standin.admit("pod", {"app": {NAME: 1}}, start=False)
    with pytest.raises(AdmissionError, match=r"pre_start\(\) did not return within [01](\.\d+)? s"):
        await standin.start_container("pod", "app")
    await is_well(standin)


async def test_refresh_and_destroy_raise(
    standin: SimulatedKubelet, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the resource is served all the same."""
    plugin = Scripted(["a"])
    plugin.then |= {"refresh": failing, "destroy": failing}
    serving.start(plugin)
    await standin.wait(NAME, 1, 1)
    await until(lambda: fields(caplog.records, FAILED), "logged")
    await standin.admit("pod", {"app": {NAME: 1}})
    await serving.stop()
    reasons = [one["reason"] for one in fields(caplog.records, FAILED)]
    assert reasons == ["refresh() raised ValueError: boom", "destroy() raised ValueError: boom"]


async def test_refresh_and_destroy_hang(
    standin: SimulatedKubelet,
    serving: Serving,
    short: None,
    hang: Hang,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One refresh at a time, however often the server starts; the end waits for neither."""
    plugin = Scripted(["a"])
    plugin.then["destroy"] = hang
    serving.start(plugin)
    await standin.wait(NAME, 1, 1)
    plugin.then["refresh"] = hang
    for _ in range(3):
        await standin.restart()
        await until(lambda: standin.devices(NAME), "registered again")
    await serving.reasons(NAME, {"a": "refresh() has not returned yet"})
    assert len(plugin.called("refresh")) == 2
    await serving.stop()
    assert len(plugin.called("destroy")) == 1
    reasons = [one["reason"] for one in fields(caplog.records, FAILED)]
    assert reasons == ["destroy() did not return within 1 s"]


# ── serve ──


def test_serve_says_what_it_takes() -> None:
    with pytest.raises(TypeError, match="get_devices must be a function"):
        serve(NAME, ["a"], argv=[])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is not an instance of a subclass of DevicePlugin"):
        serve(Plain, argv=[])  # type: ignore[call-overload]

    class Empty(DevicePlugin):
        """Finds nothing."""

    with pytest.raises(TypeError, match=r"Empty must define devices\(\)"):
        serve(Empty(NAME), argv=[])
    with pytest.raises(ValueError, match=r"duplicate plugin example\.com/coded"):
        serve(Plain([]), Plain([]), argv=[])
    with pytest.raises(TypeError, match="unexpected replicas"):
        serve(Plain([]), replicas=2, argv=[])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unknown option 'replica'"):
        serve(NAME, list, replica=2, argv=[])  # type: ignore[call-overload]
