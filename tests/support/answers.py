"""What answers for a resource of which nothing is asked."""

from collections.abc import Sequence

from devhost.model.allocation import Allocation


class Nobody:
    """Answers nothing."""

    name = "example.com/a"
    pre_start_required = False

    async def allocate(self, advertised_ids: Sequence[str], *, pre_start: bool) -> Allocation:
        """Fail."""
        raise NotImplementedError

    def observe_allocate(self, result: str, seconds: float) -> None:
        """Fail."""
        raise NotImplementedError

    async def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Fail."""
        raise NotImplementedError

    async def prepare(self, advertised_ids: Sequence[str]) -> None:
        """Fail."""
        raise NotImplementedError
