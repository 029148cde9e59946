"""Judge a finished GRPO stage again, from its ledger: what other rewards, rubrics or weights would
have given the same responses.

Nothing is sampled. Each rollout gets new rewards, and new advantages by the stage's own settings,
compared with those that it was trained on:

    cosine    between the advantages of the rollout's responses before and after; a response that
              was not trained on has 0. The update moves the policy along sum_i A_i grad log
              pi(o_i), and each response's share is the same in both, so below 0 the update would
              have pushed the other way overall. None: all advantages of one side are 0.

Each update is looked at by itself: with other rewards the policy, and so its responses, would soon
have differed. `lyceum rejudge` calls this; training does not.

Code that a recipe named is not run again: its values are in the ledger.

The values of each reward are from one of three sources: *ledger*, where only its weights have
changed; *rulings*, where only the weights of a rubric's criteria have; otherwise they are *scored*,
without asking again for rulings that are in the store.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np

from schemas.base import InputError
from schemas.examples import Prompt
from schemas.ledger import LedgerRow
from schemas.rubrics import Criterion
from tasks.contract.kinds import stage_kind
from tasks.contract.reward import Resources, Response, RewardConfig
from tasks.judging.judge import EndpointJudgeConfig
from tasks.judging.rubric_value import RubricConfig, criteria_of, weighed_again
from tasks.reinforcement.grpo_config import Config
from tasks.reinforcement.rewarding import Rewards, Scorer, combine, parse_rewards
from tasks.reinforcement.rollout import group_advantages, number_of

Source = Literal["ledger", "rulings", "scored"]
Rubrics = Mapping[str, tuple[Criterion, ...]]

_AHEAD = 2
"""Rollouts that are being scored beside the one that is waited for."""

_WEIGHTS = {"weight", "domains"}
_CRITERIA_WEIGHTS = {*_WEIGHTS, "weights", "criteria", "domain_criteria", "calibration"}


@dataclass(frozen=True)
class Stage:
    """The stage that is judged again.

    Attributes:
        config: its config.
        dependencies: those of its manifest: with which versions of the rewards it ran.
        prompts: by id.
        rubrics: the criteria of its reward `rubric_judge`, by prompt.
    """

    config: Config
    dependencies: Mapping[str, str | int]
    prompts: Mapping[str, Prompt]
    rubrics: Rubrics


def rejudge(
    stage: Stage,
    rows: Sequence[LedgerRow],
    tables: Sequence[dict[str, Any]],
    resources: Resources,
    rubrics: Rubrics | None = None,
    *,
    usd: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Judge all responses of a stage again.

    Args:
        rows: the stage's ledger.
        tables: the new rewards, as in a recipe.
        resources: what they are prepared with; its input `rubrics`, if any, has the new rubrics.
        rubrics: those, if they are others than the stage's.
        usd: the most that each endpoint judge may cost; None: what its table says.
        progress: told (rollouts done, rollouts).

    Returns:
        `updates`, one object per rollout; `rewards`, where each came from and what it cost;
        `summary`; `ledger`, the new rows.

    Raises:
        InputError: a table does not validate, or a reward cannot be prepared; the ledger is empty
            or of other prompts.
        StageFailed: a judge gave too few rulings.
    """
    if not rows:
        raise InputError("the ledger has no rows; there is nothing to judge again.")
    if unknown := sorted({row.id for row in rows} - stage.prompts.keys()):
        raise InputError(
            f"the ledger's prompt {unknown[0]!r} is not among the stage's prompts; its input is"
            " another artifact."
        )
    configs = [_untried(config, usd) for config in parse_rewards(tables, "rewards")]
    if any(getattr(config, "source", "") for config in configs):
        raise InputError("a reward's source is code, which `lyceum run` alone runs; leave it out.")
    before = {config.name: config for config in parse_rewards(stage.config.rewards, "rewards")}
    sources = {
        config.name: _source(config, before.get(config.name), stage, rubrics, rows)
        for config in configs
    }
    scored = [config for config in configs if sources[config.name] == "scored"]
    rollouts = [
        _Rollout(stage, list(of_one), rubrics or stage.rubrics)
        for _, of_one in groupby(rows, key=lambda row: row.rollout)
    ]
    updates, ledger = [], []
    scorer = Scorer(scored, resources)
    try:
        ahead: deque[Future[Rewards]] = deque()
        for number, rollout in enumerate(rollouts, 1):
            ahead += [
                one.begin(scorer) for one in rollouts[number - 1 + len(ahead) : number + _AHEAD]
            ]
            found = rollout.judged(configs, sources, ahead.popleft().result())
            updates.append(_compared(rollout.rows, found))
            ledger += found
            progress(number, len(rollouts))
        counted = scorer.values()
    finally:
        scorer.close()
    asked = {
        name: {
            "questions": values["asked"],
            "new": values["asked"] - values["cached"],
            "usd": values["usd"],
        }
        for name, values in counted.items()
    }
    rewards = {name: {"from": source, **asked.get(name, {})} for name, source in sources.items()}
    return {"updates": updates, "rewards": rewards, "summary": _summary(updates), "ledger": ledger}


def _untried(config: RewardConfig, usd: float | None) -> RewardConfig:
    """The reward without its judge's calibration, since nothing is trained, and with `usd` as its
    judge's budget."""
    changes: dict[str, Any] = (
        {"calibration": False} if "calibration" in type(config).model_fields else {}
    )
    judge = getattr(config, "judge", None)
    if usd is not None and isinstance(judge, EndpointJudgeConfig):
        if not (judge.input_usd_per_million or judge.output_usd_per_million):
            raise InputError(
                f"reward {config.name}: --usd needs input_usd_per_million and"
                " output_usd_per_million of its judge; without prices nothing costs anything."
            )
        changes["judge"] = judge.model_copy(
            update={"max_usd": usd if judge.max_usd is None else min(usd, judge.max_usd)}
        )
    return config.model_copy(update=changes)


def _source(
    config: RewardConfig,
    old: RewardConfig | None,
    stage: Stage,
    rubrics: Rubrics | None,
    rows: Sequence[LedgerRow],
) -> Source:
    """The source of a reward's values. The ledger lacks what the stage did not ask, because its
    weight was 0."""
    if old is None or any(
        stage.dependencies.get(name) != value for name, value in _dependencies(stage, old).items()
    ):
        return "scored"
    asked = {(stage.prompts[row.id].domain, _planned(row)): stage.prompts[row.id] for row in rows}
    if any(
        config.weight_of(prompt, update) > 0 and not old.weight_of(prompt, update) > 0
        for (_, update), prompt in asked.items()
    ):
        return "scored"
    before = old.model_dump(mode="json")
    differs = {name for name, now in config.model_dump(mode="json").items() if before[name] != now}
    differs -= {"judge"} if _same_judge(config, old) else set()
    # of a reward `function`: the file is not read again
    differs -= set() if getattr(config, "source", "") else {"source"}
    same_rubrics = rubrics is None or not isinstance(config, RubricConfig)
    if differs <= {*_WEIGHTS, "calibration"} and same_rubrics:
        return "ledger"
    if not (isinstance(config, RubricConfig) and isinstance(old, RubricConfig)):
        return "scored"
    if config.aggregation == "explicit" and differs <= _CRITERIA_WEIGHTS:
        pairs = [
            (
                criteria_of(old, stage.rubrics, prompt),
                criteria_of(config, rubrics or stage.rubrics, prompt),
            )
            for prompt in stage.prompts.values()
        ]
        if all(
            {(one.title, one.text) for one in ours} == {(one.title, one.text) for one in theirs}
            for ours, theirs in pairs
        ):
            return "rulings"
    return "scored"


def _same_judge(config: RewardConfig, old: RewardConfig) -> bool:
    """Whether two judges differ at most in their budget and in the allowed share of abstentions."""
    both = [
        {**one.model_dump().get("judge", {}), "max_usd": None, "max_abstained": None}
        for one in (config, old)
    ]
    return both[0] == both[1]


def _dependencies(stage: Stage, reward: RewardConfig) -> dict[str, str | int]:
    """The facts that decide a reward's values today, as in a stage's key, except its judge's
    anchors, which decide none."""
    alone = stage.config.model_copy(update={"rewards": (reward.model_dump(mode="json"),)})
    found: dict[str, str | int] = stage_kind("grpo").dependencies(alone, None)
    return {name: value for name, value in found.items() if not name.endswith("judging.anchors")}


class _Rollout:
    """The responses of one rollout."""

    def __init__(self, stage: Stage, rows: Sequence[LedgerRow], rubrics: Rubrics) -> None:
        self.stage, self.rows, self.rubrics = stage, rows, rubrics
        self.prompts = [stage.prompts[row.id] for row in rows]

    def begin(self, scorer: Scorer) -> "Future[Rewards]":
        """Start scoring the rewards that are scored again, if there are any."""
        if not scorer.configs:
            nothing: Future[Rewards] = Future()
            nothing.set_result(Rewards({}, np.empty(0)))
            return nothing
        responses = [Response(row.completion, row.tokens, row.truncated) for row in self.rows]
        return scorer.submit(self.prompts, responses, _planned(self.rows[0]))

    def judged(
        self, configs: Sequence[RewardConfig], sources: Mapping[str, Source], scored: Rewards
    ) -> list[LedgerRow]:
        """The rows with new rewards, totals and advantages."""
        config, update = self.stage.config, _planned(self.rows[0])
        components, details = dict(scored.components), dict(scored.details)
        for one in configs:
            if sources[one.name] != "scored":
                components[one.name] = self._of_ledger(one, sources[one.name])
                details[one.name] = [row.details.get(one.name, {}) for row in self.rows]
        total = combine(configs, components, self.prompts, update)
        advantages = group_advantages(total, config.group_size, config.scale_rewards)
        trained = _trained(config, advantages, np.array([row.trained for row in self.rows]))
        return [
            row.model_copy(
                update={
                    "rewards": {name: number_of(components[name][place]) for name in sources},
                    "details": {
                        name: every[place] for name, every in details.items() if every[place]
                    },
                    "reward": number_of(total[place]),
                    "advantage": float(advantages[place]),
                    "trained": bool(trained[place]),
                }
            )
            for place, row in enumerate(self.rows)
        ]

    def _of_ledger(self, config: RewardConfig, source: Source) -> np.ndarray:
        """(N,) values of a reward from the ledger."""
        values = [row.rewards.get(config.name) for row in self.rows]
        if source == "rulings" and isinstance(config, RubricConfig):
            values = [
                weighed_again(
                    config,
                    criteria_of(config, self.rubrics, prompt),
                    row.details.get(config.name, {}),
                    value,
                )
                for prompt, row, value in zip(self.prompts, self.rows, values, strict=True)
            ]
        return np.array(values, np.float64)


def _planned(row: LedgerRow) -> int:
    """The update whose weights and penalties a response is scored with."""
    return row.step if row.frozen is None else row.frozen


def _trained(config: Config, advantages: np.ndarray, before: np.ndarray) -> np.ndarray:
    """(N,) bool: which responses would have been trained on. With dynamic sampling: the first
    groups whose rewards differ."""
    if not config.dynamic_sampling:
        return before
    teaches = np.abs(advantages).reshape(-1, config.group_size).max(axis=1) > 0
    teaches[np.flatnonzero(teaches)[config.groups :]] = False
    return np.repeat(teaches, config.group_size)


def _compared(before: Sequence[LedgerRow], after: Sequence[LedgerRow]) -> dict[str, Any]:
    """The changes in a rollout. `changed_sign` counts advantages that change between positive and
    negative."""
    old, new = (np.array([row.advantage * row.trained for row in rows]) for rows in (before, after))
    norms = float(np.linalg.norm(old) * np.linalg.norm(new))
    return {
        "rollout": before[0].rollout,
        "step": before[0].step,
        "responses": len(before),
        "reward_before": _mean(row.reward for row in before),
        "reward_after": _mean(row.reward for row in after),
        "unrewarded": sum(row.reward is None for row in after),
        "changed_sign": int(np.sum(old * new < 0)),
        "cosine": float(old @ new) / norms if norms > 0 else None,
    }


def _summary(updates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cosines = [one["cosine"] for one in updates if one["cosine"] is not None]
    return {
        "rollouts": len(updates),
        "responses": sum(one["responses"] for one in updates),
        "reversed": sum(cosine < 0 for cosine in cosines),
        "undecided": len(updates) - len(cosines),
        "cosine_mean": float(np.mean(cosines)) if cosines else None,
        "changed_sign": sum(one["changed_sign"] for one in updates),
        "reward_before": _mean(one["reward_before"] for one in updates),
        "reward_after": _mean(one["reward_after"] for one in updates),
    }


def _mean(values: Iterator[float | None] | Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
