"""`lyceum gc` and champions: what they stand on is not removed, and what nobody can return to
is."""

import pytest

from flows.cli import gc
from flows.promotion import champion
from flows.promotion.champion import promote_by_hand, rollback
from flows.promotion.nights import decision_name, name_rematches
from flows.runs.record import record_name
from infra.store.store import Store
from schemas.base import InputError
from schemas.recipe import StageSpec
from schemas.reports import RunRecord
from tests.flows.cli.gc_yard import Yard, key
from tests.flows.promotion.gate_runs import decided
from tests.flows.runs.synthetic_run import with_stage

ENTRY = "champions/demo/000001.json"


@pytest.fixture
def yard(here: Yard) -> Yard:
    """In a directory."""
    return here


def test_a_champion_s_run_is_not_dropped_nor_one_that_a_rollback_may_lead_back_to(yard):
    """Entry 3, on which a rollback left run c, needs nothing any more."""
    for number, name in enumerate("abc", start=1):
        crown(yard, number, name)
    rollback(yard.store, "demo", "")
    yard.gc("--drop-run", "a", code=2)
    why = "run 'a' cannot be dropped: `lyceum promote --rollback demo` may lead back to it"
    assert why in yard.messages
    assert "remove champions/demo/000001.json first" in yard.messages
    yard.gc("--drop-run", "b", "--delete", code=2)
    why = "run 'b' cannot be dropped: it is the champion of recipe demo. Promote another run, or"
    assert why in yard.messages
    assert ("run", "runs/c") in yard.found("--drop-run", "c", "--delete")
    assert yard.store.list_runs() == ["a", "b"]
    yard.store.remove("champions/demo/000001.json")
    assert ("run", "runs/a") in yard.found("--drop-run", "a")


def crown(yard: Yard, number: int, run: str) -> None:
    """A run whose only stage has this key, and the champion from now on."""
    model = yard.commit(number, text=run).ref()
    yard.run(run, number, status="succeeded")
    record = yard.store.read_json(record_name(run), RunRecord)
    stage = StageSpec(name=f"s{number}", kind="sft")
    recipe = record.recipe.model_copy(update={"name": "demo", "stages": (stage,)})
    record = with_stage(record, stage.name, status="ran", artifact=model)
    yard.store.write_json(record_name(run), record.model_copy(update={"recipe": recipe}))
    promote_by_hand(yard.store, run, "")


def test_a_promotion_while_leases_are_watched_saves_the_run(yard, meanwhile):
    crown(yard, 1, "a")
    yard.store.remove("champions")
    meanwhile(gc, "unheld", before=lambda *_: promote_by_hand(yard.store, "a", ""))
    yard.gc("--drop-run", "a", "--delete", code=2)
    assert yard.store.list_runs() == ["a"]


def test_a_run_that_is_promoted_while_its_record_goes_has_it_back(yard, meanwhile):
    """Whoever promotes it has looked for the record before that."""
    crown(yard, 1, "a")
    entry, record = yard.store.read_bytes(ENTRY), yard.store.read_bytes(record_name("a"))
    yard.store.remove(ENTRY)
    meanwhile(Store, "remove", after=lambda store, _: store.create_bytes(ENTRY, entry))
    yard.gc("--drop-run", "a", "--delete", code=2)
    assert "run 'a' cannot be dropped: it is the champion of recipe demo" in yard.messages
    assert yard.store.read_bytes(record_name("a")) == record
    assert yard.found() == set()


@pytest.mark.parametrize("where", ["_verified", "_rates"])
def test_a_run_that_was_dropped_while_it_was_promoted_is_not(yard, meanwhile, where):
    """While its model was verified, or between the last look for its record and its entry."""
    crown(yard, 1, "a")
    yard.store.remove(ENTRY)
    meanwhile(champion, where, after=lambda *_: yard.gc("--drop-run", "a", "--delete"))
    with pytest.raises(InputError, match="run 'a' was dropped meanwhile"):
        promote_by_hand(yard.store, "a", "")
    assert champion.current(yard.store, "demo") is None
    assert yard.store.list_runs() == []


def test_evaluations_that_a_decision_rests_on_are_needed_as_long_as_its_run(yard: Yard) -> None:
    yard.commit(1)
    yard.commit(2)
    yard.run("nightly", 1)
    night = decided("nightly", evaluations=(yard.commit(2).ref(),))
    yard.store.write_json(decision_name("nightly"), night)
    assert yard.found() == set()
    assert ("artifact", "artifacts/sft/2") in yard.found("--drop-run", "nightly")
    yard.store.write_bytes(decision_name("nightly"), b"{")
    assert yard.found() == {("artifact", "artifacts/sft/2")}


def test_evaluations_that_a_night_waits_for_are_needed_before_its_decision(yard: Yard) -> None:
    """The first of two is made, and its lease released, while the other takes hours."""
    for number in (1, 2, 3):
        yard.commit(number)
    yard.run("nightly", 1, status="succeeded")
    for number in (2, 3):
        name_rematches(yard.store, "nightly", [key(number)])
    assert yard.found() == set()
    dropped = {("artifact", f"artifacts/sft/{number}") for number in (1, 2, 3)}
    assert yard.found("--drop-run", "nightly") >= dropped
    yard.store.write_bytes("runs/nightly/rematches.json", b"{")
    assert yard.found() == {("artifact", "artifacts/sft/2"), ("artifact", "artifacts/sft/3")}
