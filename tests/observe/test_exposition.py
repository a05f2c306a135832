"""The text of the metrics: what the client library of Prometheus would write, and reads."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from devhost.observe.exposition import Family
from devhost.observe.process_metrics import process_families

VALUES = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**60)
SERIES = st.dictionaries(st.tuples(st.text(), st.text()), VALUES, max_size=4)


class Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self.families = families

    def collect(self) -> Sequence[Metric]:
        return self.families


def text_of(*families: Family) -> str:
    return "".join(line for family in families for line in family)


def samples(text: str) -> list[tuple[str, str, str, list[object]]]:
    """Return what Prometheus' own client reads."""
    return [
        (one.name, one.type, one.documentation, [*one.samples])
        for one in text_string_to_metric_families(text)
    ]


@given(gauge=SERIES, counter=SERIES)
def test_as_the_library_writes_it(
    gauge: dict[tuple[str, str], float], counter: dict[tuple[str, str], float]
) -> None:
    labels = ("z", "a")
    ours = Family("gauge", "g", "About.", *labels), Family("counter", "c_total", "More.", *labels)
    theirs = (
        GaugeMetricFamily("g", "About.", labels=labels),
        CounterMetricFamily("c", "More.", labels=labels),
    )
    gauges, counters = theirs
    for family, add, series in (
        (ours[0], gauges.add_metric, gauge),
        (ours[1], counters.add_metric, counter),
    ):
        for values, value in series.items():
            family.add(value, *values)
            add(values, value)
    assert samples(text_of(*ours)) == samples(generate_latest(Collected(theirs)).decode())


def test_a_histogram() -> None:
    ours = Family("histogram", "h", "About.", "name")
    ours.add_histogram((0.001, 0.5, 1), (2, 0, 3, 1), 12.5, "x")
    theirs = HistogramMetricFamily("h", "About.", labels=["name"])
    theirs.add_metric(["x"], [("0.001", 2), ("0.5", 2), ("1.0", 5), ("+Inf", 6)], 12.5)
    assert text_of(ours) == generate_latest(Collected([theirs])).decode()


def test_a_series_has_all_labels() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Family("gauge", "g", "About.", "one", "two").add(1, "only")


def test_this_process() -> None:
    """The same metrics as the library has, with values that do not change from one to the next."""
    ours = {one.name: one for one in text_string_to_metric_families(text_of(*process_families()))}
    text = generate_latest(Collected([*ProcessCollector(registry=None).collect()])).decode()
    theirs = {one.name: one for one in text_string_to_metric_families(text)}
    assert {key: (one.type, one.documentation) for key, one in ours.items()} == {
        key: (one.type, one.documentation) for key, one in theirs.items()
    }

    def value(families: dict[str, Metric], name: str) -> float:
        (sample,) = families[name].samples
        return float(sample.value)

    assert value(ours, "process_max_fds") == value(theirs, "process_max_fds")
    assert value(ours, "process_open_fds") == value(theirs, "process_open_fds")
    started = [value(each, "process_start_time_seconds") for each in (ours, theirs)]
    assert abs(started[0] - started[1]) <= 1.5  # the library knows the boot's second
    again = {one.name: one for one in text_string_to_metric_families(text_of(*process_families()))}
    assert value(again, "process_start_time_seconds") == started[0]
    for name in ("process_resident_memory_bytes", "process_virtual_memory_bytes"):
        assert value(ours, name) == pytest.approx(value(theirs, name), rel=0.1)
