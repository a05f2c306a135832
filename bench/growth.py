"""How the figures grow with the number of resources."""

from typing import Final

from bench.figures import Figure, Figures
from bench.scene import Shape

# By resource, beyond what one costs; 1 is linear.
_LINEAR: Final = (
    ("start CPU", "ms"),
    ("start wall", "ms"),
    ("RSS", "MiB"),
    ("kubelet restart", "ms"),
    ("kubelet restart: CPU", "ms"),
    ("reload of 1", "ms"),
    ("descriptors", ""),
)
# Of the whole; 1 is independent.
_INDEPENDENT: Final = (
    ("device comes p50", "ms"),
    ("one change: CPU", "ms"),
    ("Allocate p50", "ms"),
    ("threads", ""),
)


def growth(figures: Figures, subjects: list[str]) -> list[list[str]]:
    """Return rows: figure, from where to where, and a factor for each subject."""
    rows = []
    for what, unit in _LINEAR + _INDEPENDENT:
        shapes = sorted(
            figure.shape
            for figure in figures.values
            if figure.what == what and figure.shape and figure.shape.resources in (1, 100, 1000)
        )
        by_count = {shape.resources: shape for shape in shapes if not shape.shared}
        if len({shape.devices for shape in by_count.values()}) != 1 or len(by_count) < 3:
            continue
        linear = (what, unit) in _LINEAR
        factors = [
            _factor(figures, Figure(what, unit), by_count, subject, linear=linear)
            for subject in subjects
        ]
        meaning = "of each resource beyond the first" if linear else "of all"
        rows.append([what, meaning, *factors])
    return rows


def _factor(
    figures: Figures, figure: Figure, shapes: dict[int, Shape], subject: str, *, linear: bool
) -> str:
    one, small, large = (
        figures.median(Figure(figure.what, figure.unit, shapes[count]), subject)
        for count in (1, 100, 1000)
    )
    if one is None or small is None or large is None:
        return "-"
    if linear:
        if small <= one:
            return "-"
        return f"{(large - one) / 999 / ((small - one) / 99):.2f}"
    return f"{large / small:.2f}" if small else "-"
