"""The reward audit: is what a recipe pays for what it wants? Asked before the first update.

The rewards of the stage, combined as it combines them, score the reference traces of some of its
prompts, and beside each of them controls: responses that take no understanding. GRPO moves a policy
towards whatever earns more than its neighbours in a group, so a control that earns more than the
reference is what it will learn. Rewards are looked at at the first update and, where a weight or a
penalty is annealed, at the last.

    dead:R          reward R abstains on every prompt
    flat:R          R gives every response the same
    blind:R         R gives the references no more than its least paid control
    scale:R         what R can change of the total is more than 30 times what another reward can
    unreachable     more than a tenth of the references fail their own check
    too_long        more than a tenth of the references are longer than a response may be
    uninformative   on more than half of the prompts all responses earn the same
    control:C       control C earns more than the references do
    control:C@D     it does on the prompts of domain D

"More" is a mean difference over prompts that lies more than its standard error above zero: a judge
may be noisy. What a recipe allows (`audit.allow`) is shown and lets the stage go on.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Protocol

import numpy as np
from pydantic import Field, field_validator

from schemas.base import AuditFailed, StrictModel
from schemas.examples import Example, Prompt
from tasks.contract.job import Job, read_jsonl
from tasks.contract.reward import Anneal, Response, RewardConfig
from tasks.devices.hosts import agree
from tasks.rehearsal.controls import REFERENCE, references_and_controls
from tasks.statistics.intervals import Interval, bootstrap_mean
from tasks.verification.correct import are_correct

_FEWEST = 4
"""Prompts of one domain that say something about it."""
_SCALE = 30.0
_SHARE = 0.1
_NOTHING = 1e-9


class RewardAudit(StrictModel):
    """How a stage's rewards are audited.

    Attributes:
        prompts: how many, spread over domains, checks and grounding. A judge is asked about ten
            responses to each.
        allow: finding -> the reason why it is meant to be so.
    """

    prompts: int = Field(default=24, ge=8, le=512)
    allow: dict[str, str] = Field(default={})

    @field_validator("allow")
    @classmethod
    def _has_reasons(cls, value: dict[str, str]) -> dict[str, str]:
        bare = [finding for finding, reason in value.items() if not reason.strip()]
        if bare:
            raise ValueError(f"{bare[0]!r} is allowed without a reason; write why it is meant so")
        return value


class Scored(Protocol):
    """`tasks.reinforcement.rewarding.Rewards`."""

    @property
    def components(self) -> dict[str, np.ndarray]: ...
    @property
    def total(self) -> np.ndarray: ...


class Combined(Protocol):
    """`tasks.reinforcement.rewarding.Scorer`."""

    configs: list[RewardConfig]

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[Response], update: int = 1
    ) -> Scored: ...


@dataclass(frozen=True)
class Finding:
    """What the audit found: its name in `audit.allow`, what it means, and why it is allowed."""

    name: str
    text: str
    allowed: str | None = None


def audit_rewards(
    job: Job[Any], config: RewardAudit, scorer: Combined | None, tokens: Callable[[str], int]
) -> None:
    """Audit the rewards of a GRPO job, write `reward_audit.json`, and end the stage when there is
    a finding that is not allowed.

    Args:
        scorer: None on hosts that score nothing.

    Raises:
        AuditFailed: with the table.
    """
    examples = audited(read_jsonl(job.inputs["prompts"] / "train.jsonl", Example), config.prompts)
    if not examples:
        job.log.warning("no prompt has a reference trace, so the rewards cannot be audited")
        return
    found: dict[str, Any] = {}
    if scorer:
        found = audit(
            config,
            examples,
            scorer,
            updates=job.config.steps,
            response_length=job.config.response_length,
            tokens=tokens,
        )
    found = agree(found)
    job.log.info("reward audit, %d prompts:\n%s", len(examples), "\n".join(text_table(found)))
    for one in found["findings"]:
        if one["allowed"]:
            job.log.warning("%s; allowed: %s", one["text"], one["allowed"])
    for name in found["not_found"]:
        job.log.warning("audit.allow names %s, which was not found", name)
    (job.out / "reward_audit.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    judge(found, "this stage")


def audited(examples: Iterable[Example], most: int) -> list[Example]:
    """At most `most` examples, in turn from every domain, check and grounding, by their ids."""
    groups: dict[tuple[Any, ...], list[Example]] = {}
    for example in sorted(examples, key=lambda one: one.id):
        groups.setdefault((example.domain, example.check, example.grounding), []).append(example)
    in_turn = chain.from_iterable(zip_longest(*(groups[name] for name in sorted(groups, key=str))))
    return [example for example in in_turn if example is not None][:most]


def audit(
    config: RewardAudit,
    examples: Sequence[Example],
    scorer: Combined,
    *,
    updates: int,
    response_length: int,
    tokens: Callable[[str], int],
) -> dict[str, Any]:
    """Score references and controls.

    Args:
        examples: those to ask (`audited`).
        updates: how many the stage makes.
        response_length: tokens of a response at most.
        tokens: how many a text has, with its terminator.

    Returns:
        `reward_audit.json`: `prompts` (how many), `updates` (those looked at; each has `responses`:
        name -> mean of each reward and `total`, and by how much the reference earns more),
        `findings`.
    """
    responses = {
        name: [_response(text, tokens, response_length) for text in texts]
        for name, texts in references_and_controls(examples, response_length).items()
    }
    looks = {
        update: _look(examples, responses, scorer, update)
        for update in ([1, updates] if any(map(_changes, scorer.configs)) else [1])
    }
    found = {
        finding.name: finding
        for update, look in looks.items()
        for finding in look.findings(scorer.configs, update)
    }
    for finding in _of_references(examples, responses[REFERENCE]):
        found[finding.name] = finding
    return {
        "prompts": len(examples),
        "updates": {str(update): look.table() for update, look in looks.items()},
        "findings": [
            {"name": one.name, "text": one.text, "allowed": config.allow.get(one.name)}
            for one in found.values()
        ],
        "not_found": sorted(config.allow.keys() - found.keys()),
    }


def judge(found: dict[str, Any], where: str) -> None:
    """Raises AuditFailed, with the table, when there is a finding that is not allowed."""
    bad = [one for one in found["findings"] if one["allowed"] is None]
    if not bad:
        return
    lines = [
        f"the rewards of {where} do not pay for what its references do"
        f" ({found['prompts']} prompts; nothing was trained):",
        *(f"- {one['name']}: {one['text']}" for one in bad),
        *text_table(found),
        "Mend the rewards or the data, or write why it is meant so:"
        f' audit.allow = {{ "{bad[0]["name"]}" = "..." }}',
    ]
    raise AuditFailed("\n".join(lines))


def text_table(found: dict[str, Any]) -> list[str]:
    """The lines of a table of the last look: a response a line, a reward a column."""
    rows = list(found["updates"].values())[-1]
    names = [name for name in next(iter(rows.values())) if name not in ("total", "lead")]
    head = ["response", *names, "total", "reference is ahead by"]
    body = [
        [
            response,
            *(_number(row[name]) for name in names),
            _number(row["total"]),
            _lead(row["lead"]),
        ]
        for response, row in rows.items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [head, *body]]


@dataclass(frozen=True)
class _Look:
    """Scores at one update: response name -> (N,) values of each reward, and totals."""

    domains: list[str]
    values: dict[str, dict[str, np.ndarray]]
    totals: dict[str, np.ndarray]
    asked: dict[str, np.ndarray]

    def table(self) -> dict[str, Any]:
        return {
            response: {
                **{name: _mean(values) for name, values in self.values[response].items()},
                "total": _mean(self.totals[response]),
                "lead": None if response == REFERENCE else _interval(self._ahead(response)),
            }
            for response in self.values
        }

    def findings(self, configs: Sequence[RewardConfig], update: int) -> list[Finding]:
        """What is wrong with the rewards, and which controls win."""
        spreads: dict[str, float] = {}
        found = []
        for config in configs:
            name, given = config.name, self._given(config.name)
            if np.isnan(given).all():
                text = "abstains on every prompt" if self.asked[name].any() else "is asked nothing"
                found.append(Finding(f"dead:{name}", f"reward {name} {text}, so it scores nothing"))
            elif np.nanmax(given) - np.nanmin(given) <= _NOTHING:
                text = f"reward {name} gives every response {np.nanmax(given):g}"
                found.append(Finding(f"flat:{name}", text))
            else:
                spreads[name] = float(
                    np.nanmax(self.asked[name]) * (np.nanmax(given) - np.nanmin(given))
                )
                found += self._blind(name)
        if spreads and (least := min(spreads, key=spreads.__getitem__)):
            most = max(spreads, key=spreads.__getitem__)
            if spreads[most] > _SCALE * spreads[least]:
                text = (
                    f"reward {most} can move the total by {spreads[most]:.3g}, {least} by"
                    f" {spreads[least]:.3g}: {least} decides nothing. Change their weights"
                )
                found.append(Finding(f"scale:{most}", text))
        return found + self._controls(update)

    def _blind(self, name: str) -> list[Finding]:
        reference = _mean(self.values[REFERENCE][name])
        others = {
            response: mean
            for response in self.values
            if response != REFERENCE and (mean := _mean(self.values[response][name])) is not None
        }
        if reference is None or not others or reference > min(others.values()) + _NOTHING:
            return []
        worst = min(others, key=others.__getitem__)
        text = (
            f"reward {name} gives the references {reference:.3g}, and no control less"
            f" ({worst}: {others[worst]:.3g}): it does not read the format that is taught, or"
            " rewards the opposite"
        )
        return [Finding(f"blind:{name}", text)]

    def _controls(self, update: int) -> list[Finding]:
        found = []
        for control in self.values.keys() - {REFERENCE}:
            ahead = self._ahead(control)
            places = {"": np.ones(len(self.domains), bool)}
            for domain in dict.fromkeys(self.domains):
                places[f"@{domain}"] = np.asarray([one == domain for one in self.domains])
            for place, chosen in places.items():
                lead = ahead[chosen & ~np.isnan(ahead)]
                if (place and lead.size < _FEWEST) or not _is_behind(lead):
                    continue
                name = f"control:{control}{place}"
                text = (
                    f"{control} earns {-float(np.mean(lead)):.3g} more than the reference"
                    f" on {lead.size} prompts{place and f' of {place[1:]}'} at update {update}"
                )
                found.append(Finding(name, text))
                break  # what holds everywhere need not be said of a domain
        if (alike := self._alike()) > 0.5:
            text = f"on {alike:.0%} of the prompts the reference and all controls earn the same"
            found.append(Finding("uninformative", text))
        return sorted(found, key=lambda one: one.name)

    def _ahead(self, control: str) -> np.ndarray:
        """(N,) what the reference earns more than a control on each prompt."""
        return self.totals[REFERENCE] - self.totals[control]

    def _given(self, name: str) -> np.ndarray:
        return np.concatenate([values[name] for values in self.values.values()])

    def _alike(self) -> float:
        """The share of prompts on which all responses earn the same."""
        totals = np.stack(list(self.totals.values()))
        scored = ~np.isnan(totals).all(axis=0)
        if not scored.any():
            return 0.0
        spread = np.nanmax(totals[:, scored], axis=0) - np.nanmin(totals[:, scored], axis=0)
        return float(np.mean(spread <= _NOTHING))


def _look(
    examples: Sequence[Example],
    responses: dict[str, list[Response]],
    scorer: Combined,
    update: int,
) -> _Look:
    """All responses are scored at once, as a rollout is."""
    count, prompts = len(examples), [example.as_prompt() for example in examples]
    scored = scorer.score(
        prompts * len(responses), list(chain.from_iterable(responses.values())), update
    )
    places = {name: slice(i * count, (i + 1) * count) for i, name in enumerate(responses)}
    return _Look(
        [str(example.domain) for example in examples],
        {
            response: {name: values[place] for name, values in scored.components.items()}
            for response, place in places.items()
        },
        {response: scored.total[place] for response, place in places.items()},
        {
            config.name: np.asarray([config.weight_of(prompt, update) for prompt in prompts])
            for config in scorer.configs
        },
    )


def _response(text: str, tokens: Callable[[str], int], most: int) -> Response:
    count = tokens(text)
    return Response(text, min(count, most), truncated=count > most)


def _of_references(examples: Sequence[Example], references: list[Response]) -> list[Finding]:
    """What is wrong with the references themselves."""
    correct = are_correct([one.as_prompt() for one in examples], [one.text for one in references])
    judged = [one for one in correct if one is not None]
    failed = [
        example.id for example, right in zip(examples, correct, strict=True) if right is False
    ]
    found = []
    if len(failed) > _SHARE * len(judged):
        text = (
            f"{len(failed)} of {len(judged)} references fail the check of their own prompts (the"
            f" first: {failed[0]}), so no answer earns what they should"
        )
        found.append(Finding("unreachable", text))
    longer = sum(one.truncated for one in references)
    if longer > _SHARE * len(references):
        text = (
            f"{longer} of {len(references)} references are longer than response_length, so the"
            " policy cannot answer as it was taught"
        )
        found.append(Finding("too_long", text))
    return found


def _changes(config: RewardConfig) -> bool:
    return any(isinstance(value, Anneal) for _, value in config)


def _is_behind(lead: np.ndarray) -> bool:
    """Whether the mean lies more than its standard error below zero."""
    if lead.size == 0:
        return False
    error = float(np.std(lead, ddof=1)) / math.sqrt(lead.size) if lead.size > 1 else 0.0
    return float(np.mean(lead)) < -max(error, _NOTHING)


def _mean(values: np.ndarray) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmean(values))


def _interval(lead: np.ndarray) -> dict[str, float] | None:
    known = lead[~np.isnan(lead)]
    if known.size == 0:
        return None
    interval: Interval = bootstrap_mean(known.tolist(), seed=0)
    return {"mean": float(np.mean(known)), "low": interval.low, "high": interval.high}


def _number(value: float | None) -> str:
    return "abstains" if value is None else f"{value:.3g}"


def _lead(lead: dict[str, float] | None) -> str:
    return "" if lead is None else f"{lead['mean']:.3g} [{lead['low']:.3g}, {lead['high']:.3g}]"
