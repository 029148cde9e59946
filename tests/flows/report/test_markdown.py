"""Blocks as Markdown: what a text holds stays text."""

from flows.report import blocks as ui
from flows.report.markdown import markdown


def test_a_bar_ends_no_column_and_is_as_it_was_elsewhere() -> None:
    table = ui.Table(("choice",), [(ui.code("a|b"),), ("c|d",)])
    lines = markdown([ui.Paragraph(("say ", ui.code("a|b"))), table]).splitlines()
    assert lines == ["say `a|b`", "", "| choice |", "| --- |", "| `a\\|b` |", "| c\\|d |"]
