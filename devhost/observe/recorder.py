"""The events that are counted; everything else in the metrics is read when they are requested."""


class Recorder:
    """Receives the events that are counted; this one ignores them.

    All methods are called on the event loop and return immediately.
    """

    def registration(self, resource: str, *, ok: bool) -> None:
        """Record a registration with kubelet, successful or not."""

    def allocated(self, resource: str, result: str, seconds: float) -> None:
        """Record an Allocate call that has ended.

        Args:
            resource: The resource's name.
            result: One of `devhost.kubelet.servicer.RESULTS`.
            seconds: How long it took.
        """

    def scanned(self, resource: str, seconds: float, *, failed: bool) -> None:
        """Record a scan, and whether a source could not be read."""
