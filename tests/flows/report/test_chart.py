"""A drawing: its ticks, and that its text is text."""

import pytest

from flows.report.chart import INK, WIDTH, Axis, Chart
from flows.report.plots import curve, reliability
from tests.flows.report.test_report import ATTACK


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 100, ["0", "20", "40", "60", "80", "100"]),
        (-0.31, 0.1, ["−0.3", "−0.2", "−0.1", "0.0", "0.1"]),
        (0.95e-5, 1.05e-5, ["9.6e−06", "9.8e−06", "1e−05", "1.02e−05", "1.04e−05"]),
        (1.234e6, 1.264e6, ["1.24e+06", "1.25e+06", "1.26e+06"]),
    ],
)
def test_ticks_stand_at_round_numbers_and_can_be_told_apart(
    low: float, high: float, texts: list[str]
) -> None:
    assert list(Axis.between(low, high).ticks.values()) == texts


def test_a_single_value_has_an_axis_around_it() -> None:
    for value in (0.0, 5.0, -1e-9):
        axis = Axis.of([value])
        assert axis.low < value < axis.high
    assert list(Axis.of([5.0], whole=True).ticks.values()) == ["5"]


def test_marks_stand_where_their_values_do_and_text_is_never_interpreted() -> None:
    """Without ticks the plot is all but its edges of 6 points."""
    chart = Chart(100, Axis(0, 1), Axis(0, 1), {ATTACK: INK})
    chart.line([0, 1], [0, 1], INK)
    svg = chart.figure(ATTACK).svg
    assert f'points="6.0,97.0 {WIDTH - 6:.1f},6.0"' in svg
    assert "<script" not in svg


def test_a_curve_without_a_point_is_an_empty_plot() -> None:
    """`lyceum rejudge` where no update can be compared."""
    assert "polyline" in curve("cosine", {"cosine": ([], [])}).svg


def test_a_reliability_diagram_has_a_dot_for_each_bin() -> None:
    bins = [{"confidence": said, "accuracy": was} for said, was in ((0.55, 0.5), (0.9, 1.0))]
    assert reliability("held-out pairs", bins).svg.count("<circle") == 2
