"""No text of a model, a row or a recipe acts, or hides anything, in what a person looks at."""

import unicodedata
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from flows.report import publish
from flows.report.comparison import render_comparison
from flows.report.page import report_of
from flows.runs.compare import compare_runs
from flows.runs.results import read_results
from infra.visible import visible
from schemas.examples import Domain
from tasks.contract.job import write_jsonl
from tasks.data import card
from tasks.exporting.model_card import Card, Origin, write_card
from tasks.exporting.round_trip import Proof
from tests.flows.runs.synthetic_run import write_run

NASTY = "A\0B\x1b[31mC\x07D\x9b2JE\u202eF\u200bG\u2066H\ufeffI\U000e0041J\xadK\u2028L\rM"
SHOWN = r"A\x00B\x1b[31mC\x07D\x9b2JE\u202eF\u200bG\u2066H\ufeffI\U000e0041J\xadK\u2028L\rM"
PREPENDED = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
"""Of the category that formats text, but with ink: signs that stand before Arabic and Syriac
numbers."""


def unseen(text: str) -> set[str]:
    """The characters of a text that act or are not seen, by their categories."""
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    by_category = {one for one in set(text) if unicodedata.category(one) in kinds}
    return by_category - set(PREPENDED) - set("\t\n")


def test_every_character_that_formats_or_controls_is_spelled_out_and_text_is_left_alone() -> None:
    every = "".join(map(chr, range(0x110000)))
    assert unseen(visible(every)) == set()
    kinds = {one: unicodedata.category(one) for one in every}
    seen = "".join(one for one, kind in kinds.items() if kind[0] in "LNPS" and kind != "Lo")
    assert visible(seen) == seen
    assert visible("naïve 数学 🙂 مرحبا\tא\r\nb") == "naïve 数学 🙂 مرحبا\tא\nb"
    assert visible("\ud800") == r"\ud800"
    assert visible(visible(NASTY)) == visible(NASTY) == SHOWN


def test_pages_show_it(tmp_path: Path) -> None:
    """The report, with a model's answers, a row's data card and a failure; and the comparison of
    two such runs."""
    store, record = write_run(tmp_path, text=NASTY, requests=3, samples=2)
    page = report_of(read_results(store, record)).html()
    assert unseen(page) == set()
    assert page.count(SHOWN) > 10
    nasty = {"failure": NASTY, "text": NASTY, "config": {"sft": {"note": NASTY}}}
    _, other = write_run(tmp_path, "demo-2", stop_before="simpo", **nasty)
    compared = Path(render_comparison(store, compare_runs(store, record, [other])))
    failed = report_of(read_results(store, other)).html()
    for page in (compared.read_text(encoding="utf-8"), failed):
        assert unseen(page) == set()
        assert SHOWN in page


def test_prefect_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, record = write_run(tmp_path, stop_before="grpo", failure=NASTY, text=NASTY)
    results = read_results(store, record)
    sent: list[str] = []
    # otherwise Prefect starts a server to ask how it is
    monkeypatch.setattr(publish, "get_client", MagicMock())
    for kind in ("markdown", "table"):
        name = f"create_{kind}_artifact"
        monkeypatch.setattr(publish, name, lambda **given: sent.extend(texts(given)))
    publish.publish(report_of(results))
    assert unseen("".join(sent)) == set()
    assert sum(SHOWN in one for one in sent) >= 3  # the table, the page of the failure, the samples


def texts(given: dict[str, Any]) -> list[str]:
    """The page of an artifact, or the errors in its table."""
    rows = given.get("table", ())
    return [given["markdown"]] if "markdown" in given else [str(row["error"]) for row in rows]


def test_cards_show_it(tmp_path: Path) -> None:
    row = {"prompt": f"Why {NASTY}?", "reasoning": NASTY, "answer": NASTY, "difficulty": 1}
    row |= {"grounding": None, "family": f"f{NASTY}", "source": "s", "context": None}
    row |= {"split": "train", "domain": Domain.MATH.value}
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "examples.jsonl", [row])
    counts = {"domains": {}, "groundings": {}, "dropped": {}}
    card.of_distill(tmp_path / "data", [{"name": "procedural"}], counts)
    origin = Origin(NASTY, "sft", 1, "examples: rebalance", "k", "d")
    proof = Proof("float32", 1, 1, 0.0, 1e-4, 1, 0, "4", "2")
    about = {"origins": [origin], "recipe": f"name = '{NASTY}'\n"}
    write_card(tmp_path, Card(f"title {NASTY}", "gemma3-tiny", **about), proof, "gemma3")
    for place in (tmp_path / "data", tmp_path):
        text = (place / "README.md").read_text("utf-8")
        assert unseen(text) == set()
        assert SHOWN in text
