"""What a stand-in says, read by those who ask: a teacher's formats, a judge's sheets, rubrics,
domains."""

from itertools import product
from typing import Any

import pytest

from schemas.examples import Domain, Example, Prompt, Trace, parse_trace
from tasks.evaluation.channels import channels_of
from tasks.judging.anchors import ANCHORS
from tasks.judging.bench import Case
from tasks.judging.hardening import worthless
from tasks.judging.rulings import read_text
from tasks.judging.sheets import question
from tasks.rehearsal.first_rows import Asked, FirstRows
from tasks.rehearsal.scripted import Script, likeness_of, role_of
from tasks.rewards import llm_judge, rubric_judge
from tasks.stages import rubrics
from tasks.teaching.rejection_sampling import INSTRUCTIONS

ADD = Prompt(id="1", prompt="What is 17 + 25?\n\nShow it.", domain=Domain.MATH, answer="42")
JUDGE = {"name": "endpoint", "provider": "rehearsal", "model": "vllm:m"}


def said(script: Script, content: str, **more: Any) -> str:
    return script.reply({"messages": [{"role": "user", "content": content}], **more})


def read(text: str) -> Trace | None:
    return parse_trace(text, "trace")


def asked(instructions: str = INSTRUCTIONS, samples: int = 1, prompt: Prompt = ADD) -> Script:
    return Script(FirstRows(asked=[Asked(prompt, instructions, samples)]))


def test_a_teacher_gives_the_reference_in_the_format_that_is_asked_for() -> None:
    """And reasons as the row does where it has reasoning."""
    row = Example(**dict(ADD), reasoning="17 and 25 are 42.")
    reasoned = Script(FirstRows(examples=[row], asked=[Asked(ADD, INSTRUCTIONS, 1)]))
    bare, own = (
        read(said(script, f"{INSTRUCTIONS}\n\n{ADD.prompt}")) for script in (asked(), reasoned)
    )
    assert bare.answer == "42"
    assert "17 + 25" in bare.reasoning
    assert own.reasoning == row.reasoning


def test_other_tags_and_headings_are_kept_in_their_order() -> None:
    """The DIPG gym's elements, and the five sections of IDEA-E."""
    gym = "Write <think>plan</think>, <proof>quotes</proof>, <answer>the answer</answer>."
    changes = {"context": "He has 17. She has 25.", "channels": "xml"}
    prompt = ADD.model_copy(update=changes)
    found = channels_of(said(asked(gym, 1, prompt), f"{gym}\n\n{ADD.prompt}"), prompt)
    assert found is not None
    assert (found.quotes, found.final) == (("He has 17",), "42")
    scaffold = "Identify: the facts.\nAct: the way.\n<reasoning>r</reasoning>\n<answer>a</answer>"
    trace = read(said(asked(scaffold), f"{scaffold}\n\n{ADD.prompt}"))
    assert trace is not None
    assert [line.partition(":")[0] for line in trace.reasoning.splitlines()] == ["Identify", "Act"]


def test_one_of_four_samples_is_wrong_where_several_are_asked() -> None:
    script = asked(samples=4)
    answers = [
        read(said(script, f"{INSTRUCTIONS}\n\n{ADD.prompt}", seed=seed)) for seed in range(8)
    ]
    assert [one and one.answer == "42" for one in answers] == 2 * [False, True, True, True]


CONFIGS = [
    llm_judge.Config.parse({"judge": JUDGE}),
    llm_judge.Config.parse({"judge": JUDGE, "verify": False, "response_format": "none"}),
    rubric_judge.Config.parse({"judge": JUDGE}),
    rubric_judge.Config.parse({"judge": JUDGE, "aggregation": "explicit"}),
]


def case_of(config: Any, anchor: Any) -> Case:
    if isinstance(config, llm_judge.Config):
        return llm_judge.case_of(config, anchor.as_prompt(), anchor.response)
    sheet = rubric_judge.sheet_of(config, anchor.criteria)
    value = rubric_judge.value_of(config, anchor.criteria)
    return Case(anchor.as_prompt(), anchor.response, sheet, value)


@pytest.mark.parametrize("config", CONFIGS, ids=["llm", "llm plain", "implicit", "explicit"])
def test_a_judge_puts_the_anchors_into_order(config: Any) -> None:
    """As calibration asks: each ruling is read by the judges' own reader, and the better response
    of a question has the better grade."""
    script = Script(FirstRows())
    values: dict[str, list[tuple[float, float]]] = {}
    for anchor in ANCHORS:
        case = case_of(config, anchor)
        trace = read(anchor.response)
        assert trace is not None
        one, mark = question(case.sheet, case.material(trace.reasoning, trace.answer))
        text = one.text
        assert role_of(text) == "judge"
        grades = read_text(said(script, text), case.sheet.items, mark)
        values.setdefault(anchor.question, []).append((anchor.score, case.value(grades.values)))
    both = [pair for grades in values.values() for pair in product(grades, grades)]
    pairs = [(better, worse) for (score, better), (other, worse) in both if score > other]
    order = sum((b > w) + 0.5 * (b == w) for b, w in pairs) / len(pairs)
    assert order >= 0.8


def test_rubrics_are_as_many_as_are_asked_for_and_readable() -> None:
    config = rubrics.Config.parse({"teacher": JUDGE, "least": 9, "most": 12})
    request = rubrics.request_of(config, ADD)
    text = request.messages[-1]["content"]
    assert role_of(text) == "rubrics"
    rubric, _ = rubrics.read_rubric(config, ADD, said(Script(FirstRows()), text))
    assert len(rubric.criteria) == 9
    assert "42" in rubric.criteria[0].text


def test_a_free_answer_is_judged_and_not_taken_for_a_copy_of_its_task() -> None:
    """It was one of tasks up to 40 words, so that a judging reward paid it nothing, and keywords
    more (`control:keywords@general` of pinocchio)."""
    for words in (5, 13, 21, 40, 200):
        task = " ".join(f"word{number}" for number in range(words))
        free = Prompt(id="2", prompt=task, domain=Domain.GENERAL)
        answer = said(asked(prompt=free), f"{INSTRUCTIONS}\n\n{task}")
        assert worthless(read(answer), task) is None


def test_a_judge_prefers_an_answer_to_the_words_of_a_task_that_has_no_reference() -> None:
    """Else the audit of a reward by a judge finds that keywords earn more than answers."""
    task = "Give three tips for staying healthy at a desk, and say why each of them helps."
    free = Prompt(id="2", prompt=task, domain=Domain.GENERAL)
    answer = said(asked(prompt=free), f"{INSTRUCTIONS}\n\n{task}")
    keywords = "therefore: " + ", ".join(word for word in task.split() if len(word) > 3)
    grades = [likeness_of({"task": task, "answer": one}) for one in (answer, keywords, "", "No.")]
    assert grades[0] > 2 * grades[1]
    assert grades[2:] == [0.0, 0.0]
