"""PubMedQA as a suite, from the published articles."""

from collections import Counter

from schemas.examples import GROUNDED_REFUSAL
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.tasks.suites.test_pubmedqa import asked


@needs_records
def test_articles_are_asked_in_the_shares_that_were_asked_for():
    prompts = asked(SHARED)
    assert len(prompts) == 600
    for first in (10, 100, 600):
        shares = Counter(one.grounding for one in prompts[:first])
        half, most, tenth = first * 5 // 10, first * 4 // 10, first // 10
        assert shares == {"answerable": half, "unanswerable": most, "out_of_domain": tenth}
    told = {one.answer for one in prompts if one.grounding == "answerable"}
    assert told == {"yes", "no", "maybe"}
    assert {one.answer for one in prompts if one.grounding != "answerable"} == {GROUNDED_REFUSAL}
    assert [one.id for one in prompts[:2]] == ["pubmedqa/0", "pubmedqa/1"]
    assert all(
        one.context and one.prompt.startswith(f"Context: {one.context}\nQuestion: ")
        for one in prompts
    )
    assert prompts == asked(SHARED)
    assert prompts[:7] == asked(SHARED, first=7)
