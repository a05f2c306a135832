"""The metrics of a driver: its slices, its claims, and what it has written."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devhost.backends.dra.api_client import ApiClient
from devhost.backends.dra.claim_servicer import DraServicer
from devhost.backends.dra.prepared_claims import PreparedClaims
from devhost.backends.dra.slices import NodeSlices


class DraMetrics(Collector):
    """Reads the metrics of a driver each time that they are asked for."""

    def __init__(
        self, slices: NodeSlices, claims: PreparedClaims, api: ApiClient, servicer: DraServicer
    ) -> None:
        self._slices, self._claims, self._api, self._servicer = slices, claims, api, servicer

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        slices, claims = len(self._slices), len([*self._claims])
        yield GaugeMetricFamily("devhost_dra_slices", "ResourceSlices of this node.", slices)
        yield GaugeMetricFamily("devhost_dra_claims", "Claims that are prepared.", claims)
        text = "Writes of ResourceSlices, by HTTP status."
        writes = CounterMetricFamily("devhost_dra_writes", text, labels=("verb", "code"))
        for (verb, code), count in self._api.writes.items():
            writes.add_metric((verb, str(code)), count)
        yield writes
        yield from self._servicer.seconds.collect()
