"""The nightly flow: who is champion in the morning, why, and that nothing that goes wrong changes
it.

Most nights train nothing, and most do without Prefect: `post_train` hands out finished runs, and
`nightly` is called as the function it is. `tests/campaign/test_nightly_real.py` is the whole thing.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed, Failed, State

from flows import nightly as module
from flows.cli.needs import Needs
from flows.nightly import nightly
from flows.promotion.champion import history, promote_by_hand, rollback
from flows.promotion.nights import Decision, decision_name, is_unchanged, last_nightly
from flows.recipe.resolve import resolve
from flows.report import publish
from flows.runs.record import read_run
from infra.store.objects import Damaged
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.job import JobRequest
from schemas.recipe import GateRule, GateSpec
from schemas.reports import RunRecord
from tasks.contract.job import write_jsonl
from tasks.running.watch import WATCH, Watch
from tests.flows.promotion.gate_runs import PER_DOMAIN, decided, items
from tests.flows.runs.synthetic_run import SKILL, write_run

NIGHT = "demo-202611{:02}-020000-ab12"
killed = Mock(side_effect=RuntimeError("killed"))


class Nights:
    """A store, and nights in which a run with this model is what `post_train` makes."""

    def __init__(self, root: Path, recipe: Path) -> None:
        self.root, self.recipe = root / "store", recipe
        self._count = 0
        self.tonight: Callable[[], RunRecord | str] = lambda: "nothing was planned"
        self.pages: list[dict[str, Any]] = []

    @property
    def store(self) -> Store:
        return open_store(self.root, write=False)

    def make(self, skill: float = 0.7, model: str | None = None, **options: Any) -> RunRecord:
        """A run of the next night; models of one name have the same bytes."""
        self._count += 1
        name = NIGHT.format(self._count)
        skills = {**SKILL, "grpo": skill}
        options |= {"skill": skills, "text": model or name, "per_domain": PER_DOMAIN}
        return write_run(self.root, name, **options)[1]

    def run(
        self, tonight: Callable[[], RunRecord | str], of: Callable[..., State[Any]] = nightly.fn
    ) -> State[Any]:
        """One night; `tonight` gives its run, or why it failed."""
        self.tonight = tonight
        return of(recipe=str(self.recipe), store=str(self.root))

    def post_train(self, **parameters: Any) -> State[Any]:
        """In the place of the flow."""
        outcome = self.tonight()
        if isinstance(outcome, str):
            return Failed(message=outcome)
        WATCH.get().record(outcome)
        return Completed(message=f"run {outcome.run_id}: no report")

    @property
    def champions(self) -> list[str]:
        """Run ids of all entries."""
        return [entry.run_id for entry in history(self.store, "demo")]


@pytest.fixture
def nights(tmp_path: Path, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    """Without Prefect."""
    tiny_recipe.write_text(tiny_recipe.read_text().replace('name = "tiny"', 'name = "demo"'))
    made = Nights(tmp_path, tiny_recipe)
    monkeypatch.setattr(module, "post_train", made.post_train)
    monkeypatch.setattr(module, "get_run_logger", logging.getLogger)
    monkeypatch.setattr("flows.post_train.get_run_logger", logging.getLogger)
    monkeypatch.setattr(
        publish, "create_markdown_artifact", lambda **fields: made.pages.append(fields)
    )
    token = WATCH.set(Watch())
    yield made
    WATCH.reset(token)


@pytest.fixture
def real(nights: Nights, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    """With Prefect: flow, subflow, artifacts."""

    @flow(name="post-train", persist_result=False, result_serializer="json")
    def post_train(**parameters: Any) -> State[Any]:
        return nights.post_train()

    monkeypatch.setattr(module, "post_train", post_train)
    monkeypatch.setattr(module, "get_run_logger", get_run_logger)
    monkeypatch.setattr(publish, "create_markdown_artifact", create_markdown_artifact)
    # each heartbeat would cost a second in the end
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield nights


def decision(nights: Nights, run: str) -> Decision:
    return nights.store.read_json(decision_name(run), Decision)


def test_the_first_night_promotes_what_beats_its_base_and_a_better_one_replaces_it(nights):
    state = nights.run(lambda: nights.make(0.7))
    assert (state.type.value, state.name) == ("COMPLETED", "Promoted")
    assert f"run {NIGHT.format(1)} was promoted: won: exact" in (state.message or "")
    assert "18 rows, nothing to compare them with" in (state.message or "")
    state = nights.run(lambda: nights.make(0.9))
    assert state.name == "Promoted"
    assert "18 rows, 0 new, 0 changed, 0 gone since demo-20261101-020000" in (state.message or "")
    assert nights.champions == [NIGHT.format(1), NIGHT.format(2)]
    entry = history(nights.store, "demo")[-1]
    assert (entry.by, entry.replaces) == ("nightly", 1)
    assert entry.why.startswith("won: exact answer +20.0 points")
    decided = decision(nights, NIGHT.format(2))
    assert (decided.promoted, decided.champion) == (True, 2)
    assert decided.gate.night.number == 2
    asked = "; night 2 asks for p of at most 0.0033 by each rule, so that all nights together"
    assert asked in (state.message or "")


STAYS = f"the champion stays run {NIGHT.format(1)}; run {NIGHT.format(2)} was not promoted: no win"


def test_without_a_win_the_champion_stays_and_the_page_says_why(nights: Nights) -> None:
    nights.run(lambda: nights.make(0.7))
    state = nights.run(lambda: nights.make(0.7))
    assert (state.type.value, state.name) == ("COMPLETED", "Kept")
    assert (state.message or "").startswith(STAYS)
    assert nights.champions == [NIGHT.format(1)]
    page = nights.pages[1]
    assert page["description"].startswith(STAYS)
    assert "# demo: not promoted" in page["markdown"]
    assert "against the champion, run `demo-20261101" in page["markdown"]
    assert "| any win | exact answer | 70.0% [65.5, 74.2] |" in page["markdown"]
    assert "The recipe has no [gate]: these are the default rules." in page["markdown"]


def test_a_failed_run_keeps_the_champion_and_says_why(nights: Nights) -> None:
    nights.run(lambda: nights.make(0.7))
    state = nights.run(lambda: "run x: stage grpo failed")
    assert state.type.value == "FAILED"
    stays = f"the champion stays run {NIGHT.format(1)}"
    assert state.message == f"run x: stage grpo failed; {stays}"
    state = nights.run(lambda: nights.make(0.9).model_copy(update={"stages": ()}))
    assert state.type.value == "FAILED"
    assert f"judged: run '{NIGHT.format(2)}' has no trained model" in (state.message or "")
    assert (state.message or "").endswith(f", simpo; {stays}")
    assert nights.champions == [NIGHT.format(1)]


def test_bad_input_is_one_clear_message(nights: Nights) -> None:
    nights.recipe.unlink()
    said = nights.run(killed).message or ""
    assert said.startswith(f"cannot read recipe {nights.recipe}")


@pytest.mark.parametrize("where", ["promote", "decision_name"])
def test_a_night_killed_before_or_after_the_promotion_is_finished_by_the_next_one(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """`decision_name` is asked for right after the promotion."""
    nights.run(lambda: nights.make(0.7))
    with monkeypatch.context() as patch:
        patch.setattr(module, where, killed)
        with pytest.raises(RuntimeError, match="killed"):
            nights.run(lambda: nights.make(0.9, model="better"))
    state = nights.run(lambda: nights.make(0.9, model="better"))
    assert nights.champions == [NIGHT.format(1), NIGHT.format(3 if where == "promote" else 2)]
    assert state.name == ("Promoted" if where == "promote" else "Kept")
    assert where == "promote" or "nothing new: its model has the same" in (state.message or "")


def test_retry_in_prefect_resumes_the_flow_run_and_promotes_once(real, monkeypatch):
    """Killed after the promotion: the subflow runs again, and finds everything cached."""
    deaths = iter([True])

    def named(run: str) -> str:
        return killed() if next(deaths, False) else decision_name(run)

    monkeypatch.setattr(module, "decision_name", named)
    state = real.run(
        lambda: real.make(0.9, model="good"),
        partial(nightly.with_options(retries=1), return_state=True),
    )
    assert (state.type.value, state.name) == ("COMPLETED", "Kept")
    assert real.champions == [NIGHT.format(1)]
    assert decision(real, NIGHT.format(2)).champion == 1
    ours = ArtifactFilter(
        key=ArtifactFilterKey(any_=["demo-nightly"]),
        flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]),
    )
    with get_client(sync_client=True) as client:
        [page] = client.read_artifacts(artifact_filter=ours)
    assert (state.message or "").startswith(f"{page.description}; ")
    assert "# demo: not promoted" in page.data


def test_a_night_that_another_one_overtakes_decides_again(nights, monkeypatch):
    """Between its gate and its promotion another model became champion, which it does not beat."""
    nights.run(lambda: nights.make(0.7))
    judge, overtaken = module.gate, []

    def gate(*arguments: Any) -> Any:
        verdict = judge(*arguments)
        if not overtaken:
            overtaken.append(verdict)
            assert nights.run(lambda: nights.make(1.0)).name == "Promoted"
        return verdict

    monkeypatch.setattr(module, "gate", gate)
    state = nights.run(lambda: nights.make(0.9))
    assert overtaken[0].promote
    assert state.name == "Kept"
    assert "lost: exact answer −10.0 points" in (state.message or "")
    assert nights.champions == [NIGHT.format(1), NIGHT.format(3)]


def test_a_promotion_by_hand_between_gate_and_promotion_is_decided_against(nights, meanwhile):
    """The same comparison, against another champion, is another night."""
    nights.run(lambda: nights.make(0.7))

    def by_hand(*_: Any) -> None:
        if len(nights.champions) == 1:
            promote_by_hand(nights.store, nights.make(1.0).run_id, "")

    meanwhile(module, "take", before=by_hand)
    state = nights.run(lambda: nights.make(0.9))
    assert state.name == "Kept"
    assert "lost: exact answer −10.0 points" in (state.message or "")
    assert "; night 3 asks for" in (state.message or "")
    assert len(nights.champions) == 2


def test_a_model_that_people_rolled_back_is_not_promoted_again_by_night(nights: Nights) -> None:
    nights.run(lambda: nights.make(0.7))
    nights.run(lambda: nights.make(0.9, model="better"))
    rollback(nights.store, "demo", "it answers in verse")
    state = nights.run(lambda: nights.make(0.9, model="better"))
    assert state.name == "Kept"
    assert "its model was given up before" in (state.message or "")
    overrules = f"`lyceum promote {NIGHT.format(3)} --store {nights.store.uri}` overrules that"
    assert f"(it answers in verse); {overrules}" in (state.message or "")
    assert nights.champions[-1] == NIGHT.format(1)
    assert nights.run(lambda: nights.make(0.95)).name == "Promoted"


def test_a_stop_before_the_promotion_promotes_nothing(nights, meanwhile):
    meanwhile(module, "gate", before=lambda *_: WATCH.get().stop.set())
    assert nights.run(lambda: nights.make(0.7)).type.value == "CANCELLED"
    assert not nights.champions


def test_a_champion_without_a_record_is_not_replaced(nights: Nights) -> None:
    nights.run(lambda: nights.make(0.7))
    nights.store.remove(f"runs/{NIGHT.format(1)}")
    state = nights.run(lambda: nights.make(0.9))
    assert state.type.value == "FAILED"
    assert "the champion's run demo-20261101-020000-ab12 has no record" in (state.message or "")
    assert nights.champions == [NIGHT.format(1)]


def submit(
    nights: Nights, candidate: list[RunRecord], error: str | None
) -> Callable[[JobRequest], Any]:
    """In the place of `submit_stage`: the champion answers all of the candidate's prompts wrongly,
    or its job fails."""

    @task
    def evaluate(spec: JobRequest) -> State[Any]:
        if error or spec.data != str(nights.recipe.parent):
            return Failed(message=error or f"its data are in {spec.data}")
        if spec.key not in Needs(nights.store, ()).keys:
            return Failed(message="nobody says that it is needed")
        stage = {"reasoning_eval": "grpo_eval"}.get(spec.kind, spec.kind)
        out = nights.root / f"again-{stage}"
        out.mkdir()
        wrong = {"exact": False, "safe": False}
        asked = items(nights.store, candidate[0], stage)
        write_jsonl(out / "items.jsonl", [item.model_copy(update=wrong) for item in asked])
        same = {name: getattr(spec, name) for name in ("kind", "key", "config", "inputs")}
        draft = Manifest(**same, version=1, attempt="1", files=())
        open_store(nights.root).commit(draft, out)
        return Completed()

    return evaluate.submit


@pytest.mark.parametrize("what", ["current", "new_rows", "gate", "decision_name"])
def test_a_store_that_is_away_ends_the_night_with_one_line(real, monkeypatch, what):
    """At its begin, at its gate, or when all is decided: the next night goes on from there. So
    where other bytes arrive than were stored."""

    def away(*given: object) -> None:
        said = "gs://bucket did not answer for 15 min"
        raise Damaged([said]) if what == "gate" else ConnectionError(said)

    monkeypatch.setattr(module, what, away)
    night = partial(nightly, data=str(real.recipe.parent), return_state=True)
    state = real.run(lambda: real.make(0.9, prompts="fresh"), night)
    assert state.type.value == "FAILED"
    assert "did not answer for 15 min" in (state.message or "")


def test_a_champion_that_was_asked_other_prompts_is_evaluated_before_the_decision(
    real: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote_by_hand(real.store, real.make(0.7).run_id, "")
    candidate = [real.make(0.9, prompts="fresh")]
    monkeypatch.setattr(module, "submit_stage", submit(real, candidate, "no TPU"))
    night = partial(nightly, data=str(real.recipe.parent), return_state=True)
    state = real.run(lambda: candidate[0], night)
    assert state.type.value == "FAILED"
    assert "could not be judged: champion_grpo_eval: no TPU; the champ" in (state.message or "")
    monkeypatch.setattr(module, "submit_stage", submit(real, candidate, None))
    assert real.run(lambda: candidate[0], night).name == "Promoted"
    assert len(decision(real, candidate[0].run_id).gate.evaluations) == 2


def test_a_night_with_nothing_new_says_so_and_starts_no_run(nights, finished, lyceum):
    """On real stages. The night after a promotion by hand is no such night: the candidate may win
    against another champion."""
    shutil.copytree(finished[0], nights.root)
    first = lyceum("run", nights.recipe, "--store", nights.root, "--json").json["run_id"]
    last = read_run(nights.store, first)
    open_store(nights.root).write_json(decision_name(first), decided(first))
    found = last_nightly(nights.store, "demo")
    assert found[0] == last
    state = nights.run(killed)
    assert (state.type.value, state.name) == ("COMPLETED", "Unchanged")
    assert state.message == f"nothing is new since run {first}; there is no champion yet"
    resolved = resolve(str(nights.recipe))
    rules = GateSpec(must_win=(GateRule(metric="format_rate"),))
    asking = replace(resolved, recipe=resolved.recipe.model_copy(update={"gate": rules}))
    assert is_unchanged(nights.store, resolved, *found, None)
    # the last candidate may pass another gate
    assert not is_unchanged(nights.store, asking, *found, None)

    other = nights.make(0.7)
    promote_by_hand(nights.store, other.run_id, "")
    assert nights.run(lambda: "it ran").message == f"it ran; the champion stays run {other.run_id}"
    nights.store.remove("champions/demo")
    nights.recipe.write_text(nights.recipe.read_text().replace("train = 20", "train = 21"))
    assert nights.run(lambda: "it ran").is_failed()
