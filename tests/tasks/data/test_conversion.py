"""From records to examples and prompts, by a source's mapping (`tasks.data.sources`,
`tasks.data.mapping`, `tasks.data.conversion`)."""

import json

import pytest

from schemas.base import InputError
from schemas.examples import GROUNDED_REFUSAL, Constraint, Domain
from tasks.data.dropped import Dropped
from tasks.teachers import dataset
from tests.tasks.teachers.dataset_rows import MATH, ROWS, causes, config, lend, taught, teach, write


def test_markers_split_a_column_and_a_row_without_the_marker_is_dropped(tmp_path):
    rows = [{"q": "1+1?", "a": "one and one\n#### 2"}, {"q": "2+2?", "a": "no marker"}]
    before, after = ({"column": "a", side: "####"} for side in ("before", "after"))
    halves = {"reasoning": before, "answer": after}
    good, bad = taught(tmp_path, rows, prompt="q", **halves, max_bad_fraction=0.5)
    assert (good.reasoning, good.answer) == ("one and one", "2")
    assert (bad.cause, bad.file, bad.line) == ("empty_reasoning", "a.jsonl", 2)


GYM = {
    "prompt": "q",
    "channels": "xml",
    "reasoning": {"column": "said", "after": "<think>", "before": "</think>"},
    "proof": {"column": "said", "after": "<proof>", "before": "</proof>"},
    "answer": {"column": "said", "after": "<answer>", "before": "</answer>"},
    "max_bad_fraction": 0.9,
}


def test_a_source_that_teaches_elements_has_its_proof_in_one(tmp_path):
    said = "<think>\nPlan.\n</think>\n\n<proof>\n{}\n</proof>\n\n<answer>\n4\n</answer>"
    bad = said.format("-").replace("Plan", "a</proof>b")
    texts = (said.format('"2 and 2"'), said.format(" "), said.replace("<proof>", ""), bad)
    rows = [{"q": f"{number}?", "said": text} for number, text in enumerate(texts)]
    good, *dropped = taught(tmp_path, rows, **GYM)
    assert good.response() == '<think>Plan.</think>\n<proof>"2 and 2"</proof>\n<answer>4</answer>'
    assert good.as_prompt().channels == "xml"
    assert causes(dropped) == [(2, "empty_proof"), (3, "empty_proof"), (4, "tag_in_trace")]
    without = {name: value for name, value in GYM.items() if name != "proof"}
    (empty, *_) = taught(tmp_path, rows, **without)
    assert empty.response() == "<think>Plan.</think>\n<proof></proof>\n<answer>4</answer>"
    with pytest.raises(InputError, match="channels = 'trace' has no place for a proof: set chan"):
        config({"path": "a.jsonl", "domain": "general", **GYM, "channels": "trace"})


def test_paths_walk_into_lists_and_objects_and_lists_are_joined_or_selected(tmp_path):
    row = {"turns": ["first?", "second?"], "instances": [{"output": "yes"}]}
    row |= {"source": ["A.", "B.", "C."], "labels": [0, 1, 1]}
    picks = {"prompt": {"template": "{turns.0} {source}"}, "answer": "instances.0.output"}
    reasoning = {"column": "source", "where": "labels"}
    (example,) = taught(tmp_path, [row], **picks, reasoning=reasoning)
    assert example.prompt == "first? A. B. C."
    assert (example.reasoning, example.answer) == ("B. C.", "yes")


def test_alternatives_give_the_first_that_is_not_empty(tmp_path):
    rows = [
        {"q": "1?", "sol": "worked", "a": "1"},
        {"q": "2?", "sol": " ", "a": "2"},
        {"q": "3?", "a": "3"},
    ]
    reasoning = ["sol", {"template": "The answer is {a}."}]
    found = taught(tmp_path, rows, prompt="q", reasoning=reasoning, answer="a")
    assert [row.reasoning for row in found] == ["worked", "The answer is 2.", "The answer is 3."]


def test_domain_and_difficulty_can_come_from_columns(tmp_path):
    rows = [{**ROWS[0], "kind": "stem", "level": 3}, {**ROWS[1], "kind": "art", "level": 3}]
    by_row = {
        "domain": {"column": "kind", "table": {"stem": "science", "writing": "creative"}},
        "difficulty": {"column": "level", "table": {"3": 4}},
    }
    good, bad = taught(tmp_path, rows, **{**MATH, **by_row}, max_bad_fraction=0.5)
    assert (good.domain, good.difficulty) == (Domain.SCIENCE, 4)
    assert bad.cause == "unmapped_value"
    assert "kind = 'art' is not in the table (stem, writing)" in bad.detail


def test_required_columns_leave_rows_out_without_counting_them_as_bad(tmp_path):
    rows = [{**row, "reference": ["x"] if n < 2 else None} for n, row in enumerate(ROWS)]
    found = taught(tmp_path, rows, **MATH, require=["reference.0"], max_bad_fraction=0.0)
    assert [row.cause for row in found if isinstance(row, Dropped)] == ["left_out"] * 8
    assert len(found) == 10


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"prompt": "qestion"}, "a.jsonl, prompt: there is no column 'qestion'. Did you mean 'que"),
        ({"reasoning": {"template": "{steps} {more}"}}, "reasoning: there is no column 'more'"),
        ({"reasoning": ["solution", {"template": "{x}"}]}, "there is no column 'solution'"),
        ({"require": ["reference"]}, "require: there is no column 'reference'"),
        ({"domain": {"column": "kind", "table": {"a": "math"}}}, "domain: there is no column"),
        ({"answer": "inner.0.outptu"}, "'inner.0.outptu'. Did you mean 'inner.0.output'?"),
    ],
)
def test_an_unknown_column_is_named_with_those_beside_it_before_anything_runs(
    tmp_path, mapping, message
):
    rows = [{**row, "inner": [{"input": "", "output": "x"}]} for row in ROWS]
    source = {**MATH, **mapping}
    with pytest.raises(InputError) as error:
        taught(tmp_path, rows, **source)
    with pytest.raises(InputError) as earlier:
        dataset.dependencies(config({"path": "a.jsonl", **source}), tmp_path)
    assert message in str(error.value) == str(earlier.value)


def test_a_column_that_no_row_has_is_an_error_at_the_end_and_a_late_one_is_none(tmp_path):
    rows = [*ROWS, {**ROWS[0], "extra": "x"}]
    assert len(taught(tmp_path, rows, **{**MATH, "reasoning": ["extra", "steps"]})) == 11
    with pytest.raises(InputError, match=r"there is no column 'ansver'\. Did you mean 'answer'"):
        taught(tmp_path, rows, **{**MATH, "answer": "ansver"}, max_bad_fraction=0.99)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domain": "maths"}, "'maths' is not valid. Did you mean 'math'?"),
        ({"check": "numerical"}, "unknown check 'numerical'. Did you mean 'numeric'? Valid:"),
        ({"prompt": {"template": "{question"}}, "has a brace without its partner"),
        ({"prompt": {"column": "question", "template": "x"}}, "either a column or a template"),
        ({"prompt": {"template": r"Q:\n{question}"}}, "write the text between double quotes"),
        ({"prompt": []}, "an empty list names no column"),
        ({"answer": None, "check": "numeric"}, "answer is missing: check = 'numeric'"),
        ({"check": "tests"}, "tests and check = 'tests' belong together"),
        ({"constraints": [{"name": "max_words", "value": 9}]}, "constraints and check = 'constr"),
        ({"code_prefix": "question"}, "code_prefix is for check = 'tests' only"),
        ({"tolerance": 0.01}, "tolerance is for check = 'numeric' and 'quantity' only"),
        ({"grounding": "unanswerable", "context": "question"}, "leave answer out"),
        ({"grounding": "answerable"}, "sets both grounding and context"),
        ({"path": "../secrets.jsonl"}, "relative to the --data directory"),
        ({"path": "/etc/passwd"}, "relative to the --data directory"),
        ({"colour": "red"}, "unknown key"),
    ],
)
def test_a_wrong_mapping_is_refused_before_any_file_is_read(change, message):
    with pytest.raises(InputError) as error:
        config({"path": "a.jsonl", **MATH, **change})
    assert message in str(error.value)
    assert "stages.distill.config.teachers.0" in str(error.value)


def test_constraints_are_a_list_or_a_column_that_holds_one(tmp_path):
    listed = [{"name": "max_words", "value": 5}, {"name": "includes", "value": ["sea", "salt"]}]
    rows = [
        {"q": "a?", "c": listed},
        {"q": "b?", "c": json.dumps(listed)},
        {"q": "c?", "c": [{"name": "max_wrods", "value": 5}]},
        {"q": "d?"},
    ]
    write(tmp_path / "a.jsonl", rows)
    source = {"path": "a.jsonl", "domain": "creative", "prompt": "q", "check": "constraints"}
    by_column = {**source, "constraints": {"column": "c"}, "max_bad_fraction": 0.5}
    first, second, *bad = lend(tmp_path, by_column)
    assert first.constraints == second.constraints == tuple(Constraint.parse(one) for one in listed)
    assert causes(bad) == [(3, "bad_constraints"), (4, "bad_constraints")]
    assert "unknown constraint 'max_wrods'. Did you mean 'max_words'?" in bad[0].detail
    constant = lend(tmp_path, {**source, "constraints": listed})
    assert {row.constraints for row in constant} == {first.constraints}
    with pytest.raises(InputError, match="constraint 'max_words' takes a whole number"):
        config({**source, "constraints": [{"name": "max_words", "value": "many"}]})


def test_a_quantity_keeps_its_tolerance_and_a_reference_without_a_number_is_bad(tmp_path):
    write(tmp_path / "a.jsonl", [{"q": "a?", "a": "5 kJ/mol"}, {"q": "b?", "a": "heavy"}])
    source = {"path": "a.jsonl", "domain": "science", "prompt": "q", "answer": "a"}
    check = {"check": "quantity", "tolerance": 0.05, "max_bad_fraction": 0.5}
    good, bad = lend(tmp_path, {**source, **check})
    assert (good.answer, good.tolerance, good.check) == ("5 kJ/mol", 0.05, "quantity")
    assert (bad.cause, bad.line) == ("not_numeric", 2)


# Grounded question answering

GROUNDED = {"domain": "science", "context": "context", "reasoning": {"template": "read"}}


def test_pairing_makes_unanswerable_questions_of_the_next_row_and_others_of_another_file(tmp_path):
    rows = [{"context": f"Fact {n}.", "q": f"What of {n}?", "a": f"{n}"} for n in range(3)]
    write(tmp_path / "a.jsonl", rows)
    write(tmp_path / "b.jsonl", [{"turns": ["Capital of France?"]}])

    def source(grounding, question, **more):
        prompt = {"template": f"{{context}} {{{question}}}"}
        return {"path": "a.jsonl", **GROUNDED, "grounding": grounding, "prompt": prompt, **more}

    own = source("answerable", "q", answer="a", check="exact")
    next_one = source("unanswerable", "other.q", other={})
    foreign = source("out_of_domain", "other.turns.0", other={"path": "b.jsonl"})
    found = [row for row in teach(tmp_path, own, next_one, foreign) if row.context == "Fact 2."]
    assert [(row.prompt, row.answer, row.grounding, row.check) for row in found] == [
        ("Fact 2. What of 2?", "2", "answerable", "exact"),
        ("Fact 2. What of 0?", GROUNDED_REFUSAL, "unanswerable", "exact"),
        ("Fact 2. Capital of France?", GROUNDED_REFUSAL, "out_of_domain", "exact"),
    ]


def test_pairing_a_row_with_itself_and_a_prompt_without_its_context_are_errors(tmp_path):
    rows, refusing = [{"context": "Fact.", "q": "What?"}], {**GROUNDED, "grounding": "unanswerable"}
    with pytest.raises(InputError, match=r"other\.offset = 1 pairs each of its 1 rows with itself"):
        taught(tmp_path, rows, **refusing, prompt={"template": "{context} {other.q}"}, other={})
    with pytest.raises(InputError, match="a prompt does not contain its context"):
        taught(tmp_path, rows, **refusing, prompt="q")


def test_rows_of_other_values_are_left_out_and_are_no_bad_rows(tmp_path):
    rows = [{"q": f"{n}?", "a": "1", "about": {"kind": kind}} for n, kind in enumerate("xyxz")]
    columns = {"prompt": "q", "reasoning": "q", "answer": "a"}
    found = taught(tmp_path, rows, **columns, only={"about.kind": ["x", "z"]}, max_bad_fraction=0)
    assert [getattr(row, "cause", "kept") for row in found] == ["kept", "left_out", "kept", "kept"]
    with pytest.raises(InputError, match=r"'about\.sort'"):
        taught(tmp_path, rows, **columns, only={"about.sort": ["x"]})
