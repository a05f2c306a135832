"""A plugin's methods: called with time limits, and with checked results."""

import contextlib
import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from devhost.errors import DevhostError
from devhost.library.plugin import Device, DevicePlugin
from devhost.model import names
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.values import SHARES_MAX
from devhost.watch.threads import in_time

# Less than the 5 s after which Allocate fails with an error that does not name the method.
ANSWER_S: Final = 4.0
DESTROY_S: Final = 5.0
UNRETURNED_MAX: Final = 8  # timed-out calls of one method, each of which occupies a thread
_TEXT_MAX: Final = 500
_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")
Item = tuple[object, str | None]


class CallError(DevhostError):
    """A method raised, returned an invalid result, or timed out; the message says which."""


class PluginMethods:
    """The methods of a plugin. They block, may be called from any thread, and raise `CallError`."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin, self.interval = plugin, plugin.interval
        self._refresh_due = threading.Event()
        self._scanning: str | None = None  # the method that is running in `devices`
        self._late: dict[str, list[threading.Event]] = defaultdict(list)
        self._late_lock = threading.Lock()
        self._logged: dict[str, str] = {}  # the last error, by method

    @property
    def prepares(self) -> bool:
        """Whether ``pre_start`` is overridden."""
        return self._overrides("pre_start")

    @property
    def waiting_for_devices(self) -> str | None:
        """The reason to report while a call of ``devices`` has not returned."""
        return f"{self._scanning}() has not returned yet" if self._scanning else None

    def refresh_first(self) -> None:
        """Call ``refresh`` before the next call of ``devices``."""
        self._refresh_due.set()

    def devices(self) -> list[Item]:
        """Return the devices, each with its error if it is invalid. Has no time limit."""
        try:
            if self._refresh_due.is_set():
                self._refresh_due.clear()
                self._scanning = "refresh"
                with contextlib.suppress(CallError):  # logged
                    self._call_here("refresh", self._plugin.refresh)
            self._scanning = "devices"
            return self._call_here("devices", lambda: _items(self._plugin.devices()))
        finally:
            self._scanning = None

    def allocate(self, devices: Sequence[Device]) -> Allocation | None:
        """Return what a container receives; ``None``: what the options declare."""
        if not self._overrides("allocate"):
            return None
        return self._call("allocate", lambda: _checked(self._plugin.allocate(devices)), ANSWER_S)

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...] | None:
        """Return which IDs a container should get; ``None``: by the option ``prefer``."""
        if not self._overrides("preferred"):
            return None

        def work() -> tuple[str, ...] | None:
            chosen = self._plugin.preferred(tuple(available), tuple(must_include), size)
            return None if chosen is None else _chosen(chosen, available, size)

        return self._call("preferred", work, ANSWER_S)

    def pre_start(self, devices: Sequence[Device], within: float) -> None:
        """Prepare a container's devices, within a number of seconds."""
        self._call("pre_start", lambda: self._plugin.pre_start(devices), within)

    def destroy(self) -> None:
        """Call ``destroy``: the server has stopped."""
        self._call("destroy", self._plugin.destroy, DESTROY_S)

    def _overrides(self, method: str) -> bool:
        return getattr(type(self._plugin), method) is not getattr(DevicePlugin, method)

    def _call_here(self, method: str, work: Callable[[], T]) -> T:
        try:
            result = work()
        except CallError as error:
            text = f"{method}() {error}"
            self._log(method, text, None)
            raise CallError(text) from None
        except BaseException as error:  # noqa: BLE001 (also SystemExit: the plugin must not end the process)
            text = f"{method}() raised {_one_line(error)}"
            self._log(method, text, error)
            raise CallError(text) from None
        self._logged.pop(method, None)
        return result

    def _call(self, method: str, work: Callable[[], T], within: float) -> T:
        """Call a method in a thread; wait for so many seconds, but do not stop it."""
        with self._late_lock:
            late = self._late[method]
            late[:] = [one for one in late if not one.is_set()]
        if len(late) >= UNRETURNED_MAX:
            raise CallError(f"{method}() not called: {len(late)} earlier calls have not returned")
        returned = threading.Event()

        def run() -> T:
            try:
                return self._call_here(method, work)
            finally:
                returned.set()

        try:
            return in_time(run, max(within, 0.0))
        except TimeoutError:
            with self._late_lock:
                late.append(returned)
            text = f"{method}() did not return within {within:.3g} s"
            self._log(method, text, None)
            raise CallError(text) from None

    def _log(self, method: str, text: str, error: BaseException | None) -> None:
        repeated = self._logged.get(method) == text
        self._logged[method] = text
        fields = {"resource": self._plugin.name, "reason": text}
        level = logging.DEBUG if repeated else logging.ERROR
        _LOG.log(level, "plugin failed", exc_info=error, extra={"fields": fields})


# ── results ──


def described(value: object) -> str:
    """Return a value that is not valid, as messages show it."""
    try:
        return _brief(f"{type(value).__name__} {value!r}") if value is not None else "None"
    except Exception:  # noqa: BLE001 (a plugin's __repr__ may raise anything)
        return type(value).__name__


def _items(result: object) -> list[Item]:
    """Check what ``devices`` returned: all of it, then each item."""
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise CallError(f"returned {described(result)}, not a list of Devices or IDs")
    items = list(itertools.islice(result, SHARES_MAX + 1))
    if len(items) > SHARES_MAX:
        raise CallError(f"returned more than {SHARES_MAX} devices")
    devices = (Device(item) if isinstance(item, str) else item for item in items)
    return [(device, _device_problem(device)) for device in devices]


def _device_problem(item: object) -> str | None:
    if not isinstance(item, Device):
        return "not a Device or an ID (a str)"
    for number in item.numa_nodes:
        if type(number) is not int or number < 0:
            return f"numa_nodes: {described(number)} is not the number of a NUMA node"
    if item.reason is not None and not isinstance(item.reason, str):
        return f"reason: {described(item.reason)} is not a str"
    texts: list[_Text] = [("paths", path, names.path_problem) for path in item.paths]
    return _problem([("id", item.id, _id_problem), *texts])


def _id_problem(device_id: str) -> str | None:
    if len(device_id) > names.DEVICE_ID_MAX:
        return f"it has {len(device_id)} characters; at most {names.DEVICE_ID_MAX} are allowed"
    return names.id_problem(device_id)


def _checked(answer: object) -> Allocation | None:
    """Check what ``allocate`` returned."""
    if answer is not None and not isinstance(answer, Allocation):
        raise CallError(f"returned {described(answer)}, not an Allocation or None")
    if answer is not None and (problem := _problem(_texts(answer))):
        raise CallError(f"returned an invalid Allocation: {problem}")
    return answer


_Text = tuple[str, object, Callable[[str], str | None]]
"""Where a text is, the text, and what says what is wrong with it."""


def _problem(texts: Iterable[_Text]) -> str | None:
    for where, text, check in texts:
        problem = check(text) if isinstance(text, str) else f"{described(text)} is not a str"
        if problem:
            return f"{where}: {problem}"
    return None


def _texts(answer: Allocation) -> Iterator[_Text]:
    for key, value in answer.envs.items():
        yield from (("envs", key, names.env_name_problem), ("envs", value, names.text_problem))
    for key, value in answer.annotations.items():
        yield "annotations", key, names.annotation_key_problem
        yield "annotations", value, names.text_problem
    for name in answer.cdi_devices:
        yield "cdi_devices", name, names.cdi_name_problem
    for device in answer.devices:
        yield from _paths("devices", device, DeviceSpec)
        yield "devices", device.permissions, _permissions_problem
    for mount in answer.mounts:
        yield from _paths("mounts", mount, MountSpec)


def _paths(where: str, spec: object, kind: type[DeviceSpec | MountSpec]) -> Iterator[_Text]:
    if not isinstance(spec, kind):
        raise CallError(f"returned {where} with {described(spec)}, not a {kind.__name__}")
    yield where, spec.host_path, names.path_problem
    yield where, spec.container_path, names.path_problem


def _permissions_problem(permissions: str) -> str | None:
    if permissions and set(permissions) <= set("rwm"):
        return None
    return f"permissions {permissions!r} should be of the letters r, w, m"


def _chosen(chosen: object, available: Collection[str], size: int) -> tuple[str, ...]:
    """Check what ``preferred`` returned; kubelet would fill it up at random."""
    if isinstance(chosen, str) or not isinstance(chosen, Sequence):
        raise CallError(f"returned {described(chosen)}, not a list of IDs or None")
    if len(chosen) != size or len(set(map(repr, chosen))) != size:
        raise CallError(f"returned {described(chosen)}, not {size} different IDs")
    if unknown := [one for one in chosen if one not in available]:
        raise CallError(f"returned {described(unknown[0])}, which is not available")
    return tuple(chosen)


def _one_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (a plugin's class may raise anything)
        text = ""
    name = type(error).__name__
    return _brief(f"{name}: {text}" if text else name)


def _brief(text: str) -> str:
    return names.printable(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")
