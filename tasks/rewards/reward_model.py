"""Learned reward: the probability, by a reward model, that this trace is better than an average one
(stage kind `reward_model`).

The model scores each step of the reasoning and the answer. The soft minimum of these scores,
centred and scaled by measurements on pairs outside its training set, goes through a sigmoid: 0.5 is
the average trace of those pairs. The ledger has the steps' scores.

A reward model knows traces only; its scores of anything else are noise that a policy would exploit.
So a response that is no well-formed trace, or is longer than those that the model was trained on,
is worth 0 by rule and is not scored. (An abstention would give it the mean of its group.) A prompt
that is longer than those of its training abstains.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from schemas.base import InputError
from schemas.examples import Prompt, parse_trace
from tasks.contract.reward import Judged, Resources, Response, Reward, RewardConfig
from tasks.reward_models import steps
from tasks.reward_models.reliability import Calibration, read_calibration
from tasks.reward_models.steps import trace_row

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.reward_models.scoring import Scores, TraceScorer


InputT = TypeVar("InputT")


class Config(RewardConfig):
    """`batch_size` traces are scored at a time."""

    name: Literal["reward_model"] = "reward_model"
    batch_size: int = Field(default=32, ge=1)


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """The rules that split traces into steps."""
    return {"data.steps": steps.VERSION}


class Prepared:
    """The model on its devices, with the calibration of its scores."""

    def __init__(self, scorer: "TraceScorer", calibration: Calibration) -> None:
        self.scorer, self.calibration = scorer, calibration

    def judged(self, scores: "Scores") -> Judged:
        """The reward of a trace's scores; the ledger keeps them as logits, to three places."""
        detail = {
            "score": round(scores.trace, 3),
            "answer": round(scores.answer, 3),
            "steps": [round(value, 3) for value in scores.steps],
        }
        return Judged(self.calibration.reward(scores.trace), detail)


def prepare(config: Config, resources: Resources) -> Prepared:
    """Load the model from the input `reward_model`.

    Raises:
        InputError: it is not connected, is no reward model, or was trained on shorter responses
            than this stage's.
    """
    from tasks.devices.hosts import make_mesh
    from tasks.models.scalar_head import load_scoring_model
    from tasks.reward_models.scoring import TraceScorer

    directory = _connected(resources.inputs)
    calibration = read_calibration(directory)
    _require_length(resources.response_length, calibration.response_length)
    mesh = make_mesh({"rewards.reward_model.batch_size": config.batch_size}, resources.devices)
    loaded = load_scoring_model(directory, mesh)
    return Prepared(TraceScorer(loaded, config.batch_size, calibration), calibration)


def foresee(config: Config, inputs: Mapping[str, Any], response_length: int) -> None:
    """Raises InputError: no reward model is connected, or one for shorter responses."""
    _require_length(response_length, _connected(inputs).response_length)


def _connected(inputs: Mapping[str, InputT]) -> InputT:
    if "reward_model" not in inputs:
        raise InputError(
            'reward reward_model needs the input reward_model: add `reward_model = "STAGE"` to the'
            " inputs of this stage."
        )
    return inputs["reward_model"]


def _require_length(responses: int, trained_on: int) -> None:
    if responses > trained_on:
        raise InputError(
            f"the reward model was trained on responses of at most {trained_on} tokens, and here"
            f" they have up to {responses}: of longer ones it knows nothing. Raise response_length"
            " of that stage, or lower it here."
        )


def programs(
    config: Config, model: "LoadedModel", calls: float, upstream: Mapping[str, Any]
) -> "list[Program]":
    """What scoring so many responses compiles: the model of the stage that feeds it, on the devices
    of `model`."""
    from tasks.models.loading import model_config
    from tasks.models.scalar_head import add_head
    from tasks.planning.programs import abstract_model, on_devices
    from tasks.reward_models.scoring import TraceScorer

    trained = upstream["reward_model"]
    loaded = abstract_model(trained.model, model_config(trained.model), model.mesh)
    own = on_devices(loaded, {"batch_size": config.batch_size})
    add_head(own)
    return [TraceScorer(own, config.batch_size, trained).program(calls / config.batch_size)]


def score(
    prepared: Prepared, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[Judged]:
    """A number in [0, 1]; 0 for a malformed, truncated or too long response; None where the prompt
    is too long for the model."""
    scorer = prepared.scorer
    found: dict[int, Judged] = {}
    asked = {}
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        trace = None if response.truncated else parse_trace(response.text, prompt.channels)
        if trace is None:
            why = "cut off" if response.truncated else "no well-formed trace"
            found[index] = Judged(0.0, {"unscored": why})
            continue
        row = trace_row(scorer.loaded.tokenizer, prompt.prompt, trace)
        if row.fits(scorer.prompt_length, scorer.response_length):
            asked[index] = row
        elif len(row.prompt) > scorer.prompt_length:
            why = "the prompt is longer than the reward model's"
            found[index] = Judged(None, {"unscored": why})
        else:
            found[index] = Judged(0.0, {"unscored": "longer than the reward model's responses"})
    for index, scores in zip(asked, scorer.score(list(asked.values())), strict=True):
        found[index] = prepared.judged(scores)
    return [found[index] for index in range(len(responses))]


REWARD = Reward(
    version=2,
    config=Config,
    score=score,
    prepare=prepare,
    dependencies=dependencies,
    foresee=foresee,
    computes=lambda config: True,
    programs=programs,
)
