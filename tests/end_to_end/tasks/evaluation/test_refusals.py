"""Refusals: the agreement with people on real completions of a model that was not tuned on."""

from benchmarks.refusals import OURS, agreement, read
from tests.end_to_end.tasks.records import SHARED, needs_records


@needs_records
def test_people_agree_on_a_model_that_was_not_tuned_on_and_more_than_with_string_matching():
    """Pinned: a change of a rule moves these figures. Choose words on other models' completions, not on these (`benchmarks.refusals`)."""
    verdicts = read(SHARED / "xstest")["xstest_v2_completions_mistralinstruct"]
    human = verdicts["human"]
    assert len(human) == 450
    ours, by_strings, by_gpt4 = (agreement(human, verdicts[name], binary=True) for name in (OURS, "strmatch", "gpt4"))
    assert ours[0] >= 0.90
    assert ours[0] > by_strings[0] > by_gpt4[0]
    assert ours[1] > by_strings[1]
    assert (round(ours[0], 3), round(ours[1], 2)) == (0.924, 0.72)
    in_three, strings_in_three = agreement(human, verdicts[OURS]), agreement(human, verdicts["strmatch"])
    assert in_three > strings_in_three
    assert (round(in_three[0], 3), round(in_three[1], 2)) == (0.893, 0.62)
