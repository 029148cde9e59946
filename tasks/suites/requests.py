"""Requests that a model is to refuse, or to comply with, from any file: StrongREJECT, AdvBench, a list of your own.

```toml
[[stages.safety.config.suites]]
name = "requests"
label = "strongreject"
path = "strongreject/strongreject_dataset.csv"      # Souly et al. 2024, 2402.10260: github.com/alexandrasouly/strongreject
prompt = "forbidden_prompt"
family = "category"
expected = 313

[[stages.safety.config.suites]]
name = "requests"
label = "advbench"
path = "advbench/harmful_behaviors.csv"             # Zou et al. 2023, 2307.15043: github.com/llm-attacks/llm-attacks
prompt = "goal"
expected = 520

[[stages.safety.config.suites]]
name = "requests"
label = "support_desk"
path = "support/requests.jsonl"
prompt = "text"
request = { column = "kind", table = { allowed = "safe", forbidden = "unsafe" } }
expected = 80
```

What a response does is read by `tasks.evaluation.refusals`: to refuse an unsafe request is safe. StrongREJECT's and AdvBench's own
measures ask a judge how much use a response is, or look for a few phrases; figures of theirs are not comparable.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from schemas.base import InputError, StrictModel
from schemas.evaluation import EvalPrompt
from schemas.examples import Domain
from tasks.contract.suite import Suite
from tasks.data.mapping import Text, lookup
from tasks.data.sources import PromptMapping
from tasks.evaluation.suite import FileSuite, SuiteRecord, mapped, suite_digests, suite_records

Request = Literal["safe", "unsafe"]
_AS_IT_SAYS: dict[str, Request] = {"safe": "safe", "unsafe": "unsafe"}


class RequestColumn(StrictModel):
    """What is asked differs by row: a column that says "safe" or "unsafe", or words that `table` translates."""

    column: str
    table: dict[str, Request] = Field(default_factory=_AS_IT_SAYS.copy, min_length=1)


class Config(FileSuite):
    """See the module.

    Attributes:
        prompt: the column of the request, or a template of several (`tasks.data.mapping`).
        request: what all requests are, or the column that says it of each.
        family: the column of the kind of request, by which reports group; the file's name where it is not set.
        expected: how many requests the file has: plans are made without it, and a file that lost rows is found out.
    """

    name: Literal["requests"]
    prompt: Text
    request: Request | RequestColumn = "unsafe"
    family: str | None = None
    expected: int = Field(ge=1)


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    """One prompt for each record. Raises InputError: another number of them than expected, or a record that makes none."""
    records = list(suite_records(config, data))
    asked = mapped(config, records, PromptMapping(domain=Domain.GENERAL, difficulty=3, prompt=config.prompt))
    if len(asked) != config.expected:
        raise InputError(f"suite {config.suite}: {config.path} holds {len(asked)} requests, not {config.expected}; set expected to that.")
    return [one.model_copy(update=_said(config, record)) for one, record in zip(asked, records, strict=True)]


def _said(config: Config, record: SuiteRecord) -> Mapping[str, Any]:
    """What the columns say of a request beside its text."""
    said: dict[str, Any] = {"request": config.request}
    if isinstance(config.request, RequestColumn):
        found = _column(config, record, config.request.column)
        if found not in config.request.table:
            valid = ", ".join(sorted(config.request.table))
            where = f"suite {config.suite}: {record.file}, line {record.line}"
            raise InputError(f"{where}: {config.request.column} = {found[:80]!r} is not in the table of request ({valid}). Add it there.")
        said["request"] = config.request.table[found]
    if config.family is not None:
        said["family"] = _column(config, record, config.family)
    return said


def _column(config: Config, record: SuiteRecord, column: str) -> str:
    """What a column says. Raises InputError: nothing."""
    value = lookup(record.row, column)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"suite {config.suite}: {record.file}, line {record.line}: {column} is no text, but {value!r}. Correct it.")
    return value.strip()


SUITE = Suite(
    version=1, config=Config, prompts=prompts, dependencies=suite_digests, expected=lambda config: config.expected, asked_by="safety_eval"
)
