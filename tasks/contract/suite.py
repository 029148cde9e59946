"""The contract of a suite, a published evaluation set: one `SUITE = Suite(...)` in a file of
`tasks/suites/`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field

from schemas.base import StrictModel
from schemas.evaluation import EvalPrompt
from schemas.examples import AskedFormat
from tasks.contract.plugins import Configured, Family


class SuiteConfig(StrictModel):
    """The fields of every suite's Config.

    ```toml
    [[stages.grpo_eval.config.suites]]
    name = "gsm8k"
    path = "gsm8k/test.jsonl"
    ```

    Attributes:
        name: the suite's file.
        label: its name in reports, if a recipe has one suite twice (two subjects of MMLU); default:
            `name`.
        first: only so many prompts, from the start of the file.
        channels: the format of the responses (`schemas.examples`): the one that the recipe's SFT
            teaches.
    """

    name: str
    label: str = Field(default="", pattern=r"^([a-z][a-z0-9_]{0,39})?$")
    first: int | None = Field(default=None, ge=1)
    channels: AskedFormat = "trace"

    @property
    def suite(self) -> str:
        """Its name in items and reports."""
        return self.label or self.name


SuiteConfigT = TypeVar("SuiteConfigT", bound=SuiteConfig)


@dataclass(frozen=True, kw_only=True)
class Suite(Configured[SuiteConfigT], Generic[SuiteConfigT]):
    """A suite. One that reads a file is made by `tasks.evaluation.suite_prompts.file_suite`.

    A prompt without anything to judge an answer by (check `none`, no grounding, no request) counts
    for format, length and markers only, or for the rating of a configured judge. Files are read as
    published. A row that cannot be read is an InputError with file and line: skipping it would
    change the denominator.

    Attributes:
        prompts: all prompts in file order, given the config and `--data`, with ids
            `<label>/<number>` that do not change while the file does not.
        dependencies: what else decides them: `{"data/<path>": digest}` of the files that it reads.
        expected: how many prompts the published file has, for a plan that is made without it.
        asked_by: the stage kind that asks it.
    """

    prompts: Callable[[SuiteConfigT, Path | None], list[EvalPrompt]]
    dependencies: Callable[[SuiteConfigT, Path | None], dict[str, str | int]]
    expected: Callable[[SuiteConfigT], int]
    asked_by: str = "reasoning_eval"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not issubclass(self.config, SuiteConfig):
            raise TypeError(
                f"the config of a suite is a class of SuiteConfig, not {self.config.__name__}"
            )


SUITES: Family[Suite[Any]] = Family("tasks.suites", Suite)
