"""The class to subclass: a resource whose devices and answers come from code."""

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

    Only ``devices`` must be overridden. All methods are called in threads, never in two at a
    time for ``devices`` and ``refresh``; a method that raises or hangs hurts this resource alone.

    Attributes:
        resource: The declaration, as YAML would have it.
        interval: Seconds between two calls of ``devices``, if `changed` is not called before.
        warnings: What is doubtful about the options.
        root: Where the host's files are seen, as ``--root`` says; set when the plugin is served.
            The paths of devices and answers are the host's own, without it.
        on_changed: Set by whoever serves the plugin: what `changed` calls.
    """

    def __init__(
        self, name: str, *, interval: float = INTERVAL_S, **options: Unpack[Options]
    ) -> None:
        """Declare the resource.

        Args:
            name: The extended resource name, such as ``example.com/disk``.
            interval: Seconds between two calls of ``devices``, 0.1 to 30.
            options: As beside ``sources`` in YAML, in snake case: ``max_per_container=1``.

        Raises:
            TypeError: There is no such option.
            ValueError: The name or a value is wrong; the text says what would be right.
        """
        if not _INTERVAL_MIN_S <= interval <= INTERVAL_S:
            raise ValueError(f"{name}: interval: should be 0.1 to 30 seconds, not {interval}")
        self.interval = interval
        self.resource, self.warnings = declared(name, options)
        self.root = Path("/")
        self.on_changed: Callable[[], None] = _nobody

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.resource.name

    def devices(self) -> Iterable[Device | str]:
        """Return all devices that are there now, the unhealthy ones with their reason.

        Called at the start, after each `changed` and each ``interval``; may take 10 s. While
        it raises, the devices known so far are unhealthy.

        Returns:
            Devices, or texts: the IDs of healthy tokens. One that is left out was unplugged.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define devices()")

    def allocate(self, devices: Sequence[Device]) -> Allocation | None:  # noqa: ARG002
        """Return what a container receives for its devices; may take 4 s.

        An exception fails the pod for good, with its text.

        Args:
            devices: The container's distinct devices, in natural order of their IDs.

        Returns:
            All that it receives; ``None`` for what is declared: each node under its own name,
            and what the option ``allocate`` says.
        """
        return None

    def preferred(
        self,
        available: Sequence[str],  # noqa: ARG002
        must_include: Sequence[str],  # noqa: ARG002
        size: int,  # noqa: ARG002
    ) -> Sequence[str] | None:
        """Return which of the free devices a container should get; may take 4 s.

        An exception or a wrong answer leaves the choice to the kubelet.

        Args:
            available: Advertised IDs; with ``replicas`` they are of shares, such as ``a::0``.
            must_include: Those that have to be in the answer.
            size: How many it has to have.

        Returns:
            The chosen IDs; ``None`` to choose by the option ``prefer``.
        """
        return None

    def pre_start(self, devices: Sequence[Device]) -> None:
        """Prepare a container's devices before each of its starts; may take 28 s.

        An exception keeps the container from starting, with its text; the kubelet tries again.
        """

    def refresh(self) -> None:
        """Called when the plugin's server starts, and when it is registered again.

        That is before the first call of ``devices``, and after each restart of the kubelet, when
        ``devices`` is called next. Both together may take 10 s.
        """

    def destroy(self) -> None:
        """Called once, when the plugin is served no longer; may take 5 s.

        Not when the kubelet restarts: the devices stay, and only the registration is renewed.
        """

    def changed(self) -> None:
        """Have ``devices`` called again now; may be called from any thread, at any time."""
        self.on_changed()


class FunctionPlugin(DevicePlugin):
    """A plugin of a function that returns the devices."""

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
        """Return what the function returns."""
        return self._get_devices()


def _nobody() -> None:
    """Do nothing: the first look comes anyway."""
