"""Recorded claims while nobody asks for them: their devices move, and they end unnoticed."""

import asyncio
import logging
from typing import Final

from devhost.backends.backend import ClaimRecords
from devhost.backends.dra.api_client import ApiClient, ApiError, reading_answer
from devhost.backends.dra.claim_servicer import attempt
from devhost.backends.dra.prepared_claims import ClaimName, PreparedClaims
from devhost.backends.share_ids import offered_id
from devhost.model.records import ClaimRecord
from devhost.watch.threads import wait_at_most

_LOOK_S: Final = 3600.0  # between two looks for claims that have gone
_CONFIRM_S: Final = 60.0  # at most, for lists of kubelet without their pods
_POLL_S: Final = 1.0
_LOG: Final = logging.getLogger(__name__)


class ClaimUpkeep:
    """Renews the records of devices that have moved; ends those of claims that have gone.

    Kubelet tells of the end of a claim, unless it lost its memory: then the API server says that
    there is none, or that it has no devices, and kubelet's list of pods shows nobody who has them.
    """

    def __init__(self, api: ApiClient, claims: PreparedClaims) -> None:
        self._api, self._claims, self._records = api, claims, claims.records
        self._resources: set[str] = set()  # that are to be compared
        self._scanned = asyncio.Event()

    def compare(self, resource: str) -> None:
        """Renew, soon, the records of this boot whose devices a scan has found elsewhere."""
        self._resources.add(resource)
        self._scanned.set()

    async def run(self) -> None:
        """Renew and end records until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew_moved())
            tasks.create_task(self._end_gone())

    async def _renew_moved(self) -> None:
        while True:
            await self._scanned.wait()
            self._scanned.clear()
            resources, self._resources = self._resources, set()
            for record in [*self._records]:
                if record.boot == self._records.table.boot and not resources.isdisjoint(
                    record.resources
                ):
                    await attempt("renewing", ClaimName.of(record), self._claims.renew(record))

    async def _end_gone(self) -> None:
        """End the claims whose devices no pod has, and that have gone.

        They are looked for at start, hourly, when a claim was given what another one has, and all
        the time while a resource of theirs is not offered by DRA, as it may wait for them.
        """
        clock, table = asyncio.get_running_loop().time, self._records.table
        while True:
            self._claims.conflict.clear()
            since, pending = clock(), [*self._records.of_all_drivers()]
            while pending and clock() < since + _CONFIRM_S:
                for record in [record for record in pending if _is_unused(record, table, since)]:
                    pending.remove(record)
                    if record.id in table.by_id and await self._is_gone(record):
                        fields = {"claim": record.shown, "uid": record.claim}
                        _LOG.warning("claim has gone, and no pod has it", extra={"fields": fields})
                        await attempt("ending", ClaimName.of(record), self._claims.end(record))
                await asyncio.sleep(_POLL_S)
            pause = _LOOK_S if self._claims.are_offered() else _POLL_S
            await wait_at_most(pause, self._claims.conflict.wait)

    async def _is_gone(self, record: ClaimRecord) -> bool:
        """Whether the API server has no such claim, or none that has devices.

        Never because of an error.
        """
        try:
            content = await self._api.call("GET", ClaimName.of(record).path)
            with reading_answer():
                is_allocated = bool((content.get("status") or {}).get("allocation"))
                return not is_allocated or bool(content["metadata"]["uid"] != record.claim)
        except ApiError as error:
            return error.status == 404


def _is_unused(record: ClaimRecord, table: ClaimRecords, since: float) -> bool:
    """Whether no pod has a device of a claim since a moment."""
    return all(
        table.confirmed_free(device.resource, offered_id(device.id), since)
        for device in record.devices
    )
