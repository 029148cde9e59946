"""The common part of evaluations: prompts in, completions and records of them out; rates with
intervals, paired differences to a baseline.

The prompts are the held-out ones of the `prompts` input, where one is connected, and those of the
config's suites. Each completion is judged at once and its verdict stored in the `EvalItem`. Every
metric is a count over such items, and can be computed again without the model from `items.jsonl`
(and, for sampled answers, `samples.jsonl`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from schemas.base import InputError, StageFailed
from schemas.evaluation import HELDOUT, EvalItem, EvalPrompt
from schemas.examples import Prompt, parse_trace
from tasks.contract.job import Job, read_jsonl, write_jsonl
from tasks.contract.journal import Journal
from tasks.contract.kind import Outcome
from tasks.data.tokens import Tokenizer, prompt_tokens
from tasks.devices.hosts import make_mesh
from tasks.evaluation.eval_config import EvalConfig
from tasks.evaluation.familiar import marked
from tasks.evaluation.suite_prompts import (
    heldout_prompts,
    parse_suites,
    suite_prompts,
    suite_size,
)
from tasks.evaluation.worked_examples import NO_ROWS, turns_before
from tasks.statistics.intervals import mcnemar, paired_bootstrap, rate_record, record
from tasks.verification.verify import for_each

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.sampling.slots import SlotSampler


def eval_prompts(job: Job[Any], *, grounded: bool) -> list[EvalPrompt]:
    """All prompts of an evaluation: held-out ones, grounded or all others, then those of its
    suites.

    Raises:
        InputError: there is nothing to ask, or fewer prompts than `min_items`; or what
            `suite_prompts` raises.
    """
    config: EvalConfig = job.config
    prompts = list[EvalPrompt]()
    if rebalance := job.inputs.get("prompts"):
        prompts = heldout_prompts(rebalance, grounded=grounded)
        prompts = prompts if grounded else marked(prompts, rebalance)
    heldout = len(prompts)
    for suite in parse_suites(config.suites, config.KIND):
        prompts += suite_prompts(suite, job.data)
    if not prompts and not config.suites and "prompts" not in job.inputs:
        raise InputError(_NOTHING)
    _require_enough(config, len(prompts), heldout, grounded)
    return prompts


def _require_enough(config: EvalConfig, prompts: int, heldout: int, grounded: bool) -> None:
    if prompts < config.min_items:
        kind = "grounded" if grounded else "ungrounded"
        raise InputError(
            f"there are {prompts} prompts to ask ({heldout} {kind} ones of the held-out"
            f" split), fewer than min_items = {config.min_items}: a rate over so few says little."
            f" Give the rebalance stage more held-out {kind} rows, name a suite, or lower"
            " min_items."
        )


_NOTHING = (
    "there is nothing to ask: connect `prompts` to a rebalance stage, or name suites in the config,"
    ' e.g. suites = [{ name = "gsm8k" }].'
)


def eval_size(config: EvalConfig, upstream: Mapping[str, Any], *, grounded: bool) -> int:
    """How many prompts `eval_prompts` will find, from configs alone. Raises InputError: none, or
    without suites fewer than `min_items`, which a run would find after training."""
    if "prompts" not in upstream and not config.suites:
        raise InputError(_NOTHING)
    if "prompts" not in upstream and config.shots:
        raise InputError(NO_ROWS.format(shots=config.shots))
    heldout = 0
    if rebalance := upstream.get("prompts"):
        quotas = rebalance.grounding_quotas if grounded else rebalance.quotas
        heldout = sum(quota.total(HELDOUT) for quota in quotas.values())
    if not config.suites:
        _require_enough(config, heldout, heldout, grounded)
    return heldout + sum(suite_size(suite) for suite in parse_suites(config.suites, config.KIND))


def eval_programs(config: EvalConfig, model: "LoadedModel", prompts: int) -> "list[Program]":
    """What `answer_all` compiles for so many prompts. Their lengths are unknown, so its cost is an
    upper bound: all prompts and answers at full length."""
    from tasks.planning.programs import on_devices

    sampled = [prompts * config.sampling.samples] if config.sampling else []
    own = on_devices(model, {"batch_size": config.batch_size})
    return _sampler(config, own).programs([prompts, *sampled])


def _sampler(config: EvalConfig, loaded: "LoadedModel") -> "SlotSampler":
    from tasks.sampling.slots import SlotSampler

    return SlotSampler(
        loaded,
        batch_size=config.batch_size,
        prompt_length=config.prompt_length,
        response_length=config.response_length,
        sampled=config.sampling is not None,
        **(config.sampling.drawn_from if config.sampling else {}),
    )


class RuleJudge(Protocol):
    """Judges, by rules, a completion of `tokens` tokens, the terminator included; `truncated`: it
    has none. A config's `judge` is another one: an LLM."""

    def __call__(
        self, prompt: EvalPrompt, completion: str, *, tokens: int, truncated: bool
    ) -> EvalItem: ...


@dataclass(frozen=True)
class JudgedAnswers:
    """The judged answers: one greedy answer per prompt, in the prompts' order, and, with
    `sampling`, all prompts' sample 0, then all prompts' sample 1, and so on."""

    items: list[EvalItem]
    samples: list[EvalItem]

    def write(self, out: Path) -> None:
        """Write `items.jsonl`, and `samples.jsonl` if there are samples."""
        write_jsonl(out / "items.jsonl", self.items)
        if self.samples:
            write_jsonl(out / "samples.jsonl", self.samples)


def answer_all(job: Job[Any], prompts: Sequence[EvalPrompt], by_rules: RuleJudge) -> JudgedAnswers:
    """Answer every prompt with the `policy` input's model (or the base model) and judge the
    answers.

    Raises:
        InputError: a prompt has more tokens than `prompt_length` (dropping it would change the
            denominator from model to model), or there are too few worked examples.
        StageFailed: more programs were compiled than there are shapes.
    """
    from tasks.models.loading import policy_or_base
    from tasks.sampling.slots import Request

    config: EvalConfig = job.config
    loaded = policy_or_base(job, make_mesh({"batch_size": config.batch_size}))
    _require_fit(loaded.tokenizer, config, prompts)
    turns = turns_before(job.inputs, config, prompts, loaded.tokenizer)
    sampler = _sampler(config, loaded)
    total = len(prompts) * (1 + (config.sampling.samples if config.sampling else 0))

    unit = "answers" if config.sampling else "prompts"

    def answer(
        name: str, samples: Sequence[int | None], temperature: float, before: int
    ) -> list[EvalItem]:
        """All prompts' answers for each of `samples`; None: the greedy one."""
        asked = [(index, sample) for sample in samples for index in range(len(prompts))]
        seeds = {one: 0 if one is None else sample_seed(config.seed, one) for one in samples}
        texts = [one.prompt if config.shots else config.asked(one.prompt) for one in prompts]
        completions = sampler.generate(
            [Request(texts[index], index, seeds[one], turns[index]) for index, one in asked],
            temperature=temperature,
            journal=Journal(job.work, name),
            progress=lambda done: job.progress(before + done, total, unit),
        )

        def judged(number: int) -> EvalItem:
            one, (index, sample) = completions[number], asked[number]
            prompt = prompts[index]
            item = by_rules(prompt, one.text, tokens=len(one.tokens), truncated=not one.terminated)
            trace = parse_trace(one.text, prompt.channels)
            tokens = len(loaded.tokenizer.encode(trace.reasoning)) if trace else None
            return item.model_copy(update={"sample": sample, "reasoning_tokens": tokens})

        return for_each([prompts[index] for index, _ in asked], judged)

    greedy, sampled = answer("answers", [None], 0.0, 0), list[EvalItem]()
    if drawn := config.sampling:
        sampled = answer("samples", range(drawn.samples), drawn.temperature, len(prompts))
    if sampler.excess:
        raise StageFailed(
            f"answering compiled {sampler.excess} more programs than it has shapes: some are not"
            " fixed"
        )
    return JudgedAnswers(greedy, sampled)


def sample_seed(seed: int, sample: int) -> int:
    """The seed that draws sample `sample` of all prompts."""
    return int(np.random.SeedSequence([seed, sample]).generate_state(1)[0])


def _require_fit(tokenizer: Tokenizer, config: EvalConfig, prompts: Sequence[EvalPrompt]) -> None:
    lengths = [len(prompt_tokens(tokenizer, config.asked(prompt.prompt))) for prompt in prompts]
    longest = max(range(len(prompts)), key=lengths.__getitem__)
    if lengths[longest] > config.prompt_length:
        over = sum(length > config.prompt_length for length in lengths)
        raise InputError(
            f"{over} of {len(prompts)} prompts have more than prompt_length ="
            f" {config.prompt_length} tokens; the longest has {lengths[longest]} (suite"
            f" {prompts[longest].suite}, id {prompts[longest].id}, source"
            f" {prompts[longest].source!r}). Set prompt_length to at least {lengths[longest]}, or"
            " leave long rows out."
        )


def answered(
    prompt: Prompt, completion: str, *, tokens: int, truncated: bool, **verdict: Any
) -> EvalItem:
    """The EvalItem of a prompt and its completion; `verdict`: the fields that a judge decides."""
    return EvalItem(
        **dict(EvalPrompt.of(prompt)),
        completion=completion,
        tokens=tokens,
        truncated=truncated,
        **verdict,
    )


def read_baseline(inputs: dict[str, Path], prompts: Sequence[Prompt]) -> list[EvalItem] | None:
    """The `baseline` input's items, item i for prompt i; None when no baseline is connected.

    Raises:
        InputError: the baseline answered other prompts.
    """
    if "baseline" not in inputs:
        return None
    items = read_jsonl(inputs["baseline"] / "items.jsonl", EvalItem)
    ours, theirs = ([one.identity for one in side] for side in (prompts, items))
    if ours != theirs:
        raise InputError(
            f"the baseline evaluation answered {len(theirs)} prompts and this one asks {len(ours)};"
            f" {len(set(ours) & set(theirs))} are the same. A paired comparison needs the same"
            " prompts in the same order. Connect both evaluations to one rebalance stage, and name"
            " the same suites in both."
        )
    return items


def measure(
    items: Sequence[EvalItem],
    outcomes: Mapping[str, Outcome],
    *,
    baseline: Sequence[EvalItem] | None = None,
    paired: Collection[str] = (),
    seed: int = 0,
) -> dict[str, float | None]:
    """Every rate in `outcomes` (name -> what it counts) over the items: `{name, name_low,
    name_high}`, the fraction with its Wilson interval; all None over an empty denominator.

    With a baseline, whose item i answers the same prompt as `items[i]`, the rates in `paired`,
    whose denominator depends on the prompts alone, also get `{delta_name, delta_name_low,
    delta_name_high, delta_name_p}`: this model minus the baseline, its paired bootstrap interval
    (drawn by `seed`) and McNemar's exact p-value.
    """
    metrics: dict[str, float | None] = {}
    for name, outcome in outcomes.items():
        after = [outcome(item) for item in items]
        metrics |= rate_record(name, [counted for counted in after if counted is not None])
        if baseline is not None and name in paired:
            before = map(outcome, baseline)
            pairs = [
                (old, new)
                for old, new in zip(before, after, strict=True)
                if old is not None and new is not None
            ]
            metrics |= _difference(f"delta_{name}", pairs, seed)
    return metrics


def _difference(
    name: str, pairs: Sequence[tuple[bool, bool]], seed: int
) -> dict[str, float | None]:
    if not pairs:
        return {**record(name, None, None), f"{name}_p": None}
    before, after = [old for old, _ in pairs], [new for _, new in pairs]
    mean = (sum(after) - sum(before)) / len(pairs)
    interval = paired_bootstrap(before, after, seed=seed)
    return {**record(name, mean, interval), f"{name}_p": mcnemar(before, after)}
