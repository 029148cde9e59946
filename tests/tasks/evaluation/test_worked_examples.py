"""Worked examples before a prompt: which rows they are, what they may take, and what is refused."""

import pytest

from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from schemas.examples import GROUNDED_REFUSAL, Domain, Example, prompt_id
from tasks.contract.job import write_jsonl
from tasks.contract.small import Sizes
from tasks.data.tokens import prompt_tokens
from tasks.evaluation.eval_config import EvalConfig, small_eval
from tasks.evaluation.worked_examples import WorkedExamples, turns_before
from tasks.models.tiny import tiny_tokenizer
from tasks.stages.reasoning_eval import Config

TOKENIZER = tiny_tokenizer()


def row(number: int, domain: str = "math", grounding: str | None = None, words: int = 1) -> Example:
    refusal = grounding in ("unanswerable", "out_of_domain")
    return Example(
        id=f"{grounding or domain}-{number}",
        prompt=f"{grounding or ''}What is {number}?" + " please" * words,
        domain=Domain(domain),
        answer=GROUNDED_REFUSAL if refusal else str(number),
        reasoning=f"It is {number}.",
        grounding=grounding,  # type: ignore[arg-type]
        context="What" if grounding else None,
    )


def asked(name: str, domain: str = "math", grounding: str | None = None) -> EvalPrompt:
    return EvalPrompt.of(row(0, domain, grounding)).model_copy(update={"id": name})


def examples(
    rows: list[Example], shots: int, *, seed: int = 0, length: int = 1000
) -> WorkedExamples:
    return WorkedExamples(rows, shots, seed, TOKENIZER, length)


MATHS = [row(number) for number in range(1, 21)]
SCIENCE = [row(number, "science") for number in range(1, 21)]
GROUNDED = [
    row(number, "science", grounding)
    for grounding in ("answerable", "unanswerable", "out_of_domain")
    for number in range(1, 6)
]


def test_they_are_rows_of_the_prompts_domain_in_the_recipes_format() -> None:
    turns = examples(MATHS + SCIENCE + GROUNDED, 4).before(asked("a"))
    known = {(one.prompt, one.response()) for one in MATHS}
    assert len(set(turns)) == 4
    assert set(turns) <= known
    assert turns[0][1].startswith("<reasoning>It is ")


def test_each_prompt_has_its_own_and_the_seed_draws_them() -> None:
    drawn = {name: examples(MATHS, 3).before(asked(name)) for name in "abcdef"}
    assert len(set(drawn.values())) > 1
    assert drawn["a"] == examples(MATHS, 3).before(asked("a"))
    again = {name: examples(MATHS, 3, seed=1).before(asked(name)) for name in "abcdef"}
    assert again != drawn


def test_a_row_that_asks_what_the_prompt_asks_is_no_example() -> None:
    """A suite's question that no rebalance stage took from the training rows, whose answer it would
    give away."""
    again = asked("suite/0").model_copy(update={"prompt": "WHAT is 1? please"})
    rows = [row(1).model_copy(update={"id": prompt_id(again.prompt)}), row(2)]
    for seed in range(8):
        ((shown, _),) = examples(rows, 1, seed=seed).before(again)
        assert shown == rows[1].prompt


def test_a_grounded_prompt_is_shown_each_grounding_in_turn() -> None:
    """Of 3 examples one each; of 4 one twice; with which it begins differs by prompt."""
    kinds = {one.prompt + one.response(): one.grounding for one in GROUNDED}
    firsts = set()
    for name in "abcdefgh":
        shown = examples(MATHS + GROUNDED, 3).before(asked(name, "science", "answerable"))
        found = [kinds[prompt + said] for prompt, said in shown]
        assert sorted(map(str, found)) == ["answerable", "out_of_domain", "unanswerable"]
        firsts.add(found[0])
    assert len(firsts) > 1
    assert len(examples(GROUNDED, 4).before(asked("a", "science", "answerable"))) == 4


def test_together_they_fit_and_a_long_row_is_passed_over() -> None:
    """Nine rows of 240 tokens more than the tenth and eleventh: of 2 examples none is one of them
    where 200 tokens are left."""
    short, long = MATHS[:2], [row(number, words=120) for number in range(50, 59)]
    question = asked("a")
    room = len(prompt_tokens(TOKENIZER, question.prompt)) + 200
    turns = examples(short + long, 2, length=room).before(question)
    assert {prompt for prompt, _ in turns} == {one.prompt for one in short}
    assert len(prompt_tokens(TOKENIZER, question.prompt, turns)) <= room


def test_what_an_example_leaves_of_its_share_the_next_may_take() -> None:
    question, rows = asked("a"), [row(1), row(2, words=40)]
    taken = [
        len(prompt_tokens(TOKENIZER, "", ((one.prompt, one.response()),)))
        - len(prompt_tokens(TOKENIZER, ""))
        for one in rows
    ]
    room = len(prompt_tokens(TOKENIZER, question.prompt)) + sum(taken)
    assert taken[1] > sum(taken) / 2
    turns = examples(rows, 2, length=room).before(question)
    assert [prompt for prompt, _ in turns] == [one.prompt for one in rows]
    assert len(prompt_tokens(TOKENIZER, question.prompt, turns)) == room


def test_fewer_rows_than_examples_are_refused() -> None:
    with pytest.raises(
        InputError, match="4 training rows of math in the format trace, and there are 3"
    ):
        examples(MATHS[:3] + SCIENCE, 4).before(asked("a"))
    only = [one for one in GROUNDED if one.grounding == "answerable"]
    with pytest.raises(InputError, match="6 training rows of answerable in the format trace"):
        examples(only, 6).before(asked("a", "science", "unanswerable"))


def test_rows_that_are_all_too_long_are_refused_with_the_length_that_they_take() -> None:
    with pytest.raises(InputError, match=r"leaves \d+ tokens for a worked example of math.* Raise"):
        examples(MATHS, 4, length=60).before(asked("a"))


def config(**changes: object) -> Config:
    table = {"model": "gemma3-tiny", "prompt_length": 600, "response_length": 16}
    return Config.parse(table | changes)


def test_they_come_of_the_training_split_and_instructions_stand_before_the_first(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", MATHS)
    write_jsonl(tmp_path / "heldout.jsonl", [row(99)])
    table, given = config(shots=2, instructions="Think."), {"prompts": tmp_path}
    (turns,) = turns_before(given, table, [asked("a")], TOKENIZER)
    assert turns[0][0].startswith("Think.\n\nWhat is ")
    assert turns[1][0].startswith("What is ")
    assert "99" not in str(turns)
    assert turns_before(given, config(), [asked("a")], TOKENIZER) == [()]


def test_without_training_rows_they_are_refused() -> None:
    with pytest.raises(InputError, match=r"shots = 2 asks for worked examples.*connect `prompts`"):
        turns_before({}, config(shots=2), [asked("a")], TOKENIZER)


def test_how_many_is_part_of_the_key_and_none_is_not() -> None:
    """Evaluations of before there were examples keep their keys."""
    assert "shots" not in config().model_dump(mode="json")
    assert config(shots=4).model_dump(mode="json")["shots"] == 4


def test_a_rehearsal_shows_one_and_has_room_for_it() -> None:
    """Questions of 30 tokens and rows of 30 and 20: 30 + 1 x (30 + 20) = 80."""
    few = Sizes(question=30, answer=20, read=24)
    small = small_eval(config(shots=4), few)
    assert isinstance(small, EvalConfig)
    assert (small.shots, small.prompt_length) == (1, 80)
    assert small_eval(config(), few).prompt_length == 30
