"""The text in which Prometheus reads metrics, in the format 0.0.4.

Written here because the client library for Python takes 7 MiB, a sixth of a small host: it brings
HTTP servers and TLS.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


MetricKind = Literal["counter", "gauge", "histogram"]


class Family:
    """All series of one metric.

    Args:
        kind: Its type.
        name: Its name; that of a counter ends with ``_total``.
        about: What it is.
        labels: The names of its labels.
    """

    def __init__(self, kind: MetricKind, name: str, about: str, *labels: str) -> None:
        self._name, self._labels = name, labels
        self._lines = [f"# HELP {name} {about}\n", f"# TYPE {name} {kind}\n"]

    def add(self, value: float, *labels: str) -> None:
        """Add a series.

        Args:
            value: Its value.
            labels: The values of its labels.
        """
        self._add(self._name, dict(zip(self._labels, labels, strict=True)), value)

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: str
    ) -> None:
        """Add a histogram.

        Args:
            bounds: The upper bounds of its buckets, ascending, without infinity.
            counts: How many values are in each bucket, and in a last one.
            total: The sum of all values.
            labels: The values of its labels.
        """
        named = dict(zip(self._labels, labels, strict=True))
        for bound, count in zip((*bounds, math.inf), accumulate(counts), strict=True):
            self._add(f"{self._name}_bucket", {**named, "le": _number(bound)}, count)
        self._add(f"{self._name}_count", named, sum(counts))
        self._add(f"{self._name}_sum", named, total)

    def _add(self, name: str, labels: dict[str, str], value: float) -> None:
        pairs = (f'{label}="{text.translate(_ESCAPED)}"' for label, text in sorted(labels.items()))
        shown = f"{{{','.join(pairs)}}}" if labels else ""
        self._lines.append(f"{name}{shown} {_number(value)}\n")

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)


def single(kind: MetricKind, name: str, about: str, value: float) -> Family:
    """Return a metric that has one series, without labels."""
    family = Family(kind, name, about)
    family.add(value)
    return family


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))
