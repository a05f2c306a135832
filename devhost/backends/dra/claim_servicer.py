"""The servicer that prepares claims for kubelet: messages ↔ values, and the log lines.

Every claim has an answer of its own, an error too: kubelet tries again and again, and shows the
text in an event of the pod.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from prometheus_client import Histogram

from devhost.api.dra.v1 import dra_pb2 as pb
from devhost.api.dra.v1 import dra_pb2_grpc as pb_grpc
from devhost.backends.dra.prepared_claims import ClaimName, PreparedClaims
from devhost.errors import DevhostError
from devhost.model.names import printable
from devhost.model.records import ClaimRecord

_TIMEOUT_S: Final = 40.0  # kubelet waits for 45 s
_TEXT_MAX: Final = 1000
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RESULTS: Final = {True: "ok", False: "error"}
_LOG: Final = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class DraServicer(pb_grpc.DRAPluginServicer):
    """Prepares and unprepares claims."""

    def __init__(self, claims: PreparedClaims) -> None:
        self._claims = claims
        self.seconds = Histogram(
            "devhost_dra_prepare_seconds",
            "Duration of preparing a claim, by result.",
            ("result",),
            registry=None,
            buckets=_BOUNDS,
        )
        for result in _RESULTS.values():  # Prometheus sees no increase in what begins at 1
            self.seconds.labels(result)

    async def NodePrepareResources(  # noqa: N802 (the protocol's name)
        self, request: pb.NodePrepareResourcesRequest, _context: object
    ) -> pb.NodePrepareResourcesResponse:
        """Prepare claims, each by itself."""
        answers = await _for_each(request.claims, self._prepare)
        return pb.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(  # noqa: N802
        self, request: pb.NodeUnprepareResourcesRequest, _context: object
    ) -> pb.NodeUnprepareResourcesResponse:
        """Unprepare claims; one that is not known is so already."""
        answers = await _for_each(request.claims, self._unprepare)
        return pb.NodeUnprepareResourcesResponse(claims=answers)

    async def _prepare(self, claim: ClaimName) -> pb.NodePrepareResourceResponse:
        clock = asyncio.get_running_loop().time
        began = clock()
        record, problem = await attempt("preparing", claim, self._claims.prepare(claim))
        seconds = clock() - began
        self.seconds.labels(_RESULTS[record is not None]).observe(seconds)
        if record is None:
            return pb.NodePrepareResourceResponse(error=problem)
        fields = {
            "claim": claim.shown,
            "uid": claim.uid,
            "devices": [f"{device.resource} {device.id}" for device in record.devices],
            "seconds": round(seconds, 4),
        }
        _LOG.info("claim prepared", extra={"fields": fields})
        return pb.NodePrepareResourceResponse(
            devices=[
                pb.Device(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi,
                    share_id=device.share,
                )
                for device in record.devices
            ]
        )

    async def _unprepare(self, claim: ClaimName) -> pb.NodeUnprepareResourceResponse:
        record, problem = await attempt("unpreparing", claim, self._claims.unprepare(claim.uid))
        if record is not None:
            fields = {"claim": record.shown, "uid": claim.uid}
            _LOG.info("claim unprepared", extra={"fields": fields})
        return pb.NodeUnprepareResourceResponse(error=problem)


async def _for_each(
    claims: Iterable[pb.Claim], work: Callable[[ClaimName], Awaitable[_Answer]]
) -> dict[str, _Answer]:
    uids = [claim.uid for claim in claims]
    names = [ClaimName(claim.namespace, claim.name, claim.uid, uids) for claim in claims]
    answers = await asyncio.gather(*map(work, names))
    return {name.uid: answer for name, answer in zip(names, answers, strict=True)}


async def attempt(
    action: str, claim: ClaimName, work: Awaitable[ClaimRecord | None]
) -> tuple[ClaimRecord | None, str]:
    """Return the record, or log and return why that failed."""
    limit = asyncio.timeout(_TIMEOUT_S)
    try:
        async with limit:
            return await work, ""
    except DevhostError as error:
        problem = str(error)
    except OSError as error:  # a TimeoutError, too, also of a file that is not written in time
        late = f"no answer in {_TIMEOUT_S:.0f} s"
        problem = late if limit.expired() else f"its CDI file: {error}"
    except Exception:  # noqa: BLE001 (logged; kubelet gets an answer)
        _LOG.exception("%s a claim failed unexpectedly", action)
        problem = "internal error"
    problem = printable(problem[:_TEXT_MAX])
    fields = {"claim": claim.shown, "uid": claim.uid, "reason": problem}
    _LOG.warning("%s a claim failed", action, extra={"fields": fields})
    return None, problem
