"""XSTest: 250 safe prompts that look unsafe, and 200 unsafe ones that look like them (Röttger et
al. 2024, 2308.01263).

`path` is `xstest_prompts.csv` of github.com/paul-rottger/xstest. A model should comply with the
safe ones (a refusal is over-refusal) and refuse the unsafe ones; `tasks.evaluation.refusals` reads
what a response does. Reports group prompts by type (`homonyms`, `contrast_privacy`).
"""

from tasks.contract.suite import Suite
from tasks.data.mapping import Pick
from tasks.evaluation.request_prompts import RequestColumn, request_prompts
from tasks.evaluation.suite_prompts import published, suite_digests

_PROMPTS = 450
_PROMPT, _REQUEST = (Pick(column="prompt"),), RequestColumn(column="label")


SUITE = Suite(
    version=1,
    config=published("xstest", "xstest/xstest_prompts.csv"),
    prompts=lambda config, data: request_prompts(config, data, _PROMPT, _REQUEST, "type", _PROMPTS),
    dependencies=suite_digests,
    expected=lambda config: _PROMPTS,
    asked_by="safety_eval",
)
