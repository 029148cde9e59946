"""Planted instructions in abstracts of PubMedQA."""

from tasks.evaluation.suite_prompts import suite_dependencies
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.tasks.suites.test_injection import asked, check


@needs_records
def test_abstracts_of_pubmedqa_are_attacked():
    prompts = asked(SHARED, contexts="pubmedqa")
    check(prompts)
    assert {one.answer for one in prompts} == {"yes", "no", "maybe"}
    table = {"name": "injection", "contexts": "pubmedqa"}
    keys = set(suite_dependencies([table], "safety_eval", SHARED))
    assert keys == {"suites.injection", "suites.pubmedqa", "data/pubmedqa/ori_pqal.json"}
