"""`lyceum rejudge`: a finished GRPO stage under other rewards, from its ledger, without sampling
anything."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError
from schemas.examples import Domain, Prompt
from schemas.ledger import LedgerRow
from tasks.contract.kinds import stage_kind
from tasks.contract.reward import REWARDS, Resources
from tasks.reinforcement.rejudge import Stage, rejudge
from tasks.reinforcement.rollout import group_advantages
from tests.fakes.chat_server import ChatServer
from tests.tasks.prompts import trace

JUDGE = {"name": "endpoint", "provider": "test", "model": "m", "max_abstained": 1.0}
FRUITS = [
    {"title": "apple", "text": "Says apple.", "importance": "essential"},
    {"title": "fig", "text": "Does not say fig.", "importance": "pitfall"},
]
RUBRIC = {"name": "rubric_judge", "judge": JUDGE, "criteria": FRUITS, "calibration": False}
RUBRIC |= {"aggregation": "explicit"}
FORMAT = {"name": "format", "weight": 1.0}
ANSWERS = ("apple", "fig", "apple fig", "stone")
"""What the four responses of every group say. The rubric's weights are 1 and .9."""

SATISFIED = {"apple": (1, 1), "fig": (0, 0), "apple fig": (1, 0), "stone": (0, 1)}


def config(*rewards: dict[str, Any], **changes: Any) -> Any:
    table = {"steps": 2, "batch_size": 8, "prompt_length": 32, "response_length": 32}
    table |= {"group_size": 4, "rewards": rewards, "optimizer": {"learning_rate": 1e-5}}
    return stage_kind("grpo").config.parse(table | changes)


PROMPTS = [
    Prompt(id=f"p{n}", prompt=f"Name fruits, {n}?", domain=Domain.GENERAL, check="none")
    for n in range(4)
]


def rows(values: dict[str, float] | None = None, rollouts: int = 2) -> list[LedgerRow]:
    """The ledger of two rollouts of two groups. Rewards: format is 1 for all, the rubric as above
    or `values`."""
    found = []
    for rollout, group in product(range(rollouts), range(2)):
        honest = {answer: np.dot(both, (1.0, 0.9)) / 1.9 for answer, both in SATISFIED.items()}
        worth = {answer: float(one) for answer, one in (honest | (values or {})).items()}
        totals = [(1.0 + worth[answer]) / 2 for answer in ANSWERS]
        advantages = group_advantages(np.array(totals), 4)
        for answer, total, advantage in zip(ANSWERS, totals, advantages, strict=True):
            apple, fig = map(float, SATISFIED[answer])
            row = LedgerRow(
                rollout=rollout,
                step=rollout + 1,
                group=group,
                id=f"p{2 * rollout + group}",
                completion=trace(answer),
                tokens=9,
                truncated=False,
                trained=True,
                rewards={"format": 1.0, "rubric_judge": worth[answer]},
                details={"rubric_judge": {"grades": {"apple": apple, "fig": fig}}},
                reward=float(total),
                advantage=float(advantage),
            )
            found.append(row)
    return found


def stage(*rewards: dict[str, Any], **changes: Any) -> Stage:
    found = config(*(rewards or (FORMAT, RUBRIC)), **changes)
    dependencies = stage_kind("grpo").dependencies(found, None)
    return Stage(found, dependencies, {one.id: one for one in PROMPTS}, {})


NOTHING = Resources({}, answers=None)


def test_the_same_rewards_change_nothing_and_ask_nobody():
    found = rejudge(stage(), rows(), [FORMAT, RUBRIC], NOTHING)
    assert [one["cosine"] for one in found["updates"]] == pytest.approx([1.0, 1.0])
    assert found["rewards"] == {"format": {"from": "ledger"}, "rubric_judge": {"from": "ledger"}}
    assert found["summary"]["reversed"] == found["summary"]["changed_sign"] == 0
    advantages = [row.advantage for row in rows()]
    assert [row.advantage for row in found["ledger"]] == pytest.approx(advantages)
    assert found["ledger"][0].details == rows()[0].details


def test_new_weights_of_rewards_come_from_the_ledger():
    """At weight 3 the total is (1 + 3 x) / 4: the same advantages, but for the 1e-6 beside the std.
    Without the rubric nothing teaches."""
    found = rejudge(stage(), rows(), [FORMAT, RUBRIC | {"weight": 3.0}], NOTHING)
    assert found["ledger"][0].reward == pytest.approx((1 + 3 * 1.0) / 4)
    assert found["updates"][0]["cosine"] == pytest.approx(1.0)
    found = rejudge(stage(), rows(), [FORMAT], NOTHING)
    assert found["updates"][0]["cosine"] is None
    assert found["summary"]["undecided"] == 2


def test_weights_that_a_rollback_froze_stay_frozen():
    """The format's weight is 0 from update 1 on, and the rubric's turns at update 2, whose rollout
    was scored as at update 1."""
    was, turned = {"start": 1.0, "end": 0.0}, {"from_step": 2, "to_step": 2}
    one = RUBRIC | {"weight": {**was, **turned}}
    other = FORMAT | {"weight": {"start": 0.0, "end": 1.0, **turned}}
    honest = rows()
    changed = [
        row.model_copy(update={"reward": worth, "advantage": float(advantage), "frozen": 1})
        if row.step == 2
        else row
        for row, worth, advantage in zip(
            honest,
            [row.rewards["rubric_judge"] for row in honest],
            group_advantages(np.array([row.rewards["rubric_judge"] for row in honest]), 4),
            strict=True,
        )
    ]
    found = rejudge(stage(other, one), changed, [other, one], NOTHING)
    assert [update["cosine"] for update in found["updates"]] == pytest.approx([1.0, 1.0])


def test_new_weights_of_criteria_come_from_the_rulings_and_can_turn_an_update():
    """With the pitfall alone (weights 0 and 1) the values are 1, 0, 0, 1 instead of 1, 0, 1/1.9,
    .9/1.9."""
    weights = {"essential": 0.0, "pitfall": 1.0}
    found = rejudge(stage(), rows(), [FORMAT, RUBRIC | {"weights": weights}], NOTHING)
    assert found["rewards"]["rubric_judge"] == {"from": "rulings"}
    assert [row.rewards["rubric_judge"] for row in found["ledger"][:4]] == [1.0, 0.0, 0.0, 1.0]
    cosine = np.corrcoef([1, 0, 1 / 1.9, 0.9 / 1.9], [1, 0, 0, 1])[0, 1]
    assert found["updates"][0]["cosine"] == pytest.approx(cosine, abs=1e-4)
    assert found["updates"][0]["changed_sign"] == 4  # "apple fig" and "stone" of both groups
    importance = [FRUITS[0] | {"importance": "optional"}, FRUITS[1]]
    found = rejudge(stage(), rows(), [FORMAT, RUBRIC | {"criteria": importance}], NOTHING)
    assert found["rewards"]["rubric_judge"] == {"from": "rulings"}


def test_an_update_whose_advantages_point_the_other_way_is_reversed():
    """In the ledger "fig" was the best; by the rubric it is the worst, and "apple" the best."""
    was = {"apple": 0.0, "fig": 1.0, "apple fig": 0.6, "stone": 0.4}
    found = rejudge(stage(), rows(was), [FORMAT, RUBRIC | {"weights": {"essential": 1.0}}], NOTHING)
    # the rubric has not changed: what the ledger says holds
    assert found["summary"]["reversed"] == 0
    both = RUBRIC | {"weights": {"essential": 1.0, "pitfall": 1.0}}
    backwards = rejudge(stage(), rows(was), [FORMAT, both], NOTHING)
    assert [one["cosine"] < 0 for one in backwards["updates"]] == [True, True]
    assert backwards["summary"]["reversed"] == 2


def test_rulings_of_rules_and_of_both_versions_of_a_response_keep_their_meaning():
    changed = rows()
    versions = [{"apple": 1.0, "fig": 1.0}, {"apple": 0.0, "fig": 1.0}]
    told = (
        ({"rule": "copied"}, 0.0),
        ({"grades": versions[1], "versions": versions}, changed[1].rewards["rubric_judge"]),
        ({"problem": "failed"}, None),
    )
    for place, (detail, value) in enumerate(told):
        given = {"format": 1.0, "rubric_judge": value}
        update = {"details": {"rubric_judge": detail}, "rewards": given}
        changed[place] = changed[place].model_copy(update=update)
    found = rejudge(stage(), changed, [FORMAT, RUBRIC | {"weights": {"pitfall": 3.0}}], NOTHING)
    assert [row.rewards["rubric_judge"] for row in found["ledger"][:4]] == [0.0, 0.75, None, 0.75]


def test_an_advantage_is_made_with_the_stages_own_settings():
    """Dr.GRPO does not divide by the std: 1 - mean of the totals."""
    found = rejudge(stage(algorithm="dr_grpo"), rows(), [FORMAT, RUBRIC], NOTHING)
    totals = [row.reward for row in found["ledger"][:4]]
    assert found["ledger"][0].advantage == pytest.approx(totals[0] - np.mean(totals))


def test_with_dynamic_sampling_the_groups_that_would_be_trained_on_are_chosen_again():
    """Of two candidates for one group the first was trained on; now only the second teaches."""
    some = config(FORMAT, RUBRIC, batch_size=4, dynamic_sampling=True, oversampling=2)
    about = Stage(some, stage().dependencies, stage().prompts, {})
    changed = [row.model_copy(update={"trained": row.group == 0}) for row in rows(rollouts=1)]
    alike = {"grades": {"apple": 1.0, "fig": 0.0}}
    for place in range(4):
        changed[place] = changed[place].model_copy(update={"details": {"rubric_judge": alike}})
    found = rejudge(about, changed, [FORMAT, RUBRIC | {"weights": {"essential": 2.0}}], NOTHING)
    assert [row.trained for row in found["ledger"]] == [False] * 4 + [True] * 4
    # the update would have been about another prompt
    assert found["updates"][0]["cosine"] == pytest.approx(0.0)


def test_a_reward_is_scored_again_where_the_ledger_does_not_know_it(monkeypatch):
    """It is new, its knobs differ, it was another version, or it had no weight where it has some
    now."""
    half = rejudge(stage(), rows(), [{"name": "format", "partial_credit": 0.1}, RUBRIC], NOTHING)
    assert half["rewards"]["format"] == {"from": "scored"}
    new = rejudge(stage(), rows(), [FORMAT, {"name": "exact_answer"}], NOTHING)
    assert new["rewards"]["exact_answer"] == {"from": "scored"}
    assert new["ledger"][0].rewards == {"format": 1.0, "exact_answer": None}
    late = FORMAT | {"weight": {"start": 0.0, "end": 1.0, "from_step": 2, "to_step": 2}}
    found = rejudge(stage(late, RUBRIC), rows(), [FORMAT, RUBRIC], NOTHING)
    assert found["rewards"]["format"] == {"from": "scored"}
    older = stage()
    versions = dict(older.dependencies) | {"rewards.format": 0}
    before = Stage(older.config, versions, older.prompts, {})
    found = rejudge(before, rows(), [FORMAT, RUBRIC], NOTHING)
    assert found["rewards"]["format"] == {"from": "scored"}
    assert REWARDS.versions(["format"])["rewards.format"] == older.dependencies["rewards.format"]


def test_code_is_not_run_again(tmp_path: Path):
    """What the function said is in the ledger; a file with its text in it is refused."""
    ran = tmp_path / "ran"
    source = f"open({str(ran)!r}, 'w')\ndef f(completions, **_): return [0.0] * len(completions)"
    own = {"name": "function", "path": "mine.py:f"}
    before = stage(FORMAT, own | {"source": source})
    changed = [
        row.model_copy(update={"rewards": {"format": 1.0, "function": 0.5}}) for row in rows()
    ]
    found = rejudge(before, changed, [FORMAT, own | {"weight": 3.0}], NOTHING)
    assert found["rewards"]["function"] == {"from": "ledger"}
    with pytest.raises(InputError, match="source is code"):
        rejudge(before, changed, [FORMAT, own | {"source": source}], NOTHING)
    with pytest.raises(InputError, match="is run by `lyceum run` alone"):
        rejudge(stage(), rows(), [FORMAT, own], NOTHING)
    assert not ran.exists()


def test_a_cap_in_dollars_needs_prices_and_holds(tmp_path: Path, monkeypatch):
    """At a dollar per million tokens 32 questions cost more than 0.008 dollars."""
    other = RUBRIC | {"aggregation": "implicit"}
    with pytest.raises(InputError, match="--usd needs"):
        rejudge(stage(), rows(), [FORMAT, other], NOTHING, usd=1.0)
    priced = JUDGE | {"input_usd_per_million": 1.0, "output_usd_per_million": 1.0}
    priced |= {"max_response_tokens": 100}
    resources = Resources({}, Answers(open_store(tmp_path)))
    with ChatServer(reply=lambda body: "no ruling") as server:
        monkeypatch.setenv("TEST_BASE_URL", server.url)
        found = rejudge(stage(), rows(), [FORMAT, other | {"judge": priced}], resources, usd=0.008)
        # each of 16 questions and, as no reply can be read, once more
        assert 0 < server.billed.total() < 32
    assert found["rewards"]["rubric_judge"]["usd"] <= 0.008
    assert all(row.rewards["rubric_judge"] is None for row in found["ledger"])


def test_a_ledger_of_other_prompts_is_refused():
    with pytest.raises(InputError, match="not among the stage's prompts"):
        rejudge(stage(), [rows()[0].model_copy(update={"id": "other"})], [FORMAT], NOTHING)
    with pytest.raises(InputError, match="no rows"):
        rejudge(stage(), [], [FORMAT], NOTHING)
