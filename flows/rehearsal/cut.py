"""A recipe as it is rehearsed: its own stages, data, formats, checks, rewards, prompts of judges,
suites and gate; another model, smaller sizes, and endpoints that a stand-in answers for.

How long prompts and answers may be is decided by the first rows themselves: as long as they are, up
to what the recipe allows.
"""

from collections.abc import Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flows.recipe.code import require_consent
from flows.recipe.resolve import ResolvedRecipe, resolve_table
from flows.recipe.table import read_recipe
from infra.store.answers import Answers
from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from schemas.recipe import Recipe
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing, stage_kind
from tasks.contract.small import Sizes
from tasks.data.tokens import Tokenizer, prompt_tokens, response_tokens
from tasks.evaluation.eval_config import EvalConfig
from tasks.evaluation.suite_prompts import parse_suites, suite_prompts
from tasks.models.model_download import tokenizer_of
from tasks.models.model_source import TINY
from tasks.rehearsal.first_rows import FirstRows, first_rows
from tasks.rehearsal.scripted import reference
from tasks.rehearsal.stand_in import PREFIX, PROVIDER
from tasks.teaching.rejection_sampling import Answering

_TINY_TOKENS = 2.25
"""Tokens of `gemma3-tiny` for one of Gemma's: of English text it takes one for 1.9 characters."""

_STEP = 16
"""Lengths are multiples of this."""

_SUFFIX = "_rehearsal"


@dataclass(frozen=True)
class Rehearsed:
    """A recipe that is ready to be rehearsed.

    Attributes:
        whole: the recipe as it is shipped, with the overrides.
        rows: what its teachers read first.
        asked: what its evaluations ask beside its held-out rows, by stage.
        endpoints: `PROVIDER:MODEL` of each endpoint -> the stages that ask it.
        notes: what is not rehearsed here.
    """

    whole: Recipe
    resolved: ResolvedRecipe
    sizes: Sizes
    rows: FirstRows
    asked: dict[str, list[EvalPrompt]]
    endpoints: dict[str, list[str]]
    notes: list[str]


def rehearsed(
    recipe: str,
    overrides: tuple[str, ...],
    data: Path | None,
    code: Collection[Path],
    rows: int,
    model: str,
    store: Any,
) -> Rehearsed:
    """Read the recipe and the first rows of its data, and cut it to what they need. `code`: the
    files that it may run.

    Raises:
        InputError: anything about the recipe, its data or the model is wrong; nothing was made.
    """
    table = read_recipe(recipe, data)
    table.change(overrides)
    whole, values = table.recipe, deepcopy(table.values)
    sizes = Sizes(
        reply=48,
        rows=rows,
        read=rows,
        suite=min(8, rows),
        prompts=8,
        steps=2,
        tokens=_TINY_TOKENS if model == TINY != whole.model else 1.0,
        trained=model != TINY,
    )
    table.make_small(model, sizes)
    resolved = resolve_table(table, data)
    configs = {stage.name: stage.config_json for stage in resolved.stages}
    require_consent(configs, table.folders, code)
    making = kinds_producing(Product.EXAMPLES)
    teachers = [stage.config_json["teachers"] for stage in resolved.stages if stage.kind in making]
    read = first_rows(teachers, data, Answers(store))
    asked = {
        stage.name: [one for suite in suites for one in suite_prompts(suite, data)]
        for stage in resolved.stages
        if stage_kind(stage.kind).evaluation is not None
        for suites in [parse_suites(stage.config_json["suites"], stage.kind)]
    }
    tokenizer = Tokenizer(tokenizer_of(model))
    sizes = _fitting(sizes, resolved, read, asked, tokenizer)
    table.values = values
    table.make_small(model, sizes)
    endpoints: dict[str, list[str]] = {}
    notes = _without_exports(values)
    for name, stage in values["stages"].items():
        stage["config"] = _stood_in(stage.get("config", {}), name, endpoints)
    values["name"] = whole.name[: 40 - len(_SUFFIX)] + _SUFFIX
    table.parse()
    resolved = resolve_table(table, data)
    return Rehearsed(whole, resolved, sizes, read, asked, endpoints, notes)


def _without_exports(table: dict[str, Any]) -> list[str]:
    """Leave out, in place, what `transformers` proves, where there is no torch; says so."""
    if find_spec("torch") is not None:
        return []
    exports = [name for name, stage in table["stages"].items() if stage["kind"] == "export"]
    for name in exports:
        del table["stages"][name]
    return [
        f"stage {name} was left out: it needs torch (uv sync --extra export)" for name in exports
    ]


def _fitting(
    sizes: Sizes,
    resolved: ResolvedRecipe,
    rows: FirstRows,
    asked: dict[str, list[EvalPrompt]],
    tokenizer: Tokenizer,
) -> Sizes:
    """The sizes with the tokens of the longest prompt, answer and question."""
    prompts = [len(prompt_tokens(tokenizer, one.prompt)) for one in rows.prompts]
    answers = [one.response() for one in rows.examples] + [reference(one) for one in rows.asked]
    questions = [
        len(prompt_tokens(tokenizer, stage.config.asked(one.prompt)))
        for stage in resolved.stages
        if stage.name in asked and isinstance(stage.config, EvalConfig)
        for one in [*asked[stage.name], *(rows.prompts if "prompts" in stage.inputs else [])]
    ]
    return replace(
        sizes,
        prompt=_rounded(prompts),
        answer=_rounded(len(response_tokens(tokenizer, one)) for one in answers),
        question=_rounded(questions),
    )


def _rounded(lengths: Iterable[int]) -> int:
    return -(-max(lengths, default=1) // _STEP) * _STEP


def _stood_in(value: Any, stage: str, endpoints: dict[str, list[str]]) -> Any:
    """A config whose endpoints, and judges and teachers that would load weights, are the
    rehearsal's."""
    if isinstance(value, list | tuple):
        return [_stood_in(one, stage, endpoints) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: _stood_in(one, stage, endpoints) for name, one in value.items()}
    if isinstance(found.get("provider"), str) and "model" in found:
        name = f"{found['provider']}:{found['model']}"
        found |= {"provider": PROVIDER, "model": PREFIX + name}
    elif isinstance(judge := found.get("judge"), dict) and judge.get("name") == "gemma":
        name = f"gemma:{judge['model']}"
        found["judge"] = {"name": "endpoint", "provider": PROVIDER, "model": PREFIX + name}
    elif found.get("name") == "gemma" and "prompts" in found:
        name = f"gemma:{found['model']}"
        fields = {key: one for key, one in found.items() if key in Answering.model_fields}
        found = fields | {"name": "openai_compatible", "provider": PROVIDER, "model": PREFIX + name}
    else:
        return found
    asking = endpoints.setdefault(name, [])
    if stage not in asking:
        asking.append(stage)
    return found


def check_rows(rows: int) -> None:
    """Raises InputError: too few rows to split, or more than a rehearsal takes."""
    if not _FEWEST <= rows <= _MOST:
        raise InputError(
            f"--rows {rows}: a rehearsal reads {_FEWEST} to {_MOST} rows of each data set; give a"
            " number between them, e.g. 50."
        )


_FEWEST, _MOST = 10, 5000
