"""A plugin's methods: what they return is checked, and what they raise becomes a text."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from devhost.errors import DevhostError
from devhost.library.plugin import Device, DevicePlugin
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.device import Cause, Skipped
from devhost.model.values import NUMA_NODE_MAX, SHARES_MAX, permissions_problem

_T = TypeVar("_T")

_TEXT_MAX: Final = 500
_LOG: Final = logging.getLogger(__name__)

Devices = tuple[Sequence[Device], Sequence[Skipped]]
"""The devices that can be offered, and the items of the result of ``devices`` that cannot be."""


class CallError(DevhostError):
    """A method raised, or returned an invalid result; the message says which."""


class PluginMethods:
    """The methods of a plugin. They block, may be called from any thread, and raise `CallError`."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin, self.interval = plugin, plugin.interval
        self.prepares = defines(plugin, "pre_start")
        self.refresh_due = False  # ``refresh`` is called before the next call of ``devices``
        self._logged: dict[str, str] = {}  # the last error, by method

    def devices(self) -> Devices:
        """Return the devices."""
        if self.refresh_due:
            self.refresh_due = False
            with contextlib.suppress(CallError):  # logged
                self.call("refresh", self._plugin.refresh)
        return self.call("devices", lambda: _split_devices(self._plugin.devices()))

    def allocate(self, devices: Sequence[Device]) -> Allocation | None:
        """Return what a container receives; ``None``: what the options declare."""
        return self.call("allocate", lambda: _check_allocation(self._plugin.allocate(devices)))

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...] | None:
        """Return which IDs a container should get; ``None``: by the option ``prefer``."""
        arguments = tuple(available), tuple(must_include), size
        return self.call(
            "preferred", lambda: _check_choice(self._plugin.preferred(*arguments), available, size)
        )

    def call(self, method: str, work: Callable[[], _T]) -> _T:
        """Return the result of work that calls a method of the plugin."""
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (also SystemExit: the plugin must not end the process)
            returned = isinstance(error, CallError)
            text = f"{method}() {error if returned else f'raised {_describe(error)}'}"
            repeated = self._logged.get(method) == text
            self._logged[method] = text
            _LOG.log(
                logging.DEBUG if repeated else logging.ERROR,
                "plugin failed",
                exc_info=None if returned else error,
                extra={"fields": {"resource": self._plugin.name, "reason": text}},
            )
            raise CallError(text) from None
        self._logged.pop(method, None)
        return result


def defines(plugin: DevicePlugin, method: str) -> bool:
    """Return whether a plugin has a method of its own, of its class or given as a function."""
    defined = getattr(plugin, method)
    return getattr(defined, "__func__", defined) is not getattr(DevicePlugin, method)


# ── results ──


def _split_devices(result: Iterable[Device | str]) -> Devices:
    """Check what ``devices`` returned: all of it, then each item."""
    if isinstance(result, str):
        raise CallError("returned a str, not a list of Devices or IDs")
    items = list(itertools.islice(result, SHARES_MAX + 1))
    if len(items) > SHARES_MAX:
        raise CallError(f"returned more than {SHARES_MAX} devices")
    devices, skipped = [], []
    for item in items:
        device = Device(item) if isinstance(item, str) else item
        if problem := _device_problem(device):
            shown = device.id if isinstance(device, Device) else device
            candidate = _brief(str(shown) or repr(shown))
            skipped.append(Skipped.because(Cause.CODE, candidate, problem))
        else:
            devices.append(device)
    return devices, skipped


def _device_problem(item: object) -> str | None:
    if not isinstance(item, Device):
        return "not a Device or an ID (a str)"
    if not all(isinstance(text, str) for text in (item.id, item.reason or "", *item.paths)):
        return "its id, reason and paths should be of type str"
    if not all(type(number) is int and 0 <= number <= NUMA_NODE_MAX for number in item.numa_nodes):
        return f"numa_nodes: {item.numa_nodes} should be numbers of NUMA nodes"
    if len(item.id) > names.DEVICE_ID_MAX:
        return f"its ID has {len(item.id)} characters; at most {names.DEVICE_ID_MAX} are allowed"
    return names.id_problem(item.id) or next(
        filter(None, map(names.path_problem, item.paths)), None
    )


def _check_allocation(answer: Allocation | None) -> Allocation | None:
    """Check what ``allocate`` returned: kubelet does not."""
    if answer is None:
        return None
    if not isinstance(answer, Allocation):
        raise CallError(f"returned a {type(answer).__name__}; return a devhost.Allocation or None")
    problems = [
        *map(names.env_name_problem, answer.envs),
        *map(names.text_problem, answer.envs.values()),
        *map(names.annotation_key_problem, answer.annotations),
        *map(names.text_problem, answer.annotations.values()),
        *map(names.cdi_name_problem, answer.cdi_devices),
        *(names.path_problem(spec.host_path) for spec in answer.specs),
        *(names.path_problem(spec.container_path) for spec in answer.specs),
        *(permissions_problem(device.permissions) for device in answer.devices),
        *(_read_only_problem(mount.read_only) for mount in answer.mounts),
    ]
    if problem := next(filter(None, problems), None):
        raise CallError(f"returned an invalid Allocation: {problem}")
    return answer


def _check_choice(
    chosen: Iterable[str] | None, available: Collection[str], size: int
) -> tuple[str, ...] | None:
    """Check what ``preferred`` returned; kubelet would fill it up at random."""
    if chosen is None:
        return None
    ids = tuple(chosen)
    if len(ids) != size or len(set(ids) & set(available)) != size:
        raise CallError(f"returned {_brief(repr(chosen))}, not {size} of the available IDs")
    return ids


def _read_only_problem(value: object) -> str | None:
    return None if isinstance(value, bool) else f"read_only: {value!r} should be True or False"


def _describe(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return _brief(f"{name}: {error}")
    except Exception:  # noqa: BLE001 (of the author's class)
        return f"{name}, which has no text"


def _brief(text: str) -> str:
    return names.printable(text[:_TEXT_MAX])
