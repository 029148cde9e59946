"""Any file as a suite, with columns mapped like a source's (`tasks.data.sources`), so that your own
held-out file needs no code.

```toml
[[stages.grpo_eval.config.suites]]
name = "dataset"
label = "contracts"
path = "contracts/heldout.jsonl"
expected = 240
domain = "general"
prompt = { template = "{clause}\\n\\nIs this clause enforceable?" }
choices = "options"
answer = "verdict"
check = "choice"
```
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from tasks.contract.suite import Suite
from tasks.data.sources import PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, mapped, suite_digests, suite_records


class Config(FileSuite, PromptMapping):
    """See the module.

    Attributes:
        expected: the number of prompts in the file, so that plans work without it and a file that
            lost rows is refused.
    """

    name: Literal["dataset"]
    expected: int = Field(ge=1)

    @model_validator(mode="after")
    def _is_asked_here(self) -> Self:
        if self.grounding is not None:
            raise ValueError(
                "grounded prompts are asked by a stage of kind safety_eval; leave grounding and"
                " context out"
            )
        if "router" in (self.domain, self.difficulty):
            raise ValueError(
                "the router does not say the domain of a suite; give one, or a column with a table"
            )
        return self


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    asked = mapped(config, suite_records(config, data), config)
    if len(asked) != config.expected:
        raise InputError(
            f"suite {config.suite}: {config.path} makes {len(asked)} prompts, not"
            f" {config.expected}; set expected to that."
        )
    return asked


SUITE = Suite(
    version=3,
    config=Config,
    prompts=prompts,
    dependencies=suite_digests,
    expected=lambda config: config.expected,
)
