"""Plots of what there is little of."""

from flows.report.plots import curve, reliability


def test_a_curve_without_a_point_is_an_empty_plot() -> None:
    """`lyceum rejudge` where no update can be compared."""
    assert "<svg" in curve("cosine", {"cosine": ([], [])}).svg


def test_a_reliability_diagram_has_a_dot_for_each_bin() -> None:
    bins = [{"confidence": said, "accuracy": was} for said, was in ((0.55, 0.5), (0.9, 1.0))]
    assert "held-out pairs" in reliability("held-out pairs", bins).svg
