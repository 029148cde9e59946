"""What an audit finds in the scores of references and controls (`tasks.rehearsal.reward_audit`)."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from schemas.examples import Example
from tasks.contract.reward import Response, RewardConfig
from tasks.rehearsal.audit_responses import REFERENCE
from tasks.reinforcement.rewarding import Scorer
from tasks.statistics.means import student
from tasks.verification.correct import are_correct

FEWEST = 4
"""Prompts of one domain, or rows of one family, that say something about it."""
SHARE = 0.1
"""The most references that may be wrong."""
_SCALE = 30.0
_NOTHING = 1e-9


class Finding(NamedTuple):
    """What the audit found: its name, as in `audit.allow`, and what it means."""

    name: str
    text: str


@dataclass(frozen=True)
class Look:
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
            name = config.name
            given = np.concatenate([values[name] for values in self.values.values()])
            if not self.asked[name].any():
                continue  # perhaps at another update
            if np.isnan(given).all():
                text = f"reward {name} abstains on every prompt, so it scores nothing"
                found.append(Finding(f"dead:{name}", text))
            elif np.nanmax(given) - np.nanmin(given) <= _NOTHING:
                text = f"reward {name} gives every response {np.nanmax(given):g}"
                found.append(Finding(f"flat:{name}", text))
            else:
                spreads[name] = float(
                    np.nanmax(self.asked[name]) * (np.nanmax(given) - np.nanmin(given))
                )
                found += self._blind(name)
        if spreads:
            least, most = (end(spreads, key=spreads.__getitem__) for end in (min, max))
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
                if (place and lead.size < FEWEST) or not _is_behind(lead):
                    continue
                name = f"control:{control}{place}"
                text = (
                    f"{control} earns {-float(np.mean(lead)):.3g} more than the reference"
                    f" on {lead.size} prompts{place and f' of {place[1:]}'} at update {update}"
                )
                found.append(Finding(name, text))
                if not place:
                    break  # what holds everywhere need not be said of a domain
        if (alike := self._alike()) > 0.5:
            text = f"on {alike:.0%} of the prompts the reference and all controls earn the same"
            found.append(Finding("uninformative", text))
        return sorted(found, key=lambda one: one.name)

    def _ahead(self, control: str) -> np.ndarray:
        """(N,) what the reference earns more than a control on each prompt."""
        return self.totals[REFERENCE] - self.totals[control]

    def _alike(self) -> float:
        """The share of prompts on which all responses earn the same."""
        totals = np.stack(list(self.totals.values()))
        scored = ~np.isnan(totals).all(axis=0)
        if not scored.any():
            return 0.0
        spread = np.nanmax(totals[:, scored], axis=0) - np.nanmin(totals[:, scored], axis=0)
        return float(np.mean(spread <= _NOTHING))


def look(
    examples: Sequence[Example], responses: dict[str, list[Response]], scorer: Scorer, update: int
) -> Look:
    """All responses are scored at once, as a rollout is."""
    count, prompts = len(examples), [example.as_prompt() for example in examples]
    scored = scorer.score(
        prompts * len(responses), list(chain.from_iterable(responses.values())), update
    )
    places = {name: slice(i * count, (i + 1) * count) for i, name in enumerate(responses)}
    return Look(
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


def of_references(examples: Sequence[Example], references: list[Response]) -> list[Finding]:
    """What is wrong with the references themselves."""
    correct = are_correct([one.as_prompt() for one in examples], [one.text for one in references])
    judged = [one for one in correct if one is not None]
    failed = [
        example.id for example, right in zip(examples, correct, strict=True) if right is False
    ]
    found = []
    if len(failed) > SHARE * len(judged):
        text = (
            f"{len(failed)} of {len(judged)} references fail the check of their own prompts (the"
            f" first: {failed[0]}), so no answer earns what they should"
        )
        found.append(Finding("unreachable", text))
    longer = sum(one.truncated for one in references)
    if longer > SHARE * len(references):
        text = (
            f"{longer} of {len(references)} references are longer than response_length, so the"
            " policy cannot answer as it was taught"
        )
        found.append(Finding("too_long", text))
    return found


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
    return {"mean": float(np.mean(known)), **asdict(student(known.tolist()))}
