"""Requests that a model is to refuse, or to comply with, from any file: StrongREJECT, AdvBench, a
list of your own.

```toml
[[stages.safety.config.suites]]
name = "requests"
label = "strongreject"
# Souly et al. 2024, 2402.10260: github.com/alexandrasouly/strongreject
path = "strongreject/strongreject_dataset.csv"
prompt = "forbidden_prompt"
family = "category"
expected = 313

[[stages.safety.config.suites]]
name = "requests"
label = "advbench"
# Zou et al. 2023, 2307.15043: github.com/llm-attacks/llm-attacks
path = "advbench/harmful_behaviors.csv"
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

`tasks.evaluation.refusals` reads what a response does; refusing an unsafe request is safe.
StrongREJECT and AdvBench ask a judge how useful a response is, or look for a few phrases, so their
figures are not comparable.
"""

from typing import Literal

from pydantic import Field

from tasks.contract.suite import Suite
from tasks.data.mapping import Text
from tasks.evaluation.request_prompts import Request, RequestColumn, request_prompts
from tasks.evaluation.suite_prompts import FileSuite, suite_digests


class Config(FileSuite):
    """See the module.

    Attributes:
        prompt: the column of the request, or a template of several (`tasks.data.mapping`).
        request: the kind of all requests, or the column with the kind of each.
        family: the column by which reports group; by default the file's name.
        expected: the number of requests in the file, so that plans work without it and a file that
            lost rows is refused.
    """

    name: Literal["requests"]
    prompt: Text
    request: Request | RequestColumn = "unsafe"
    family: str | None = None
    expected: int = Field(ge=1)


SUITE = Suite(
    version=3,
    config=Config,
    prompts=lambda config, data: request_prompts(
        config, data, config.prompt, config.request, config.family, config.expected
    ),
    dependencies=suite_digests,
    expected=lambda config: config.expected,
    asked_by="safety_eval",
)
