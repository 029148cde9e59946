"""What the evaluations share: held-out prompts in, greedy completions, rates with intervals, paired differences against a baseline.

A completion is judged when it is made and its verdict is stored in the `EvalItem`; every metric is a count over such items and can be
taken again from `items.jsonl` without the model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from schemas.base import InputError, StageFailed, StrictModel
from schemas.examples import Example, Prompt
from schemas.reports import EvalItem
from tasks.data.tokens import Tokenizer, prompt_tokens
from tasks.hosts import make_mesh
from tasks.intervals import mcnemar, paired_bootstrap, wilson
from tasks.job import Job, read_jsonl
from tasks.journal import Journal
from tasks.verify import for_each

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.programs import Program
    from tasks.sampling import Sampler


class EvalConfig(StrictModel):
    """What every evaluation has.

    `prompt_length` and `response_length` are tokens, fixed for all prompts; `batch_size` prompts are answered at a time. `model` and `seed`
    make the base model where no policy is connected; `seed` also draws the bootstrap. Fewer than `min_items` prompts are refused: 100
    leave a rate uncertain by ten points either way.
    """

    model: str
    seed: int = 0
    batch_size: int = Field(default=64, ge=1)
    prompt_length: int = Field(ge=8)
    response_length: int = Field(ge=8)
    min_items: int = Field(default=100, ge=1)


def held_out(prompts: Path, *, grounded: bool, min_items: int) -> list[Example]:
    """The held-out examples of a rebalance artifact, grounded ones or all others, in file order.

    Raises:
        InputError: there are fewer than `min_items`.
    """
    examples = read_jsonl(prompts / "heldout.jsonl", Example)
    chosen = [example for example in examples if (example.grounding is not None) == grounded]
    if len(chosen) < min_items:
        kind = "grounded" if grounded else "ungrounded"
        raise InputError(
            f"the held-out split has {len(chosen)} {kind} prompts (of {len(examples)}), fewer than min_items = {min_items}: "
            f"a rate over so few says little. Give the rebalance stage more held-out {kind} rows, or lower min_items."
        )
    return chosen


def eval_programs(config: EvalConfig, model: "LoadedModel", prompts: int) -> "list[Program]":
    """What `answer_all` compiles for so many prompts."""
    from tasks.programs import on_devices

    sampler = _sampler(config, on_devices(model, {"batch_size": config.batch_size}))
    return [sampler.program(-(-prompts // config.batch_size))]


def _sampler(config: EvalConfig, loaded: "LoadedModel") -> "Sampler":
    from tasks.sampling import Sampler

    return Sampler(loaded, batch_size=config.batch_size, prompt_length=config.prompt_length, response_length=config.response_length)


class Judge(Protocol):
    """Judges a completion of `tokens` tokens, the terminator included; `truncated` when it was cut off before one."""

    def __call__(self, prompt: Prompt, completion: str, *, tokens: int, truncated: bool) -> EvalItem: ...


def answer_all(job: Job[Any], examples: Sequence[Example], judge: Judge) -> list[EvalItem]:
    """Answer every prompt greedily with the `policy` input's model (the base model when none is connected) and judge the answers.

    Raises:
        InputError: a prompt has more tokens than `prompt_length`. Dropping it would change the denominator from model to model.
        StageFailed: sampling compiled more than one program.
    """
    from tasks.models.loading import policy_or_base

    config: EvalConfig = job.config
    loaded = policy_or_base(job.inputs, config.model, config.seed, make_mesh({"batch_size": config.batch_size}))
    _require_fit(loaded.tokenizer, examples, config.prompt_length)
    sampler = _sampler(config, loaded)
    prompts = [example.prompt for example in examples]
    completions = sampler.generate(
        prompts, journal=Journal(job.work, "answers"), progress=lambda done: job.progress(done, len(prompts), "prompts")
    )
    if sampler.compiles != 1:
        raise StageFailed(f"sampling compiled {sampler.compiles} programs instead of one: its shapes are not fixed")

    def judged(index: int) -> EvalItem:
        one = completions[index]
        return judge(examples[index], one.text, tokens=len(one.tokens), truncated=not one.terminated)

    return for_each(examples, judged)


def _require_fit(tokenizer: Tokenizer, examples: Sequence[Example], prompt_length: int) -> None:
    lengths = [len(prompt_tokens(tokenizer, example.prompt)) for example in examples]
    longest = max(range(len(examples)), key=lengths.__getitem__)
    if lengths[longest] > prompt_length:
        over = sum(length > prompt_length for length in lengths)
        raise InputError(
            f"{over} of {len(examples)} held-out prompts have more than prompt_length = {prompt_length} tokens; the longest has "
            f"{lengths[longest]} (id {examples[longest].id}, source {examples[longest].source!r}). Set prompt_length to at least "
            f"{lengths[longest]}, or leave long rows out in the distill stage."
        )


def answered(prompt: Prompt, completion: str, *, tokens: int, truncated: bool, **verdict: Any) -> EvalItem:
    """The EvalItem of a prompt and its completion; `verdict` holds the fields that a judge decides."""
    return EvalItem(
        id=prompt.id,
        prompt=prompt.prompt,
        domain=prompt.domain,
        family=prompt.family,
        reference=prompt.answer,
        check=prompt.check,
        completion=completion,
        tokens=tokens,
        truncated=truncated,
        context=prompt.context,
        grounding=prompt.grounding,
        **verdict,
    )


def prompt_of(item: EvalItem) -> Prompt:
    """The prompt that an item answers, with all that is needed to judge another answer to it."""
    return Prompt(
        id=item.id,
        prompt=item.prompt,
        domain=item.domain,
        answer=item.reference,
        check=item.check,
        family=item.family,
        context=item.context,
        grounding=item.grounding,
    )


def read_baseline(inputs: dict[str, Path], examples: Sequence[Example]) -> list[EvalItem] | None:
    """The `baseline` input's items, item i being the same prompt as example i; None when no baseline is connected.

    Raises:
        InputError: the baseline answered other prompts.
    """
    if "baseline" not in inputs:
        return None
    items = read_jsonl(inputs["baseline"] / "items.jsonl", EvalItem)
    ours, theirs = [example.id for example in examples], [item.id for item in items]
    if ours != theirs:
        raise InputError(
            f"the baseline evaluation answered {len(theirs)} prompts and this one asks {len(ours)}; {len(set(ours) & set(theirs))} are the "
            "same. A paired comparison needs the same prompts in the same order. Connect both evaluations to one rebalance stage."
        )
    return items


Outcome = Callable[[EvalItem], bool | None]
"""What a rate counts: True or False of an item, None when the item is outside the rate's denominator."""


def measure(
    items: Sequence[EvalItem],
    outcomes: Mapping[str, Outcome],
    *,
    baseline: Sequence[EvalItem] | None = None,
    paired: Collection[str] = (),
    seed: int = 0,
) -> dict[str, float | None]:
    """Every rate in `outcomes` over the items and, with a baseline, the paired difference of those named in `paired`.

    A rate is `{name, name_low, name_high}`: the fraction with its Wilson interval. A difference is `{delta_name, delta_name_low,
    delta_name_high, delta_name_p}`: this model minus the baseline over the same prompts, its paired bootstrap interval and McNemar's exact
    p-value. All are None over an empty denominator.

    Args:
        items: the evaluated model's items.
        outcomes: name of a rate -> what it counts.
        baseline: item i answers the same prompt as `items[i]`.
        paired: rates whose denominator the prompts alone decide; of others, such as a precision, there is no paired difference.
        seed: of the bootstrap.
    """
    metrics: dict[str, float | None] = {}
    for name, outcome in outcomes.items():
        after = [outcome(item) for item in items]
        metrics |= _rate(name, [counted for counted in after if counted is not None])
        if baseline is not None and name in paired:
            before = [outcome(item) for item in baseline]
            pairs = [(old, new) for old, new in zip(before, after, strict=True) if old is not None and new is not None]
            metrics |= _difference(f"delta_{name}", [old for old, _ in pairs], [new for _, new in pairs], seed)
    return metrics


def _rate(name: str, counted: Sequence[bool]) -> dict[str, float | None]:
    if not counted:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    interval = wilson(sum(counted), len(counted))
    return {name: sum(counted) / len(counted), f"{name}_low": interval.low, f"{name}_high": interval.high}


def _difference(name: str, before: Sequence[bool], after: Sequence[bool], seed: int) -> dict[str, float | None]:
    if not after:
        return {name: None, f"{name}_low": None, f"{name}_high": None, f"{name}_p": None}
    interval = paired_bootstrap(before, after, seed=seed)
    mean = (sum(after) - sum(before)) / len(after)
    return {name: mean, f"{name}_low": interval.low, f"{name}_high": interval.high, f"{name}_p": mcnemar(before, after)}
