"""TF-IDF relevance: the similarity of a response's words to a reference's, weighted by how rare
they are in the training corpus.

    r = min(1, cosine(part, reference) / enough)      0 for a malformed response

The corpus is the stage's training rows (`train.jsonl` of the `prompts` input): one document per
row, its prompt and its trace. `tasks.data.term_weights` computes the cosine as scikit-learn's
TfidfVectorizer does, in compiled code on the CPU that releases the interpreter lock, so the device
and the other rewards go on meanwhile.

IDEA-E (third place of google-tunix-hackathon) rewarded "context-relevant vocabulary in the
reasoning trace"; its definition is not public. `part = "reasoning", against = "prompt"` is that
idea. A list of words can earn a reward on words. The defences:

stuffing      a cosine does not grow with length, and with `sublinear` a word repeated ten times
              weighs 3.3 times as much, not ten; repeating one word turns the vector away from the
              reference.
echoing       with `ignore_prompt` the words of the prompt weigh nothing on either side: repeating
              the question earns 0.
overshooting  with `enough` below 1, any similarity from there on earns 1: set it to that of honest
              traces, so that copying earns no more.
format        a response that is no well-formed trace earns 0.

It remains a proxy: give verifiable rewards more weight.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from schemas.base import InputError
from schemas.examples import Example, Prompt, parse_trace
from tasks.contract.reward import Resources, Response, Reward, RewardConfig

if TYPE_CHECKING:
    from tasks.data.term_weights import TermWeights


class Config(RewardConfig):
    """What is compared.

    Attributes:
        part: the part of the response that is compared.
        against: `trace`: the reasoning of the training row with this prompt; `answer`: the prompt's
            reference answer; `prompt`: the prompt with its context. Where there is none the reward
            abstains.
        enough: the cosine that earns 1.
        sublinear: count a word that occurs tf times as 1 + ln tf.
        ignore_prompt: give the words of the prompt no weight.
    """

    name: Literal["tfidf"] = "tfidf"
    part: Literal["reasoning", "answer"] = "reasoning"
    against: Literal["trace", "answer", "prompt"] = "trace"
    enough: float = Field(default=1.0, gt=0, le=1)
    sublinear: bool = True
    ignore_prompt: bool = False

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.ignore_prompt and self.against == "prompt":
            raise ValueError(
                "ignore_prompt leaves nothing to compare with when against is 'prompt'; drop one of"
                " them"
            )
        return self


class Relevance:
    """The config with the corpus's term weights and, for `against = "trace"`, the training rows'
    reasoning by prompt id."""

    def __init__(self, config: Config, weights: "TermWeights", traces: dict[str, str]) -> None:
        self.config, self.weights, self.traces = config, weights, traces

    def reference(self, prompt: Prompt) -> str:
        """The reference for a response to `prompt`; empty if there is none."""
        if self.config.against == "trace":
            return self.traces.get(prompt.id, "")
        return prompt.answer if self.config.against == "answer" else prompt.prompt


def prepare(config: Config, resources: Resources) -> Relevance:
    """Fit the term weights. Raises InputError: the `prompts` input has no training rows."""
    from tasks.contract.job import read_jsonl
    from tasks.data.term_weights import TermWeights

    path = resources.inputs.get("prompts", Path()) / "train.jsonl"
    rows = read_jsonl(path, Example) if path.is_file() else []
    if not rows:
        raise InputError(
            "reward 'tfidf' fits its weights on the training rows of the input `prompts`, and"
            f" {str(path)!r} has none; connect a `rebalance` stage that keeps some, or remove the"
            " reward."
        )
    weights = TermWeights(f"{row.prompt}\n{row.reasoning}\n{row.answer}" for row in rows)
    resources.log.info("reward tfidf: %d words in %d training rows", len(weights), len(rows))
    traces = {row.id: row.reasoning for row in rows} if config.against == "trace" else {}
    return Relevance(config, weights, traces)


def score(
    relevance: Relevance, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | None]:
    """The formula above; None where there is no reference."""
    config = relevance.config
    by_id = {prompt.id: prompt for prompt in prompts if relevance.reference(prompt).strip()}
    order = {identity: index for index, identity in enumerate(by_id)}
    pairs = zip(prompts, responses, strict=True)
    traces = [parse_trace(one.text) if prompt.id in order else None for prompt, one in pairs]
    judged = [index for index, trace in enumerate(traces) if trace is not None]
    cosines = relevance.weights.cosines(
        [getattr(traces[index], config.part) for index in judged],
        [relevance.reference(prompt) for prompt in by_id.values()],
        [order[prompts[index].id] for index in judged],
        sublinear=config.sublinear,
        without=[prompt.prompt for prompt in by_id.values()] if config.ignore_prompt else None,
    )
    values: list[float | None] = [0.0 if prompt.id in order else None for prompt in prompts]
    for index, cosine in zip(judged, cosines, strict=True):
        values[index] = min(1.0, float(cosine) / config.enough)
    return values


REWARD = Reward(version=1, config=Config, score=score, prepare=prepare)
