"""The base class of plugins: a resource whose devices come from code."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Unpack

from devhost.library.device import Device
from devhost.library.options import Options, declared
from devhost.model.allocation import Allocation

INTERVAL_S: Final = 30.0
_INTERVAL_MIN_S: Final = 0.1


class DevicePlugin:
    """One resource, served by `devhost.serve`.

    Only ``devices`` must be overridden. All methods are called in threads; ``devices`` and
    ``refresh`` are never called concurrently. A method that raises or hangs affects only this
    resource.

    Attributes:
        resource: The resource with its options.
        interval: Seconds between calls of ``devices`` if `changed` is not called earlier.
        warnings: Warnings about the options.
        root: The directory where the host's files are mounted (``--root``); set when the plugin is
            served. The paths of devices and allocations are the host's, without it.
        on_changed: Called by `changed`; set when the plugin is served.
    """

    def __init__(
        self, name: str, *, interval: float = INTERVAL_S, **options: Unpack[Options]
    ) -> None:
        """Declare the resource.

        Args:
            name: The extended resource name, such as ``example.com/disk``.
            interval: Seconds between calls of ``devices``, 0.1 to 30.
            options: The options of a resource in YAML but ``sources``, in snake case, such as
                ``max_per_container=1``.

        Raises:
            TypeError: There is no such option.
            ValueError: The name or a value is invalid; the message says what would be right.
        """
        if not _INTERVAL_MIN_S <= interval <= INTERVAL_S:
            raise ValueError(f"{name}: interval: should be 0.1 to 30 seconds, not {interval}")
        self.interval = interval
        self.resource, self.warnings = declared(name, options)
        self.root = Path("/")
        self.on_changed: Callable[[], None] = _ignore

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.resource.name

    def devices(self) -> Iterable[Device | str]:
        """Return all devices that are there now, unhealthy ones with a reason.

        Called at the start, after each `changed`, and every ``interval`` seconds; may take 10 s.
        If it raises, the known devices are unhealthy until a later call succeeds.

        Returns:
            Devices, or strings: the IDs of healthy tokens. A known device that is left out counts
            as unplugged.
        """
        raise NotImplementedError(f"{type(self).__name__} must define devices()")

    def allocate(self, devices: Sequence[Device]) -> Allocation | None:  # noqa: ARG002
        """Return what a container receives for its devices; may take 4 s.

        An exception fails the pod permanently, with its message.

        Args:
            devices: The container's distinct devices, in natural order of their IDs.

        Returns:
            Everything that it receives; ``None``: each node under its own name, and what the
            option ``allocate`` declares.
        """
        return None

    def preferred(
        self,
        available: Sequence[str],  # noqa: ARG002
        must_include: Sequence[str],  # noqa: ARG002
        size: int,  # noqa: ARG002
    ) -> Sequence[str] | None:
        """Return which of the free devices a container should get; may take 4 s.

        After an exception or an invalid result kubelet chooses.

        Args:
            available: Advertised IDs; with ``replicas`` those of shares, such as ``a::0``.
            must_include: The IDs that the result must contain.
            size: The number of IDs that the result must have.

        Returns:
            The chosen IDs; ``None``: by the option ``prefer``.
        """
        return None

    def pre_start(self, devices: Sequence[Device]) -> None:
        """Prepare a container's devices before each start of it; may take 28 s.

        An exception prevents the start, with its message; kubelet tries again.
        """

    def refresh(self) -> None:
        """Called before the first call of ``devices``, and again after each restart of kubelet.

        ``devices`` is called next. Both together may take 10 s.
        """

    def destroy(self) -> None:
        """Called once, when the plugin is no longer served; may take 5 s.

        Not called when kubelet restarts: only the registration is renewed then.
        """

    def changed(self) -> None:
        """Request a call of ``devices``; may be called from any thread at any time."""
        self.on_changed()


class FunctionPlugin(DevicePlugin):
    """A plugin made of a function that returns the devices."""

    def __init__(
        self,
        name: str,
        get_devices: Callable[[], Iterable[Device | str]],
        *,
        interval: float = INTERVAL_S,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(name, interval=interval, **options)
        self._get_devices = get_devices

    def devices(self) -> Iterable[Device | str]:
        """Call the function."""
        return self._get_devices()


def _ignore() -> None:
    """Do nothing: the plugin is not served yet."""
