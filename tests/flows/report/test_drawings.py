"""A drawing is made once for the same data, and again for whatever else."""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from flows.report import drawings, plots
from tasks.statistics.intervals import Interval, Rate


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path))
    return tmp_path / "plots"


def drawing(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What is called for each that is drawn from now on."""
    drawn = Mock(wraps=plots._svg)
    monkeypatch.setattr(plots, "_svg", drawn)
    return drawn


LINE = {"loss": ([1.0, 2.0], [0.5, 0.25])}


def test_the_same_data_is_drawn_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawing(monkeypatch)
    first = plots.curve("sft: <loss>", LINE)
    assert plots.curve("sft: <loss>", LINE) == first
    assert drawn.call_count == 1
    plots.curve("sft: <loss>", {"loss": ([1.0, 2.0], [0.5, 0.250000001])})
    plots.curve("simpo", LINE)
    assert drawn.call_count == 3


def test_other_code_or_another_matplotlib_draws_anew(kept, monkeypatch):
    plots.curve("loss", LINE)
    drawn = drawing(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(drawings, "_digest", lambda source: "changed")
        plots.curve("loss", LINE)
    monkeypatch.setattr(drawings, "version", lambda package: "0")
    plots.curve("loss", LINE)
    assert drawn.call_count == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", "<svg", '{"title": "loss", "svg": 1}', "\udcff"])
def test_one_that_is_not_whole_is_drawn_again(kept: Path, text: str) -> None:
    first = plots.curve("loss", LINE)
    [file] = kept.iterdir()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert plots.curve("loss", LINE) == first
    assert file.stat().st_size > 1000
    file.write_text(file.read_text("utf-8").replace("currentColor", "red", 1), encoding="utf-8")
    assert plots.curve("loss", LINE) == first


def test_a_cache_that_cannot_be_written_keeps_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "file"))
    assert "<svg" in plots.curve("loss", LINE).svg


def test_the_oldest_go_and_a_curve_without_a_point_is_an_empty_plot(kept, monkeypatch):
    """The latter is that of `lyceum rejudge` where no update can be compared."""
    assert "<svg" in plots.curve("cosine", {"cosine": ([], [])}).svg
    monkeypatch.setattr(drawings, "MOST_DRAWINGS", 2)
    for number in range(4):
        plots.curve(f"loss {number}", LINE)
    assert len(list(kept.iterdir())) == 2


def test_a_reliability_diagram_has_a_dot_for_each_bin() -> None:
    bins = [{"confidence": said, "accuracy": was} for said, was in ((0.55, 0.5), (0.9, 1.0))]
    assert "held-out pairs" in plots.reliability("held-out pairs", bins).svg


def test_every_k_of_every_model_is_on_the_axis() -> None:
    rates = {k: {"rate": 0.5, "low": 0.4, "high": 0.6} for k in ("1", "2", "4")}
    drawn = plots.at_k("pass@k", {"base": rates, "grpo": {"1": rates["1"]}}).svg
    assert [k for k in rates if f">{k}</text>" in drawn] == list(rates)


@pytest.mark.filterwarnings("error")  # of axes without room
def test_the_longest_names_leave_room_for_what_is_drawn() -> None:
    """Of 40 characters, on an inch of a phone."""
    names = [f"grpo_with_verifiable_rewards_and_judge_{n}" for n in range(4)]
    sure, rate = Interval(0.1, 0.3), Rate(30, 60)
    bars = [plots.Bar(f"{name} / {name}, run 2", 0.2, 0.1, 0.3, "gain") for name in names]
    drawn = (
        plots.waterfall([plots.Step(name, 0.5, "+20.0", 0.2, sure, "gain") for name in names], "w"),
        plots.forest("f", bars),
        plots.stage_times("t", [(name, 3.0, "ran") for name in names]),
        plots.rate_plane("p", [plots.Point(name, rate, rate) for name in names], "safe", "right"),
        plots.lineage("l", dict.fromkeys(names, 0), [], {}),
    )
    for one in drawn:
        lines = re.findall(r">([^<>\n]+)</(?:text|tspan)>", one.svg)
        assert "verifiable_" in "".join(lines), one.title
        assert max(map(len, lines)) <= 24, one.title


def test_a_lineage_is_drawn_once_whatever_became_of_its_stages(kept, monkeypatch):
    drawn = drawing(monkeypatch)
    depth, edges = {"distill": 0, "sft": 1}, [("distill", "sft")]
    ran = plots.lineage("Lineage", depth, edges, {"distill": "ran", "sft": "failed"}).svg
    cached = plots.lineage("Lineage", depth, edges, {"distill": "cached", "sft": "cached"}).svg
    assert drawn.call_count == 1
    assert ran.count("var(--series-1)") == ran.count("var(--bad)") == 1
    assert cached.count("var(--series-1)") == cached.count("var(--bad)") == 0
    assert cached.count("var(--muted)") == ran.count("var(--muted)") + 2
    assert "#0b" not in ran + cached
