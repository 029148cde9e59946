"""Texts that try to be paid for nothing, against every reward that no model and no sandbox judges;
and texts that try to cost time.

What each reward is for is tested in its own file.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.examples import GROUNDED_REFUSAL, Domain, Example, Prompt, Trace, prompt_id
from tasks.contract.reward import REWARDS, Judged, Resources, Response
from tasks.reinforcement.rewarding import parse_rewards
from tests.effort import takes_at_most

QUESTION = (
    "Context: Ana lives in Rome. She bakes 12 loaves a day for 3 shops.\nQuestion: How many loaves"
    " does Ana bake a day?"
)
LOAVES = "She bakes 12 loaves a day for 3 shops."
KNOWN = {"context": f"Ana lives in Rome. {LOAVES}", "grounding": "answerable"}
SUM = {"domain": Domain.MATH, "answer": "12", "check": "numeric"}
REASONING = f'The context says: "{LOAVES}" So the number asked for is given directly.'
EXAMPLE = Example(id=prompt_id(QUESTION), prompt=QUESTION, reasoning=REASONING, **KNOWN, **SUM)
GOOD = EXAMPLE.response()

TABLES: dict[str, dict[str, Any]] = {
    "format": {}, "exact_answer": {}, "numeric_answer": {}, "tfidf": {},
    "length": {"minimum": 10, "maximum": 100}, "overlong": {}, "chain_of_thought": {}, "idea_e": {},
    "dipg": {"version": "v3"},
}  # fmt: skip
ELSEWHERE = {"rubric_judge", "llm_judge", "reward_model", "code_tests", "function"}
"""Judged by a model, in a sandbox, or by code of the user's: tested with it."""

OPENING, CLOSING, ANSWER, END = "<reasoning>", "</reasoning>", "<answer>", "</answer>"
WORTHLESS = {
    "nothing": "",
    "a space": " ",
    "a colon": ":",  # 2507.08794: single tokens that judges pay for
    "Thought process:": "Thought process:",
    "Solution": "Solution",
    "a refusal": GROUNDED_REFUSAL,
    "tags without content": OPENING + CLOSING + ANSWER + END,
    "tags in reverse": END + ANSWER + CLOSING + OPENING,
    "an answer alone": ANSWER + "12" + END,
    "a reasoning alone": f"{OPENING}{EXAMPLE.reasoning}{CLOSING}",
    "white space in tags": f"{OPENING} {CLOSING}{ANSWER}\n{END}",
    "punctuation in tags": f"{OPENING}:{CLOSING}{ANSWER}:{END}",
    "a trace in a trace": f"{OPENING}{GOOD}{CLOSING}{ANSWER}12{END}",
    "a trace twice": GOOD + GOOD,
    "an answer in the reasoning": f"{OPENING}so {ANSWER}12{END}{CLOSING}{ANSWER}12{END}",
    "a trace that goes on": GOOD + " I hope that helps!",
    "fullwidth tags": GOOD.replace("<", "\uff1c").replace(">", "\uff1e"),
    "invisible characters in tags": (
        GOOD.replace("reasoning", "reason\u200bing").replace("answer", "ans\u00adwer")
    ),
    "capital tags": GOOD.upper(),
    "homoglyphs": GOOD.replace("answer", "аnswer"),  # a Cyrillic a
    "the prompt": QUESTION,
    "a lone surrogate": "\ud800" + GOOD[1:],
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("rebalance")
    (root / "train.jsonl").write_text(EXAMPLE.model_dump_json() + "\n", encoding="utf-8")
    return {"prompts": root}


@pytest.fixture(scope="module")
def worth(inputs: dict[str, Path]) -> Callable[[str, str], float | None]:
    """What a reward gives for a text."""
    prepared: dict[str, Any] = {}
    for name, table in TABLES.items():
        (config,) = parse_rewards([{"name": name, **table}], "rewards")
        prepared[name] = REWARDS[name].prepare(
            config, Resources(inputs, answers=None, response_length=512)
        )

    def value(name: str, text: str) -> float | None:
        prompts: list[Prompt] = [EXAMPLE.as_prompt()]
        (given,) = REWARDS[name].score(
            prepared[name], prompts, [Response(text, min(512, len(text) // 4 + 1))]
        )
        return given.value if isinstance(given, Judged) else given

    return value


def test_every_reward_is_attacked():
    assert set(REWARDS.names()) - ELSEWHERE == set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_a_good_response_earns_more_than_any_worthless_one(worth, name):
    good = worth(name, GOOD)
    assert good is not None
    for what, text in WORTHLESS.items():
        value = worth(name, text)
        assert value == worth(name, text)
        if name in ("overlong", "idea_e"):  # punishes length, asks for a scaffold: GOOD has neither
            assert value == good == 0.0
        elif what == "punctuation in tags" and name in ("format", "length"):
            # a well-formed trace, whatever it says: why these are never the only rewards
            assert value == good
        else:
            assert value < good, what
            assert value <= {"dipg": 0.0, "format": 0.5}.get(name, 0.0), what


ENDLESS = (
    "a", " ", "\n", OPENING, CLOSING + ANSWER, "<reasoning></reasoning", "1234567890", "1+", "1 + ",
    "1+1=2 ", "12345 + 1,234 = ", '"', '"a b c" ', "context says: ", "the answer is a ",
    "the context does not say, it is not in the text. ", "the cat sat on the mat. ",
    "Identify: a\n", "\n  ## 1. Identify the", "...", "<proof>", "a\u0301", "\ud800", "🙂",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("length", "overlong")])
def test_endless_texts_take_no_time_to_speak_of(worth, name):
    """20 kB, bare, and as reasoning and answer of a trace, in at most 0.3 s of processor time: what
    is linear takes 0.02 s, what is quadratic seconds."""
    worth(name, GOOD)
    for piece in (*ENDLESS, " ".join(map(str, range(4_000)))):
        whole = (piece * 20_000)[:20_000]
        inside = whole.replace("<", "(")
        for response in (whole, OPENING + whole, Trace(reasoning=inside, answer=inside).render()):
            assert takes_at_most(0.3, partial(worth, name, response)), piece[:50]
