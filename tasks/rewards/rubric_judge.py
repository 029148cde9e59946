"""Rubric judge: a judge grades a response by the criteria of its prompt (Rubrics as Rewards,
2507.17746; G-RaR's reward).

    explicit    r = sum_j w_j c_j / sum_j w_j      c_j: criterion j is satisfied (1) or not (0), or
                                                   its probability
    implicit    r = (x - 1) / 9                    x: one rating from 1 to 10, given all criteria

The weights are the paper's by importance. Every weight is positive: a pitfall is a criterion that
avoiding it satisfies (`tasks.stages.rubrics` ensures that where a teacher writes them). The paper
normalises its rating to [0, 1] without saying how; with (x - 1) / 9 the worst rating is 0. In the
paper implicit aggregation was slightly better; explicit rulings can be weighed again without a
judge (`lyceum rejudge`).

The criteria of a prompt are those of the stage's input `rubrics` if that has some for it, else
those of its domain, else `criteria`; without any it abstains. A response that is no trace, is empty
or only repeats question or criteria earns 0 without being judged (`tasks.judging`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from schemas.base import InputError
from schemas.examples import Prompt
from schemas.rubrics import Rubric
from tasks.contract.job import read_jsonl
from tasks.contract.reward import Judged, Resources, Response
from tasks.judging.anchors import Anchor
from tasks.judging.bench import Case
from tasks.judging.judging_reward import Judging, judging_reward
from tasks.judging.rubric_value import Criteria, RubricConfig, criteria_of, value_of
from tasks.judging.sheets import Item, Sheet, one_line

_CRITERIA_IN_ALL = 12
"""Criteria of a rubric that is not known yet, to count questions."""


class Config(RubricConfig):
    """See RubricConfig."""

    name: Literal["rubric_judge"] = "rubric_judge"


def prepare(config: Config, resources: Resources) -> Judging[Config]:
    """Read the rubrics and open the judge. Raises InputError: there are no criteria at all; and
    what `Judging.begin` raises."""
    directory = resources.inputs.get("rubrics")
    written = read_jsonl(directory / "rubrics.jsonl", Rubric) if directory else []
    rubrics = {one.id: one.criteria for one in written}
    _require_criteria(config, rubrics)
    return Judging.begin(config, resources, partial(_anchored, config), rubrics)


def foresee(config: Config, inputs: Mapping[str, Any], response_length: int) -> None:
    """Raises InputError: there are no criteria, nor a stage that writes some."""
    _require_criteria(config, inputs.get("rubrics"))


def _require_criteria(config: Config, rubrics: object) -> None:
    if not (rubrics or config.criteria or config.domain_criteria):
        raise InputError(
            "reward rubric_judge has no criteria: connect a stage of kind rubrics to its input"
            " `rubrics`, or set criteria."
        )


def score(
    judging: Judging[Config], prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[Judged]:
    """Numbers from 0 to 1, None where there are no criteria or the judge gave no ruling; details as
    in `tasks.judging.bench`."""
    pairs = zip(prompts, responses, strict=True)
    cases = (case_of(judging.config, judging.criteria, prompt, one.text) for prompt, one in pairs)
    return judging.judge(cases, responses)


def case_of(
    config: Config, rubrics: Mapping[str, Criteria], prompt: Prompt, completion: str
) -> Case | None:
    """A response as a case for the judge; None: its prompt has no criteria with a weight."""
    criteria = criteria_of(config, rubrics, prompt)
    if not config.weighs(criteria):
        return None
    texts = tuple(criterion.text for criterion in criteria)
    return Case(prompt, completion, sheet_of(config, criteria), value_of(config, criteria), texts)


def sheet_of(config: Config, criteria: Criteria) -> Sheet:
    """The judge's sheet. Weights and, with explicit rulings, importance are not in it, so that they
    can change without new rulings."""
    if config.aggregation == "explicit":
        items, guide = tuple(Item(one.title, one.text, "satisfied") for one in criteria), ""
    else:
        importance = {"pitfall": "a pitfall to avoid"}
        named = [(importance.get(one.importance, one.importance), one.text) for one in criteria]
        listed = "\n".join(f"- ({name}) {one_line(text)}" for name, text in named)
        guide = f"A good response satisfies these criteria:\n{listed}\n\n"
        on_the_whole = "How good the response is on the whole, by these criteria and their"
        items = (Item("rating", f"{on_the_whole} importance.", "rating"),)
    return Sheet(items, guide, config.longest, config.response_format)


def _anchored(config: Config, anchor: Anchor) -> Case:
    sheet, value = sheet_of(config, anchor.criteria), value_of(config, anchor.criteria)
    return Case(anchor.as_prompt(), anchor.response, sheet, value)


def _questions(config: Config) -> int:
    """The assumed number of criteria per prompt, which is not known before rubrics are written."""
    if config.aggregation == "implicit":
        return 1
    return max(map(len, (config.criteria, *config.domain_criteria.values()))) or _CRITERIA_IN_ALL


REWARD = replace(judging_reward(Config, prepare, score, _questions), foresee=foresee)
