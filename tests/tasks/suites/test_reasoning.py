"""Suites of reasoning: the published files of ../shared/data, hand-made ones in their published
forms, and rows that cannot be read."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from schemas.examples import Domain
from tasks.contract.job import write_jsonl
from tasks.contract.suite import SUITES
from tasks.evaluation.suite_prompts import parse_suites, suite_prompts, suite_size
from tasks.suites import mmlu
from tasks.verification.choices import choices_of
from tasks.verification.verify import agrees


def ask(data: Path | None = None, kind: str = "reasoning_eval", **table: Any) -> list[EvalPrompt]:
    """The prompts of a suite."""
    (config,) = parse_suites([table], kind)
    return suite_prompts(config, data)


def size(kind: str = "reasoning_eval", **table: Any) -> int:
    (config,) = parse_suites([table], kind)
    return suite_size(config)


ADDS = ("assert plus(1, 2) == 3", "assert math.isclose(plus(0.5, 0.5), 1)")
ADDS += ("assert plus(-1, 1) == 0",)
ADD = {"code": "def plus(a, b): return a + b", "test_list": ADDS}
FULL = {"text": "Write a function to add.", "test_setup_code": "import math", **ADD}


def test_mbpp_asks_its_test_split_with_one_assertion_and_judges_by_all(tmp_path: Path) -> None:
    tasks = ({"task_id": number, **FULL} for number in (10, 11, 510, 511))
    write_jsonl(tmp_path / "mbpp.jsonl", tasks)
    prompts = ask(tmp_path, name="mbpp", path="mbpp.jsonl")
    assert [prompt.id for prompt in prompts] == ["mbpp/0", "mbpp/1"]
    shown = f"Write a function to add. Your code should pass this test:\n\n{ADDS[0]}"
    assert prompts[0].prompt == shown
    assert agrees(prompts[0], "def plus(a, b): return a + b").ok
    assert not agrees(prompts[0], "def plus(a, b): return 3").ok
    sanitized = {"prompt": "Add.", "test_imports": ["import math"], "task_id": 12, **ADD}
    (tmp_path / "sanitized-mbpp.json").write_text(json.dumps([sanitized]), encoding="utf-8")
    (prompt,) = ask(tmp_path, name="mbpp", path="sanitized-mbpp.json")
    assert prompt.tests == prompts[0].tests
    assert (size(name="mbpp"), size(name="mbpp", path="sanitized-mbpp.json")) == (500, 257)


def test_mmlu_reads_the_published_tables_without_a_header_line(tmp_path: Path) -> None:
    question = ["Find all c in Z_3 such that Z_3[x]/(x^2 + c) is a field.", "0", "1", "1", "3", "B"]
    (tmp_path / "test").mkdir()
    for subject in ("abstract_algebra", "virology"):
        path = tmp_path / f"test/{subject}_test.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            another = ['Say "2", or two?', "a, b", "x\ny", "c", "d", "D"]
            csv.writer(file).writerows([question, another])
    prompts = ask(tmp_path, name="mmlu", path="test/*_test.csv")
    assert len(prompts) == 4
    listed = "\n\nA. 0\nB. 1\nC. 1\nD. 3\n\nAnswer with"
    assert prompts[0].prompt.startswith(question[0] + listed)
    assert prompts[0].answer == "B"
    assert [prompts[place].domain.value for place in (0, 2)] == ["math", "science"]
    assert choices_of(prompts[1]) == ("a, b", "x\ny", "c", "d")
    one = ask(tmp_path, name="mmlu", path="test/*_test.csv", subjects=["virology"])
    assert [prompt.source for prompt in one] == ["test/virology_test.csv"] * 2


def test_mmlu_reads_the_hubs_columns_as_parquet_and_jsonl(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    about = {"question": "Which?", "subject": "college_physics"}
    rows = [{**about, "choices": ["v", "w", "x", "y"], "answer": 2}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    chosen = {"question": "Which?", "choices": ["v", "w"], "answer": "w"}
    write_jsonl(tmp_path / "mine.jsonl", [chosen])
    (hub,) = ask(tmp_path, name="mmlu", path="test.parquet")
    (mine,) = ask(tmp_path, name="mmlu", label="mine", path="mine.jsonl")
    assert (hub.answer, hub.domain.value) == ("C", "science")
    assert (mine.answer, mine.domain.value, mine.id) == ("B", "general", "mine/0")


def test_mmlu_has_its_published_sizes_and_refuses_other_subjects() -> None:
    assert (len(mmlu.SUBJECTS), size(name="mmlu")) == (57, 14042)
    assert size(name="mmlu", subjects=["virology", "astronomy"]) == 166 + 152
    assert size(name="mmlu", path="mmlu/test/virology_test.csv") == 166
    with pytest.raises(InputError, match=r"unknown subject 'virolgy'.*virology"):
        size(name="mmlu", subjects=["virolgy"])


def test_the_true_answer_of_truthfulqa_stands_first_in_the_file_and_anywhere_in_the_prompt(
    tmp_path: Path,
) -> None:
    targets = {"true": 1, "false": 0, "wrong": 0, "no": 0}
    rows = [{"question": f"Question {n}?", "mc1_targets": targets} for n in range(200)]
    (tmp_path / "mc_task.json").write_text(json.dumps(rows))
    prompts = ask(tmp_path, kind="safety_eval", name="truthfulqa", path="mc_task.json")
    places = Counter(prompt.answer for prompt in prompts)
    assert set(places) == set("ABCD")
    assert min(places.values()) > 30
    assert all(choices_of(prompt)["ABCD".index(prompt.answer)] == "true" for prompt in prompts)
    hub = {"choices": list(targets), "labels": list(targets.values())}
    write_jsonl(tmp_path / "hub.jsonl", ({**row, "mc1_targets": hub} for row in rows))
    again = ask(tmp_path, kind="safety_eval", name="truthfulqa", path="hub.jsonl")
    pairs = [[(prompt.prompt, prompt.answer) for prompt in asked] for asked in (prompts, again)]
    assert pairs[0] == pairs[1]
    assert size(kind="safety_eval", name="truthfulqa") == 817


MINE = {"name": "dataset", "label": "mine", "path": "mine.jsonl", "expected": 2}
MINE |= {"domain": "science", "prompt": "q", "answer": "a"}


def test_any_file_is_a_suite_by_a_mapping(tmp_path: Path) -> None:
    rows = [{"q": "3 dm?", "a": "30 cm"}, {"q": "1 t?", "a": "1000 kg"}]
    write_jsonl(tmp_path / "mine.jsonl", rows)
    prompts = ask(tmp_path, **MINE, check="quantity")
    found = [(prompt.id, prompt.suite, prompt.answer, prompt.line) for prompt in prompts]
    assert found == [("mine/0", "mine", "30 cm", 1), ("mine/1", "mine", "1000 kg", 2)]
    with pytest.raises(InputError, match="makes 2 prompts, not 3; set expected"):
        ask(tmp_path, **{**MINE, "expected": 3})
    rows = [{"q": "Which?", "options": ["x", "y"], "a": 1}]
    rows.append({"q": "What?", "options": ["x", "y", "z"], "a": "z"})
    write_jsonl(tmp_path / "mine.jsonl", rows)
    chosen = ask(tmp_path, **MINE, check="choice", choices="options")
    assert [prompt.answer for prompt in chosen] == ["B", "C"]


def test_a_mapping_that_a_suite_cannot_have_is_refused():
    for change, message in (
        ({"domain": "router"}, "the router does not say the domain of a suite"),
        ({"grounding": "answerable", "context": "q"}, "are asked by a stage of kind safety_eval"),
        ({"check": "choice"}, "choices and check = 'choice' belong together"),
        ({"reasoning": "r"}, "reasoning"),
        ({"expected": 0}, "expected"),
        ({"label": "all"}, "'all' is the name of another suite, or of what reports and logs show"),
    ):
        with pytest.raises(InputError, match=message):
            parse_suites([MINE | {"check": "exact"} | change], "reasoning_eval")


GSM8K, MMLU = '{"question": "1+1?", "answer": "#### 2"}', '{"question": "?", "choices": '
CHEMIQ = '{"prompt": "?", "answer": 9, "answer_format": '
POETRY = '{"category": "poetry", "turns": ["Sing."], "reference": [""]}'
NONE_TRUE = '{"question": "?", "mc1_targets": {"a": 0, "b": 0}}'
BAD_ROWS = [
    ("gsm8k", GSM8K + '\n{"question": ', "rows.jsonl, line 2 cannot be read: not JSON"),
    ("gsm8k", GSM8K.replace("#### ", ""), "suite gsm8k: rows.jsonl, line 1: empty_answer"),
    ("gsm8k", GSM8K.replace("2", "two"), "line 1: not_numeric: answer 'two' is no number"),
    ("gsm8k", GSM8K.replace("1+1?", ""), "line 1: empty_prompt"),
    ("gsm8k", GSM8K.replace("question", "q"), "rows.jsonl, prompt: there is no column 'question'"),
    ("gsm8k", "", "holds no prompt"),
    ("mt_bench", POETRY, "unmapped_value: category = 'poetry'"),
    ("mbpp", '{"text": "Add.", "test_list": []}', "line 1: task_id = None is no whole number"),
    ("chemiq", CHEMIQ + '"image"}', "answer_format = 'image' is none of integer"),
    ("chemiq", CHEMIQ + '"float", "answer_range": "(1.5, 2)"}', "no range around the answer 9"),
    ("mmlu", MMLU + '["a"], "answer": 0}', r'choices = "\[.a.\]" is no list of 2 to 26'),
    ("mmlu", MMLU + '["a", "b"], "answer": 2}', "answer '2' is no letter of AB, no place"),
    ("mmlu", MMLU + '["a", "b"], "answer": "E"}', "bad_choices: answer 'E'"),
    ("truthfulqa", NONE_TRUE, "does not say of choices which one is true"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_ROWS)
def test_a_row_that_cannot_be_read_is_refused_with_its_line(tmp_path, name, content, message):
    (tmp_path / "rows.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        ask(tmp_path, kind=SUITES[name].asked_by, name=name, path="rows.jsonl")


def test_a_noisy_score_of_chemiq_is_right_within_its_range(tmp_path: Path) -> None:
    row = {"prompt": "?", "answer": 441, "answer_format": "float"}
    write_jsonl(tmp_path / "c.jsonl", [{**row, "answer_range": "(434.21, 447.79)"}])
    (prompt,) = ask(tmp_path, name="chemiq", path="c.jsonl")
    found = [agrees(prompt, answer).ok for answer in ("434.3", "447.7", "434.1", "447.9")]
    assert found == [True, True, False, False]


def test_fresh_problems_need_no_file_and_are_the_same_every_time() -> None:
    table = {"name": "procedural", "per_domain": 3}
    prompts = ask(**table)
    assert [prompt.domain for prompt in prompts] == [domain for domain in Domain for _ in range(3)]
    assert prompts == ask(**table)
    assert len({prompt.id for prompt in prompts}) == size(**table) == 18
