"""What a rehearsal says of stages' metrics and of judges, and what a recipe allows."""

from pathlib import Path
from typing import Any

from flows.cli.rehearse import exit_code
from flows.rehearsal.cut import Rehearsed, rehearsed
from flows.rehearsal.findings import findings_of
from flows.rehearsal.page import verdict_blocks
from flows.report.markdown import markdown
from flows.runs.results import RunResults, StageOutput
from infra.store.store import open_store
from schemas.reports import RunRecord, StageRecord
from tasks.rehearsal.stand_in import Tally
from tests.flows.rehearsal.recipes import RECIPE, write

SOURCE = {"family": "sums", "file": "sums.jsonl", "read": 20, "kept": 20, "dropped": {}}
CELL = {"requested": 100, "achieved": 10, "available": 10}
SOUND: dict[str, Any] = {
    "distill": {"rows": 20, "sources": [SOURCE], "pairs": {}, "unsolved": {}, "teachers": []},
    "rebalance": {
        "read": 20,
        "dropped": {"duplicate_prompt": 2},
        "domains": {"math": {"train": CELL, "validation": CELL, "heldout": CELL}},
    },
    "grpo_eval": {"n": 12, "n_verifiable": 12},
}


def told(
    directory: Path,
    metrics: dict[str, Any],
    tallies: dict[str, Tally] | None = None,
    recipe: str = RECIPE,
) -> dict[str, Any]:
    """What is found where stages have these metrics and no files."""
    path = write(directory, recipe)
    store = open_store(directory / "store")
    ready: Rehearsed = rehearsed(str(path), (), directory / "data", (), 20, "gemma3-tiny", store)
    specs = ready.resolved.recipe.stages
    ran = {one.name: {"kind": one.kind, "metrics": metrics.get(one.name, {})} for one in specs}
    records = {name: StageRecord(name=name, status="ran", **of) for name, of in ran.items()}
    about: dict[str, Any] = {"recipe": ready.resolved.recipe, "store": store.uri, "run_id": "r"}
    about |= {"target": "local", "status": "succeeded", "started": 0.0}
    record = RunRecord(**about, stages=tuple(records.values()))
    stages = {spec.name: StageOutput(spec, store, records[spec.name]) for spec in specs}
    found = findings_of(RunResults(record, stages), ready, tallies or {})
    return {"status": "succeeded", **found}


def names(found: dict[str, Any]) -> list[str]:
    return [one["name"] for one in found["findings"]]


def test_a_quota_that_a_generator_fills_when_rows_are_missing_is_no_finding(tmp_path: Path) -> None:
    quota = RECIPE.replace("[stages.sft]", "creative = { train = 100 }\n\n[stages.sft]", 1)
    (tmp_path / "nobody").mkdir()
    assert "quota:creative" in names(told(tmp_path / "nobody", SOUND, recipe=quota))
    generator = '[[stages.distill.config.teachers]]\nname = "procedural"\n'
    generator += "rows = { creative = 0 }\ngrounded = {}\n\n[stages.rebalance]"
    filled = quota.replace("[stages.rebalance]", generator, 1)
    assert "quota:creative" not in names(told(tmp_path, SOUND, recipe=filled))


PLANTED: dict[str, Any] = {
    "distill": {
        "sources": [SOURCE | {"kept": 0, "dropped": {"too_long": 20}}],
        "teachers": [{"name": "t", "samples.malformed": 30, "samples.verified": 10}],
    },
    "rebalance": {
        "dropped": {"contaminated": 17, "too_long": 11},
        "domains": {
            "math": {"train": CELL | {"available": 0}, "validation": CELL, "heldout": CELL}
        },
    },
    "grpo_eval": {"n_verifiable": 0},
}
PLANTED_NAMES = [
    *("empty:sums", "malformed:distill", "contaminated:rebalance", "too_long:rebalance"),
    *("untrained:math", "unverified:grpo_eval"),
]


def test_planted_metrics_are_named_and_sound_ones_are_not(tmp_path: Path) -> None:
    """All at once; each is named, and nothing else is."""
    found = told(tmp_path, {stage: SOUND[stage] | PLANTED[stage] for stage in SOUND})
    assert (names(found), exit_code(found)) == (PLANTED_NAMES, 3)
    found = told(tmp_path, SOUND)
    assert (names(found), exit_code(found)) == ([], 0)


def test_one_that_was_stopped_says_so(tmp_path: Path) -> None:
    """It said `0 findings`, as if all had been seen."""
    stopped = {"status": "cancelled", "model": "gemma3-tiny", "rows": 20}
    said = markdown(verdict_blocks(told(tmp_path, SOUND) | stopped))
    assert "0 findings; stopped before its end" in said


def test_tests_without_programs_are_what_a_stand_in_cannot_solve(tmp_path: Path) -> None:
    """No finding but a note; where rows have answers, that none is solved is a finding."""
    unsolved = SOURCE | {"kept": 0, "dropped": {"unsolved": 20}}
    lost = {"distill": SOUND["distill"] | {"sources": [unsolved]}}
    assert names(told(tmp_path, SOUND | lost)) == ["empty:sums"]
    tested = 'check = "tests"\ntests = { template = "assert twice({answer}) > 0" }'
    recipe = RECIPE.replace('answer = "answer"\ncheck = "numeric"', tested, 1)
    assert recipe != RECIPE
    found = told(tmp_path, SOUND | lost, recipe=recipe)
    assert names(found) == []
    assert any(note.startswith("sums has tests and no answers") for note in found["notes"])


def test_a_judge_that_always_says_ten_is_named_and_one_that_differs_is_not(tmp_path: Path) -> None:
    always = Tally(grades={str(i): '{"1": 10}' for i in range(6)})
    differs = Tally(grades={str(i): f'{{"1": {i}}}' for i in range(6)})
    found = told(tmp_path, SOUND, {"gemini:a": always, "gemini:b": differs})
    assert names(found) == ["judge:gemini:a"]


def test_what_the_recipe_allows_is_shown_and_passes(tmp_path: Path) -> None:
    allowed = '\n[rehearsal.allow]\n"unverified:grpo_eval" = "free text"\n"quota:x" = "never"\n'
    metrics = SOUND | {"grpo_eval": {"n": 12, "n_verifiable": 0}}
    found = told(tmp_path, metrics, recipe=RECIPE + allowed)
    assert [one["allowed"] for one in found["findings"]] == ["free text"]
    assert exit_code(found) == 0
    assert found["notes"][-1] == "rehearsal.allow names quota:x, which was not found"


def test_who_answered_is_said_of_every_endpoint(tmp_path: Path) -> None:
    tally = Tally(why_not="no key")
    tally.stood_in["judge"] += 5
    (teacher, judge) = told(tmp_path, SOUND, {"gemini:gemini-9": tally})["endpoints"]
    assert (teacher["asked"], teacher["stood_in"]) == (0, 0)
    assert teacher["name"] == "vllm:openai/gpt-oss-120b"
    assert (judge["stages"], judge["roles"], judge["stood_in"]) == (["grpo"], ["judge"], 5)
    assert judge["why"] == "no key"
