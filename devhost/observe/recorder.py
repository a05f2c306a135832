"""What is counted when it happens; the rest is read off the host when somebody asks."""


class Recorder:
    """Is told of what happens; this one keeps nothing.

    All methods belong to the event loop and return at once.
    """

    def registration(self, resource: str, *, ok: bool) -> None:
        """Note a registration that the kubelet completed, or one that failed."""

    def allocated(self, resource: str, result: str, seconds: float) -> None:
        """Note an Allocate that has ended.

        Args:
            resource: The resource's name.
            result: One of `devhost.kubelet.servicer.RESULTS`.
            seconds: How long it took.
        """

    def looked(self, resource: str, seconds: float, *, failed: bool) -> None:
        """Note a look at the host, and whether a source could not be read."""
