"""The answers for a resource of which a test asks nothing."""

from collections.abc import Sequence

from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation


class Nobody:
    """Answers nothing."""

    name = "example.com/a"
    pre_start_required = False

    async def allocate(self, ids: Sequence[OfferedId], *, pre_start: bool) -> Allocation:
        raise NotImplementedError

    def observe_allocate(self, result: str, seconds: float) -> None:
        raise NotImplementedError

    async def prefer(
        self, available: Sequence[OfferedId], must_include: Sequence[OfferedId], size: int
    ) -> Sequence[OfferedId]:
        raise NotImplementedError

    async def prepare(self, ids: Sequence[OfferedId], *, fresh: bool = False) -> None:
        raise NotImplementedError
