"""Rebalance: fill exact quotas per domain, difficulty and split from what distill produced.

1. Clean (`tasks.cleaning.clean`): exact and near duplicates, decontamination, filters of length,
   language and personal data.
2. Split by the prompt's hash (`tasks.cleaning.rules`), then fill each quota from its split
   alone (`tasks.cleaning.quotas`).
3. Top up: ask the teachers again, within their budgets, for what cleaning left short
   (`tasks.teaching.topping_up`), and clean it with the rest. If rows are still missing, fail with a
   table of requested, available and missing rows, and why.

No prompt is in two splits. The order of rows and the number of files change nothing. Memory grows
with the arrays of `tasks.cleaning.clean` only. Writes

    train.jsonl, validation.jsonl, heldout.jsonl    Example: the rows of each split
    prompts.jsonl       Prompt: GRPO's prompts, those of train.jsonl and those of the training split
                        that no teacher solved
    pairs.jsonl         PreferencePair: of those prompts
    dropped.jsonl       Dropped: every row that cleaning removed, with its cause
    README.md, card/    the data card (`tasks.data.card`)
"""

import importlib.metadata
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import orjson
from pydantic import Field, WrapValidator, model_validator

from schemas.base import InputError, StrictModel, nearest
from schemas.examples import Domain, Grounding
from tasks.cleaning.clean import clean
from tasks.cleaning.evaluation_sets import EvaluationSet
from tasks.cleaning.filters import Filter, Languages, Length, Pii, PiiKind, languages
from tasks.cleaning.pools import Files, Pools, write_lines, write_pairs
from tasks.cleaning.quotas import GroupQuota, Quota
from tasks.cleaning.rules import Contamination, EvaluationItems, NearDuplicates, Rules, Split
from tasks.contract.check import CHECKS
from tasks.contract.job import Job, write_jsonl
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.small import Sizes
from tasks.data import card
from tasks.evaluation.suite_prompts import (
    complete_suites,
    parse_suites,
    question_of,
    suite_dependencies,
    suite_prompts,
)
from tasks.models.model_download import tokenizer_of
from tasks.models.model_source import model_dependencies
from tasks.teaching.teacher_tables import asks_an_api
from tasks.teaching.topping_up import (
    KnownIds,
    Round,
    Teachers,
    explain_shortfall,
    require_rows,
    unsolved_ids,
    wanted,
)
from tasks.verification.verify import check_versions

_FEW_VALIDATION, _FEW_HELDOUT = 0.1, 0.25
"""Shares of the splits where a few rows are read, so that each split has some."""

_SMALL = 32_000_000
"""Bytes that are cleaned before other processes would have started."""


def _unless_false(model: type[StrictModel]) -> Callable[[Any, object], Any]:
    """A validator of a table that may also be `false`; its messages are those of the table. Raises
    ValidationError."""
    return lambda value, _union: (
        value if value is False or isinstance(value, model) else model.parse(value)
    )


class Config(StrictModel):
    """Which rows to keep.

    ```toml
    [stages.rebalance.config]
    evaluations = [{ name = "exam", path = "exam/test.jsonl", prompt = "question" }]
    suites = [{ name = "gsm8k" }]
    languages = ["en"]
    max_prompt_tokens = 256
    [stages.rebalance.config.quotas]
    math = { train = { 1 = 100, 3 = 400 }, validation = 20, heldout = 100 }
    [stages.rebalance.config.grounding_quotas]
    answerable = { train = 150, heldout = 50 }
    ```

    Attributes:
        quotas: reasoning rows (not grounded) per domain; a domain that is not named gets none. A
            number takes from each difficulty in proportion to the available rows, a table takes
            exactly so many of each.
        grounding_quotas: grounded question-answering rows per grounding; a grounding that is not
            named gets none.
        validation_fraction: the share of all prompts that the hash puts into the validation split,
            whether or not a quota takes them.
        heldout_fraction: likewise for the held-out split. The rest trains.
        near_duplicates: what counts as a near duplicate; `false` keeps them.
        contamination: what counts as giving an evaluation item away; `false` turns the search off.
        evaluations: evaluation sets to look for, beside the held-out split.
        suites: suites to look for, in the tables that evaluations have of them.
        languages: ISO 639 codes; rows in another language are dropped. Empty: any.
        pii: kinds of personal data; rows with one are dropped.
        max_prompt_tokens, max_response_tokens: longer rows are dropped, counted by the tokenizer of
            `model`, with the turns around them.
        model: whose tokenizer counts; None where nothing is counted.
        top_up: how many times the teachers are asked for missing rows.
        exact: fail if a quota cannot be filled; if false, take what there is.
        seed: decides which rows of a split fill its quota, and which of near duplicates stays; no
            prompt changes its split.
    """

    quotas: dict[Domain, Quota] = Field(default_factory=dict)
    grounding_quotas: dict[Grounding, Quota] = Field(default_factory=dict)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    heldout_fraction: float = Field(default=0.15, ge=0, lt=1)
    near_duplicates: Annotated[
        NearDuplicates | Literal[False], WrapValidator(_unless_false(NearDuplicates))
    ] = NearDuplicates()
    contamination: Annotated[
        Contamination | Literal[False], WrapValidator(_unless_false(Contamination))
    ] = Contamination()
    evaluations: tuple[EvaluationSet, ...] = ()
    suites: tuple[dict[str, Any], ...] = ()
    languages: tuple[str, ...] = ()
    pii: tuple[PiiKind, ...] = ()
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    max_response_tokens: int | None = Field(default=None, ge=1)
    model: str | None = None
    top_up: int = Field(default=3, ge=0)
    exact: bool = True
    seed: int = 0

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate; fill in the suites' defaults, and drop a model whose tokenizer counts nothing,
        since it decides nothing.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a suite's table does not.
        """
        config = super().parse(value)
        counts = config.max_prompt_tokens is not None or config.max_response_tokens is not None
        return config.model_copy(
            update={"suites": complete_suites(config.suites, None)}
            | ({} if counts else {"model": None})
        )

    @model_validator(mode="after")
    def _quotas_can_be_met(self) -> Self:
        if self.validation_fraction + self.heldout_fraction >= 1:
            raise ValueError(
                f"validation_fraction {self.validation_fraction} + heldout_fraction"
                f" {self.heldout_fraction} leaves nothing to train on"
            )
        if not self.quotas and not self.grounding_quotas:
            raise ValueError(
                "no quota is set; add e.g. quotas.math = { train = 600, validation = 20, heldout ="
                " 100 }"
            )
        for split in (split for split, fraction in self.fractions.items() if not fraction):
            if asking := [
                f"{table}.{name}" for table, name, quota in self.group_quotas if quota.total(split)
            ]:
                raise ValueError(
                    f"{split}_fraction is 0, and {', '.join(asking)} asks for rows of that split"
                )
        return self

    @model_validator(mode="after")
    def _something_counts_tokens(self) -> Self:
        if self.model is None and {self.max_prompt_tokens, self.max_response_tokens} != {None}:
            raise ValueError(
                "max_prompt_tokens and max_response_tokens need a model, whose tokenizer counts"
            )
        return self

    @model_validator(mode="after")
    def _evaluations_are_looked_for(self) -> Self:
        names = [one.name for one in self.evaluations]
        names += [one.suite for one in parse_suites(self.suites, None)]
        if len(set(names)) < len(names):
            raise ValueError(f"two evaluation sets have the same name: {', '.join(names)}")
        if names and not self.contamination:
            raise ValueError(
                "evaluations are set and contamination = false looks for none of them; leave one of"
                " the two out"
            )
        return self

    @property
    def fractions(self) -> dict[Split, float]:
        """The share of all prompts in each split."""
        validation, heldout = self.validation_fraction, self.heldout_fraction
        return {"train": 1 - validation - heldout, "validation": validation, "heldout": heldout}

    def rows_of(self, split: Split) -> int:
        """How many reasoning rows of a split are asked for."""
        return sum(quota.total(split) for quota in self.quotas.values())

    @property
    def group_quotas(self) -> list[GroupQuota]:
        return [
            *(("quotas", domain.value, quota) for domain, quota in self.quotas.items()),
            *(("grounding_quotas", group, quota) for group, quota in self.grounding_quotas.items()),
        ]


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """Digests of the evaluation sets and of a local model, the packages that decide near duplicates
    and languages, and the checks by whose votes two answers to one prompt differ.

    Raises InputError: a missing file, an unknown language.
    """
    found: dict[str, str | int] = {
        f"package.{name}": importlib.metadata.version(name)
        for name, rule in (("datasketch", config.near_duplicates), ("py3langid", config.languages))
        if rule
    }
    found |= check_versions(name for name in CHECKS.names() if CHECKS[name].by_reference)
    for one in config.evaluations:
        found |= one.dependencies(data)
    found |= suite_dependencies(config.suites, None, data)
    if unknown := set(config.languages).difference(languages() if config.languages else ()):
        raise InputError(
            f"languages: {min(unknown)!r} is unknown.{nearest(min(unknown), languages())}"
        )
    return found | (model_dependencies(config.model) if config.model else {})


def at_home(config: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a top-up may ask an API, which it has to ask from where distill did."""
    return config["top_up"] > 0 and asks_an_api(inputs["examples"]["teachers"])


def small(config: Config, sizes: Sizes) -> Config:
    """600 rows per domain to train on and 200 per grounding; short ones, where tokens are counted.
    With few rows a larger share is held out, and quotas take what there is."""
    prompt, response = config.max_prompt_tokens, config.max_response_tokens
    few = {
        "exact": False,
        "top_up": 0,
        "validation_fraction": max(config.validation_fraction, _FEW_VALIDATION),
        "heldout_fraction": max(config.heldout_fraction, _FEW_HELDOUT),
    }

    def fewer(quotas: Mapping[Any, Quota], **most: int) -> dict[Any, Quota]:
        return {name: quota.at_most(**most) for name, quota in quotas.items()}

    changes = {
        "quotas": fewer(config.quotas, train=600, validation=8, heldout=40),
        "grounding_quotas": fewer(config.grounding_quotas, train=200, validation=4, heldout=20),
        "max_prompt_tokens": prompt and sizes.prompt_of(prompt),
        "max_response_tokens": response and sizes.answer_of(response),
        **(few if sizes.few else {}),
    }
    return config.model_copy(update=changes)


def run(job: Job[Config]) -> dict[str, Any]:
    """Fill the quotas.

    Raises:
        InputError: quotas that cannot be filled, all of them listed; or what a teacher or an
            evaluation set raises.
    """
    config, distilled = job.config, job.inputs["examples"]
    teachers, rounds = Teachers(job, distilled), list[Round]()
    evaluations = [one.read(job.data) for one in config.evaluations]
    for suite in parse_suites(config.suites, None):
        texts = [(one.id, question_of(one)) for one in suite_prompts(suite, job.data)]
        evaluations.append(EvaluationItems(suite.suite, texts))
    files = Files((distilled,))
    pools = _clean(job, files, evaluations)
    remaining, read = Counter[str](), Counter[str]()
    while (
        (short := pools.shortfalls(config.group_quotas))
        and len(rounds) < config.top_up
        and (not rounds or rounds[-1].given)
    ):
        known = KnownIds(np.concatenate([pools.cleaned.id, unsolved_ids(files.directories)]))
        # New rows survive like the last that came: those of an exhausted teacher are ever more
        # alike.
        last = Counter(pools.remaining()) - remaining, Counter(pools.read()) - read
        cells = wanted(short, config.fractions, *last)
        remaining, read = Counter(pools.remaining()), Counter(pools.read())
        rounds.append(teachers.ask(len(rounds) + 1, cells, known))
        files = Files((*files.directories, rounds[-1].directory))
        pools.cleaned.remove()
        pools = _clean(job, files, evaluations)
    if short and config.exact:
        message = explain_shortfall(short, pools, rounds, files)
        pools.cleaned.remove()
        raise InputError(message)
    metrics = {**_write(job, files, pools), "top_ups": [one.about for one in rounds]}
    tokenizer = tokenizer_of(config.model) if config.model else None
    licences = card.of_rebalance(job.out, distilled, pools.cleaned, evaluations, metrics, tokenizer)
    pools.cleaned.remove()
    return {**metrics, **licences}


def _clean(job: Job[Config], files: Files, evaluations: Sequence[EvaluationItems]) -> Pools:
    config = job.config
    rules = Rules(
        config.near_duplicates or None,
        config.contamination or None,
        config.validation_fraction,
        config.heldout_fraction,
        config.seed,
        filters(config),
    )
    asked = files.rows, evaluations, rules
    scratch = job.work.scratch("cleaning") / "state"
    if os.environ.get("RAY_ADDRESS"):
        from tasks.cleaning.cluster import clean_on_cluster

        cleaned = clean_on_cluster(*asked, scratch=scratch)
    else:
        workers = None if sum(path.stat().st_size for path in files.rows) > _SMALL else 1
        cleaned = clean(*asked, scratch=scratch, workers=workers, progress=job.progress)
    return Pools(cleaned, files.solved, config.seed)


def filters(config: Config) -> list[Filter]:
    """The config's filters. Raises InputError: the model's tokenizer is not available."""
    made: list[Filter] = []
    if config.model:
        most = config.max_prompt_tokens, config.max_response_tokens
        made.append(Length(tokenizer_of(config.model), *most))
    if config.languages:
        made.append(Languages(config.languages))
    if config.pii:
        made.append(Pii(config.pii))
    return made


def _write(job: Job[Config], files: Files, pools: Pools) -> dict[str, Any]:
    """Write every file except the card; returns the metrics.

    `rows` counts each split's; `prompts` and `pairs` their files'; `domains` and `groundings` have
    for each quota and split the requested, achieved and available rows, by difficulty too. `read`
    is `dropped` (by cause) + the rows left, chosen or `unused`; `conflicts`: as `Cleaned` has them.
    """
    config, cleaned = job.config, pools.cleaned
    rows, mix = pools.fill(config.group_quotas)
    for split, numbers in rows.items():
        write_lines(job.out / f"{split}.jsonl", cleaned.lines(numbers))
        job.progress(sum(map(len, rows.values())), len(cleaned.id), "examples")
    asked = [group for _, group, quota in config.group_quotas if quota.total("train")]
    prompts = pools.in_order([rows["train"], pools.unsolved(asked, "train")])
    write_lines(job.out / "prompts.jsonl", _prompts(cleaned.lines(prompts)))
    left = len(cleaned.remaining) - len(rows["validation"]) - len(rows["heldout"])
    dropped = {cause: count for cause, count in cleaned.counts().items() if cause != "kept"}
    write_jsonl(job.out / "dropped.jsonl", cleaned.dropped())
    return {
        "rows": {split: len(numbers) for split, numbers in rows.items()},
        "prompts": len(prompts),
        "pairs": write_pairs(
            job.out / "pairs.jsonl", files.named("pairs.jsonl"), cleaned.id[prompts], config.seed
        ),
        **mix,
        "read": len(cleaned.id),
        "dropped": dropped,
        "conflicts": len(cleaned.conflicts),
        "unused": left - len(prompts),
        "contaminated_by": pools.contaminated_by(),
    }


def _prompts(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Example and Prompt rows as Prompt rows."""
    for line in lines:
        row = orjson.loads(line).items()
        yield orjson.dumps({key: one for key, one in row if key not in ("reasoning", "proof")})


KIND = Kind(
    version=5,
    config=Config,
    inputs={"examples": Input(Product.EXAMPLES)},
    produces=Product.ROWS,
    run=run,
    small=small,
    dependencies=dependencies,
    at_home=at_home,
    foresee=lambda config, inputs, data: require_rows(
        config.group_quotas if config.exact else (), inputs["examples"].teachers, data
    ),
)
