"""The reward audit names each of the defects that recipes had, and finds none in sound rewards."""

import json
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.base import AuditFailed
from schemas.examples import GROUNDED_REFUSAL, Constraint, Domain, Example, Prompt
from tasks.contract.job import write_jsonl
from tasks.contract.reward import REWARDS, Resources, Response, Reward, RewardConfig
from tasks.models.tiny import tiny_tokenizer
from tasks.rehearsal.audit_responses import RESPONSES, references_and_controls
from tasks.rehearsal.reward_audit import audit, audit_rewards, audited, require_allowed
from tasks.reinforcement.grpo_config import RewardAudit
from tasks.reinforcement.rewarding import Scorer, parse_rewards
from tasks.stages import grpo
from tests.tasks.jobs import job_at

FORMAT, EXACT = {"name": "format", "weight": 0.2}, {"name": "exact_answer"}


def sums(count: int = 12) -> list[Example]:
    about = {"domain": Domain.MATH, "check": "numeric"}
    return [
        Example(
            id=f"{i:016x}",
            prompt=f"What is {i} plus {i}?",
            answer=str(2 * i),
            **about,
            reasoning=f"{i} and {i} make {2 * i}.",
        )
        for i in range(1, count + 1)
    ]


def grounded(count: int = 12, *, quoted: bool, channels: Any = "trace") -> list[Example]:
    """Half of the questions are answered by their context. `quoted`: where the format has it."""
    found = []
    for i in range(count):
        context = f"Doctor Ward number {i} works in the large city of Rome since May."
        told = i % 2 == 0
        question = "Where does the doctor work?" if told else "Who pays the doctor?"
        own = channels == "trace"
        said = f"The context says: {context}" if quoted and told and own else "This follows."
        found.append(
            Example(
                id=f"{i:016x}",
                prompt=f"Context: {context}\nQuestion: {question}",
                domain=Domain.SCIENCE,
                answer="Rome" if told else GROUNDED_REFUSAL,
                check="exact",
                reasoning=said if told else "The context does not say this.",
                context=context,
                grounding="answerable" if told else "unanswerable",
                channels=channels,
                proof=f'"{context}"' if quoted and told and not own else "",
            )
        )
    return found


def findings(examples, *rewards, updates=1, response_length=64, **config) -> dict[str, str]:
    with closing(Scorer(parse_rewards(rewards, "rewards"), Resources({}, answers=None))) as scorer:
        found = audit(
            RewardAudit.parse(config), examples, scorer, updates=updates,
            response_length=response_length, tokens=lambda text: len(text.split()),
        )  # fmt: skip
    return {one["name"]: one["text"] for one in found["findings"]}


@pytest.fixture
def reward(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds a reward of one function, of prompts and responses."""

    def add(name: str, score: Any) -> dict[str, Any]:
        made = Reward(version=1, config=RewardConfig, score=lambda config, *given: score(*given))
        known = REWARDS.__class__.__getitem__
        found = lambda self, asked: made if asked == name else known(self, asked)  # noqa: E731
        monkeypatch.setattr(REWARDS.__class__, "__getitem__", found)
        return {"name": name}

    return add


def test_sound_rewards_have_no_finding() -> None:
    assert findings(sums(), FORMAT, EXACT) == {}
    assert findings(grounded(quoted=True), FORMAT, {"name": "dipg", "weight": 0.033}) == {}
    # as many responses as a plan counts
    assert len(references_and_controls(sums(), 64)) == RESPONSES


def test_an_answer_without_a_quotation_earns_less_than_always_abstaining() -> None:
    """dipg v4 as the recipe dipg_safety had it: right without a quotation -25, a wrong abstention
    +10 for its form."""
    found = findings(grounded(quoted=False), {"name": "dipg", "version": "v4"})
    assert "control:abstain" in found


def test_a_reward_that_reads_another_format_than_is_taught_is_flat(reward: Any) -> None:
    """Whichever of two is taught; our own rewards read the prompt's."""
    for channels, other in (("trace", "<think>"), ("xml", "<reasoning>")):
        rows = grounded(quoted=True, channels=channels)
        assert findings(rows, FORMAT, {"name": "dipg", "weight": 0.033}) == {}
        reads = partial(lambda tag, _, said: [float(tag in one.text) for one in said], other)
        found = findings(rows, FORMAT, reward("strange", reads))
        assert found == {"flat:strange": "reward strange gives every response 0"}


def test_a_check_that_no_prompt_has_leaves_its_reward_dead() -> None:
    free = [one.model_copy(update={"check": "none"}) for one in sums()]
    assert "abstains on every prompt" in findings(free, FORMAT, EXACT)["dead:exact_answer"]
    nowhere = {**EXACT, "domains": {"coding": 1.0}}
    assert "is asked nothing" in findings(sums(), FORMAT, nowhere)["dead:exact_answer"]


PLANTED: dict[str, tuple[Any, list[str]]] = {
    "a judge that always says ten": (lambda one: 10.0, ["flat:planted"]),
    "pay for length": (lambda one: float(one.tokens), ["control:endless", "scale:planted"]),
    "the wrong sign": (lambda one: -float("make" in one.text), ["blind:planted"]),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_defect_of_a_reward_is_named(what: str, reward: Any) -> None:
    value, names = PLANTED[what]
    planted = reward("planted", lambda prompts, responses: [value(one) for one in responses])
    assert {*names} <= findings(sums(), EXACT, planted).keys()


def test_a_weight_that_is_off_by_a_hundred_is_named() -> None:
    assert "scale:exact_answer" in findings(sums(), FORMAT, {**EXACT, "weight": 100.0})


def test_each_domain_in_which_a_control_wins_is_named(reward: Any) -> None:
    """Copying pays in two of three domains, not on the whole."""
    domains = (Domain.MATH, Domain.CODING, Domain.SCIENCE)
    rows = [one.model_copy(update={"domain": domains[i % 3]}) for i, one in enumerate(sums(12))]

    def copies(prompts: Sequence[Prompt], responses: Sequence[Response]) -> list[float]:
        return [
            9.0 * (one.text.count("make") > 0)
            if prompt.domain == Domain.SCIENCE
            else 1.0 * (prompt.prompt in one.text)
            for prompt, one in zip(prompts, responses, strict=True)
        ]

    found = findings(rows, reward("copies", copies))
    assert {"control:copy@math", "control:copy@coding"} <= found.keys()
    assert "control:copy" not in found


def test_a_reward_of_the_prompt_alone_teaches_nothing(reward: Any) -> None:
    length = reward("length", lambda prompts, _: [float(len(one.prompt)) for one in prompts])
    found = findings(sums(), length)
    assert found["uninformative"].startswith("on 100% of the prompts")


def test_penalties_that_grow_are_looked_at_at_their_end() -> None:
    """At update 1 a missing quotation costs nothing; at update 10 it does."""
    penalties = {"start": 0.0, "end": 1.0, "from_step": 2, "to_step": 10}
    found = findings(grounded(quoted=False), {"name": "dipg", "penalties": penalties}, updates=10)
    assert found["control:abstain"].endswith("at update 10")


def test_a_reward_that_is_not_asked_at_one_end_of_its_schedule_is_not_dead() -> None:
    """A reward's weight may begin or end at 0; it was dead at that update, and ended the stage."""
    grows = {**EXACT, "weight": {"start": 0.0, "end": 1.0, "to_step": 10}}
    fades = {**FORMAT, "weight": {"start": 0.2, "end": 0.0, "to_step": 10}}
    assert findings(sums(), grows, FORMAT, updates=10) == {}
    assert findings(sums(), EXACT, fades, updates=10) == {}
    never = {**EXACT, "weight": {"start": 0.0, "end": 1.0, "from_step": 20, "to_step": 30}}
    assert [*findings(sums(), never, FORMAT, updates=10)] == ["dead:exact_answer"]


def test_references_that_fail_their_check_or_do_not_fit_are_found() -> None:
    impossible = {"check": "constraints", "constraints": (Constraint(name="max_words", value=0),)}
    unreachable = [one.model_copy(update=impossible) for one in sums()]
    assert "12 of 12 references fail" in findings(unreachable, FORMAT, EXACT)["unreachable"]
    found = findings(sums(), FORMAT, EXACT, response_length=4)
    assert "12 of 12 references are longer than response_length" in found["too_long"]


def test_what_is_allowed_lets_the_stage_go_on_and_what_is_not_ends_it() -> None:
    examples = grounded(quoted=False)
    given = {"updates": 1, "response_length": 64, "tokens": len}
    rewards = parse_rewards([{"name": "dipg"}], "rewards")
    with closing(Scorer(rewards, Resources({}, answers=None))) as scorer:
        found = audit(RewardAudit(), examples, scorer, **given)
        with pytest.raises(AuditFailed, match=r"control:abstain.*\n(.*\n)*reference +.*\nempty"):
            require_allowed(found)
        allow = {one["name"]: "meant" for one in found["findings"]} | {"flat:dipg": "meant, too"}
        found = audit(RewardAudit(allow=allow), examples, scorer, **given)
    require_allowed(found)
    assert found["not_found"] == ["flat:dipg"]


def test_a_stage_leaves_the_audit_or_ends_with_its_table(tmp_path: Path) -> None:
    """GRPO's own config: `exact_answer` is dead where no prompt has a check."""
    table = {"steps": 10, "batch_size": 8, "prompt_length": 32, "response_length": 64}
    table |= {"rewards": [FORMAT, EXACT], "optimizer": {"learning_rate": 1e-3}}
    config = grpo.Config.parse(table)
    job = job_at(tmp_path, config, {"prompts": tmp_path})
    free = [one.model_copy(update={"check": "none"}) for one in sums()]
    rewards = parse_rewards(config.rewards, "rewards")
    with closing(Scorer(rewards, Resources({}, answers=None))) as scorer:
        write_jsonl(tmp_path / "train.jsonl", sums())
        audit_rewards(job, config.audit, scorer, tiny_tokenizer())
        assert json.loads((job.out / "reward_audit.json").read_text())["findings"] == []
        write_jsonl(tmp_path / "train.jsonl", free)
        with pytest.raises(AuditFailed, match=r"dead:exact_answer(.*\n)*reference +1 +abs"):
            audit_rewards(job, config.audit, scorer, tiny_tokenizer())


def test_prompts_are_taken_in_turn_from_every_domain_check_and_grounding() -> None:
    code = [
        one.model_copy(update={"domain": Domain.CODING, "id": f"c{one.id[1:]}"}) for one in sums(3)
    ]
    chosen = audited([*sums(100), *code, *grounded(4, quoted=True)], 8)
    kinds = [(one.domain, one.grounding) for one in chosen]
    assert len(set(kinds)) == 4
    assert max(kinds.count(kind) for kind in kinds) == 2
