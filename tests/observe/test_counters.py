"""Counting in plain numbers says what Prometheus' own counters would."""

import math
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from devhost.kubelet.servicer import RESULTS
from devhost.model.state import State
from devhost.observe.counters import Counters, Durations
from devhost.observe.metric_values import HostMetrics, ResourceMetrics
from devhost.observe.metrics import text

NAMES: Final = ("example.com/a", "example.com/b")
FACTS: Final = HostMetrics(
    "1",
    tuple(ResourceMetrics(name, State.REGISTERED, True, 1, 0, 1, 0, 1, 1) for name in NAMES),
    None,
    0,
    0,
    0,
)
BOUNDS: Final = (0.001, 0.0025, 0.5, 1, 30)
SECONDS: Final = st.sampled_from((0.0, *BOUNDS, 1e9)) | st.floats(0, 100)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def told(counters: Counters) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text(counters, FACTS).decode())
        for sample in family.samples
        if sample.name.startswith(("devhost_alloc", "devhost_disc", "devhost_reg"))
        and sample.name != "devhost_registered"
    }


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(tuple(RESULTS)), SECONDS)),
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans())),
)
@settings(max_examples=50)
def test_counts_are_those_of_counters(
    allocations: list[tuple[str, str, float]], others: list[tuple[str, bool]]
) -> None:
    counters, registry = Counters(RESULTS), CollectorRegistry()
    plain = Counter("devhost_allocations", "-", ["resource_name", "result"], registry=registry)
    errors = Counter("devhost_discovery_errors", "-", ["resource_name"], registry=registry)
    registered = Counter(
        "devhost_registrations", "-", ["resource_name", "result"], registry=registry
    )
    for name in NAMES:
        for result in RESULTS:
            plain.labels(name, result)
        for result in ("ok", "error"):
            registered.labels(name, result)
        errors.labels(name)
    for name, result, seconds in allocations:
        counters.allocated(name, result, seconds)
        plain.labels(name, result).inc()
    for name, good in others:
        counters.registration(name, ok=good)
        registered.labels(name, "ok" if good else "error").inc()
        counters.scanned(name, 0.1, failed=not good)
        errors.labels(name).inc(not good)
    expected = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    shown = {key: value for key, value in told(counters).items() if key[0].endswith("_total")}
    assert shown == expected


@given(st.lists(SECONDS))
def test_durations_are_those_of_a_histogram(seconds: list[float]) -> None:
    """Of the buckets, too: a bound belongs to the bucket below it."""
    durations = Durations(BOUNDS)
    histogram = Histogram("x", "-", buckets=BOUNDS, registry=None)
    for one in seconds:
        durations.add(one)
        histogram.observe(one)
    samples = {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in histogram.collect()
        for sample in family.samples
    }
    below = 0
    for bound, count in zip((*BOUNDS, math.inf), durations.counts, strict=True):
        below += count
        le = "+Inf" if math.isinf(bound) else str(float(bound))
        assert samples["x_bucket", le] == below
    assert samples["x_count", ""] == below
    assert samples["x_sum", ""] == durations.total
