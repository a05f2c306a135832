"""A test that takes `kubelet` or `started` has the stand-in.

One that is marked as `contract` (tests/support/hosting.py) also runs on each real device manager that
DEVHOST_TEST_KUBELET names, separated by colons; `-m real_kubelet` picks these runs.
"""

import asyncio
import functools
import inspect
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from devhost.backends.deviceplugin.device_list import ListStreams
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support import programs
from tests.support.daemon import Daemon
from tests.support.hosting import Hosting, Kubelet, kubelet_of
from tests.support.realkubelet import UNSET, RealKubelet, real_kubelets

# The same on each machine: what is drawn depends on the seed alone. In CI, Hypothesis' own
# profile ignores the seed. The machine may be busy: how long an example takes says nothing.
settings.register_profile(
    "devhost",
    settings.get_profile("default"),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("devhost")
# Below it are sockets, whose paths are at most 107 bytes long.
tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--build", action="store_true", help="build in the background what tests need")


def pytest_configure(config: pytest.Config) -> None:
    # A script's shell has what it runs in the background ignore these, and all processes inherit it.
    for number, rule in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, rule)
    config.addinivalue_line("markers", "real_kubelet: runs on a real kubelet's device manager")
    config.addinivalue_line("markers", "program(name): needs one of tests/support/programs.py")
    if config.getoption("build") and not hasattr(config, "workerinput"):
        config.add_cleanup(programs.build_in_background())


def pytest_report_header(config: pytest.Config) -> list[str]:
    build = config.getoption("build")
    return [f"the last tests wait for programs that are built: {programs.LOG}"] if build else []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    programs.order(items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Wait until what a test needs is built, before its own time begins."""
    for name in programs.needed_by(item):
        programs.failure(name)
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End a coroutine that never returns a little before its test is ended: it tells for what."""
    for reason in filter(None, map(programs.failure, programs.needed_by(item))):
        pytest.fail(reason, pytrace=False)
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        marker = item.get_closest_marker("timeout")
        limit = float(marker.args[0] if marker else item.config.getini("timeout"))
        item.obj = _bounded(item.obj, limit * 0.8)


def _bounded(test: Callable[..., Awaitable[None]], limit: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(*arguments: object, **fixtures: object) -> None:
        async with asyncio.timeout(limit):
            await test(*arguments, **fixtures)

    return bounded


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Wait for as long as a busy machine takes, and for nothing but events.

    What devhost looks at every half a minute would hide the loss of an event.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedKubelet.wait, "__defaults__", RealKubelet.wait.__defaults__)
        patch.setattr("devhost.node.answers._CHANGE_WAIT_S", 60.0)
        patch.setattr("devhost.custody.custody._WAIT_S", 60.0)
        patch.setattr("devhost.backends.podresources.LIST_TIMEOUT_S", 60.0)
        patch.setattr("devhost.node.reconciler.RESCAN_S", 3600.0)
        patch.setattr("devhost.node.config_file.POLL_S", 3600.0)
        # Tests are quick.
        patch.setattr("devhost.backends.deviceplugin.device_list.LISTS_BURST", 1e9)
        yield


def _public() -> Iterator[Path]:
    """An empty directory that every user may look into, as sources need it without a flag."""
    with tempfile.TemporaryDirectory(prefix="dh", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield Path(path)


tmp_path = pytest.fixture(_public, name="tmp_path")  # pytest's own are for their user alone
# For sockets, whose paths are at most 107 bytes long.
short_path = pytest.fixture(_public, name="short_path")


@pytest.fixture
def directory(short_path: Path) -> Path:
    """A directory for sockets, with one for a kubelet and one for devices."""
    (short_path / "plugins").mkdir()
    (short_path / "colas").mkdir()
    return short_path


@pytest.fixture
def numa_nodes() -> int:
    """How many NUMA nodes a real kubelet has; a module that needs some has this of its own."""
    return 0


@pytest.fixture
def kubelet(request: pytest.FixtureRequest, directory: Path, numa_nodes: int) -> Kubelet:
    """A kubelet that is not started yet, with a socket of its pod-resources API."""
    return kubelet_of(getattr(request, "param", None), directory, numa_nodes)


@pytest.fixture
async def started(kubelet: Kubelet) -> AsyncIterator[Kubelet]:
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
def real_binary() -> Path:
    """The newest real kubelet, for tests that need no more than one."""
    binaries = list(real_kubelets().values())
    if not binaries:
        pytest.skip(UNSET)
    return binaries[-1]


@pytest.fixture
def may_leave(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Keeps all IDs in the lists of this process while it is not set.

    Without it a list with an ID that is about to leave is there for only a moment, and a wait for
    what a kubelet counts then may come too late.
    """
    event, rule = asyncio.Event(), ListStreams.is_settled_unhealthy

    def may_leave(streams: ListStreams, advertised_id: str, now: float) -> bool:
        return event.is_set() and rule(streams, advertised_id, now)

    monkeypatch.setattr(ListStreams, "is_settled_unhealthy", may_leave)
    return event


@pytest.fixture
async def hosting(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosting]:
    """Starts and stops hosts, which ask often who holds what."""
    monkeypatch.setattr("devhost.custody.holders.POLL_S", 0.05)
    hosting = Hosting(directory)
    yield hosting
    await hosting.close()


@pytest.fixture
async def daemon(directory: Path) -> AsyncIterator[Daemon]:
    """A process that is not started yet."""
    daemon = Daemon(directory)
    yield daemon
    await daemon.kill()


@pytest.fixture
async def standin(directory: Path) -> AsyncIterator[SimulatedKubelet]:
    kubelet = SimulatedKubelet(directory / "plugins", directory / "pr.sock")
    await kubelet.start()
    yield kubelet
    await kubelet.stop()
    assert not kubelet.panics
