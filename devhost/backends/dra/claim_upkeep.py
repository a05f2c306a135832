"""Recorded claims while nobody asks for them: their devices move, and they end unnoticed."""

import asyncio
import contextlib
import logging
import math
from typing import Final

from devhost.backends.dra import claim_content
from devhost.backends.dra.api_client import ApiClient, ApiError, reading_answer
from devhost.backends.dra.prepared_claims import ClaimName, PreparedClaims
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError
from devhost.model.claim_record import ClaimRecord
from devhost.model.device import Snapshot

_LOOK_S: Final = 3600.0  # between two looks for claims that have gone
_CONFIRM_S: Final = 5.0
_LOG: Final = logging.getLogger(__name__)


class ClaimUpkeep:
    """Renews the records of devices that have moved; ends those of claims that have gone.

    Kubelet tells of the end of a claim, unless it lost its memory: then the API server says that
    there is none, and kubelet's list of pods shows nobody who has its devices.
    """

    def __init__(self, api: ApiClient, claims: PreparedClaims) -> None:
        self._api, self._claims = api, claims
        claims.on_conflict = self._look_soon
        self._moved: set[str] = set()  # records by ID
        self._gone: dict[str, float] = {}  # since when that is known of a record
        self._look_at = -math.inf  # on the event loop's clock
        self._due = asyncio.Event()

    def follow(self, resource: str, snapshot: Snapshot) -> None:
        """Renew, soon, the records of this boot whose devices a scan has found elsewhere."""
        records = self._claims.records
        for record in self._claims.of_resource(resource):
            for devices in claim_content.members(record).values():
                for name, device in devices.items():
                    present = snapshot.devices.get(offered_id(device.id).device)
                    recorded = claim_content.numbers(record.entries.get(name, {}))
                    if (
                        records is not None
                        and (device.resource, record.boot) == (resource, records.boot)
                        and present is not None
                        and present.is_present
                        and not recorded <= {*present.numbers.values()}
                    ):
                        self._moved.add(record.id)
                        self._due.set()

    async def run(self) -> None:
        """Renew and end records until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            self._due.clear()
            await self._renew_moved()
            if clock() >= self._look_at:
                self._look_at = clock() + _LOOK_S
                records = [record for record in self._claims if await self._is_gone(record)]
                now, known = clock(), self._gone
                self._gone = {record.id: known.get(record.id, now) for record in records}
            await self._end_gone()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CONFIRM_S if self._gone else _LOOK_S):
                    await self._due.wait()

    def _look_soon(self) -> None:
        self._look_at = -math.inf
        self._due.set()

    async def _renew_moved(self) -> None:
        moved, self._moved = self._moved, set()
        for record in [record for record in self._claims if record.id in moved]:
            try:
                await self._claims.renew(record)
            except (AllocationError, OSError) as error:
                _log("claim not renewed", record, str(error))

    async def _is_gone(self, record: ClaimRecord) -> bool:
        """Whether the API server says that there is no such claim; never because of an error."""
        name = ClaimName(record.namespace, record.name, record.claim)
        try:
            content = await self._api.call("GET", name.path)
            with reading_answer():
                return bool(content["metadata"]["uid"] != name.uid)
        except ApiError as error:
            return error.status == 404

    async def _end_gone(self) -> None:
        """End the records of claims that have gone and whose devices no pod has."""
        present = {record.id: record for record in self._claims}
        self._gone = {key: since for key, since in self._gone.items() if key in present}
        for key, since in tuple(self._gone.items()):
            if self._is_unused(present[key], since):
                _log("claim ended", present[key], "it has gone, and no pod has its devices")
                await self._claims.unprepare(present[key].claim)
                del self._gone[key]

    def _is_unused(self, record: ClaimRecord, since: float) -> bool:
        records = self._claims.records
        return records is not None and all(
            records.confirmed_free(device.resource, offered_id(device.id), since)
            for device in record.devices
        )


def _log(message: str, record: ClaimRecord, reason: str) -> None:
    fields = {"claim": record.shown, "uid": record.claim, "reason": reason}
    _LOG.warning("%s", message, extra={"fields": fields})
