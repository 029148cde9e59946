"""The three formats of a trace: what one writes the reader of that format reads, and nothing else.

Every reader of responses is given one reading of one row in each format: they must not differ.
"""

from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from schemas.examples import (
    GROUNDED_REFUSAL,
    Domain,
    Example,
    Format,
    PreferencePair,
    Trace,
    parse_any,
    parse_trace,
    tags_of,
)
from tasks.cleaning.filters import response_of, texts_of
from tasks.contract.reward import Response
from tasks.evaluation import safety_verdicts
from tasks.evaluation.controls import CONTROLS
from tasks.evaluation.grounding import follows
from tasks.evaluation.sampled import ballot
from tasks.evaluation.worked_examples import WorkedExamples
from tasks.exporting.model_card import Card, format_taught, write_card
from tasks.judging.bench import Case, parts
from tasks.judging.sheets import Sheet
from tasks.models.tiny import tiny_tokenizer
from tasks.rehearsal.audit_responses import references_and_controls
from tasks.reward_models.pairs import damaged_pairs, trace_pairs
from tasks.reward_models.steps import split_steps, step_tokens
from tasks.rewards import chain_of_thought, code_tests, dipg, idea_e, length
from tasks.rewards import format as format_reward
from tasks.training.preference_pairs import check_samples, make_pairs
from tasks.verification.flexible import flexible_answer
from tasks.verification.verify import verify
from tests.tasks.prompts import paid

FORMATS: tuple[Format, ...] = get_args(Format)
WITH_PROOF = [channels for channels in FORMATS if channels != "trace"]
CONTEXT = "Ana has lived in Rome since May 2020. The tram runs at noon."


def example(channels: Format = "trace", **changes: Any) -> Example:
    proof = "" if channels == "trace" else '"Ana has lived in Rome since May 2020."'
    quoted = (
        f"The context says: {CONTEXT} So it is."
        if channels == "trace"
        else "There are 2 facts. So be it."
    )
    row: dict[str, Any] = {
        "id": "0" * 16,
        "prompt": f"Context: {CONTEXT}\nQuestion: Where does Ana live?",
        "domain": Domain.GENERAL,
        "answer": "Rome",
        "context": CONTEXT,
        "grounding": "answerable",
        "reasoning": quoted,
        "proof": proof,
        "channels": channels,
    }
    return Example(**row | changes)


WORDS = (
    "plain",
    "two\nlines",
    "a < b > c </ think> <thinking> </b>",
    '"quoted" \\n {braces} [x]',
    "日本 😀 é",
    "&lt;answer&gt;",
)


@pytest.mark.parametrize("channels", FORMATS)
def test_what_is_written_is_read_again(channels: Format) -> None:
    for text in WORDS:
        for proof in ("", text) if channels in WITH_PROOF else ("",):
            trace = Trace(reasoning=text, answer=text[::-1], proof=proof, channels=channels)
            assert parse_trace(trace.render(), channels) == trace
            assert parse_trace(f"\n {trace.render()}\t\n", channels) == trace
            assert parse_any(trace.render()) == trace


def test_the_gyms_elements_are_written_as_its_author_has_them() -> None:
    trace = Trace(reasoning="Plan.", proof='"Quote."', answer="Rome", channels="xml")
    assert trace.render() == (
        '<think>Plan.</think>\n<proof>"Quote."</proof>\n<answer>Rome</answer>'
    )
    own = '<think>\nPlan.\n</think>\n\n<proof>\n"Quote."\n</proof>\n\n<answer>\nRome\n</answer>'
    assert parse_trace(own, "xml") == trace
    said = {"reasoning": "It does not say.", "answer": GROUNDED_REFUSAL}
    abstains = Trace(**said, channels="xml")
    assert "\n<proof></proof>\n" in abstains.render()
    assert parse_trace(abstains.render(), "xml") == abstains


MALFORMED = (
    "",
    "Rome",
    "<think>a</think>\n<answer>Rome</answer>",  # no place for a proof
    "<proof>p</proof>\n<answer>Rome</answer>",
    "<think>a</think>\n<proof>p</proof>",
    "<think>a</think>\n<proof>p</proof>\n<answer>Rome",
    "<think>a</think>\n<proof>p</proof>\n<answer> </answer>",
    "<think> </think>\n<proof>p</proof>\n<answer>Rome</answer>",
    "<proof>p</proof>\n<think>a</think>\n<answer>Rome</answer>",
    "<think>a</think>\n<proof>p</proof>\n<answer>Rome</answer> I hope this helps.",
    "So: <think>a</think>\n<proof>p</proof>\n<answer>Rome</answer>",
    "<think>a</think> and <proof>p</proof>\n<answer>Rome</answer>",
    "<think>a<think>b</think>\n<proof>p</proof>\n<answer>Rome</answer>",
    "<think>a</think>\n<proof>p</proof>\n<proof>q</proof>\n<answer>Rome</answer>",
    "<think>a</think>\n<proof>p</proof>\n<answer><answer>Rome</answer></answer>",
    "<think>a</think>\n<proof>p</proof>\n<answer>Rome</answer>" * 2,
    "<think>a</think>\n<proof>p</proof>\n<answer>Rome</answer>\n<answer>Oslo</answer>",
    "<think><proof>p</proof></think>\n<answer>Rome</answer>",
    "\uff1cthink>a\uff1c/think>\n\uff1cproof>p\uff1c/proof>\n\uff1canswer>Rome\uff1c/answer>",
    "<think>a <proof>p</proof></think>\n<proof>p</proof>\n<answer>Rome</answer>",
    "<reasoning>a</reasoning>\n<proof>p</proof>\n<answer>Rome</answer>",
    "<think>a</think>\n<proof>p</proof>\n<final>Rome</final>",
    "<THINK>a</THINK>\n<proof>p</proof>\n<answer>Rome</answer>",
    "<reasoning>a</reasoning>\n<answer>Rome</answer>",
)


@pytest.mark.parametrize("text", MALFORMED)
def test_anything_else_is_malformed_to_every_reader(text: str) -> None:
    assert parse_trace(text, "xml") is None
    asked = example("xml").as_prompt()
    assert not verify(asked, text).format
    assert paid(format_reward, text, asked=asked)[0] < 1
    for reward, config in ((length, {"maximum": 64}), (chain_of_thought, {}), (idea_e, {})):
        assert paid(reward, Response(text, 5), asked=asked, **config) == [0.0]
    for version, lost in (("v3", -10), ("v4", -50)):
        assert paid(dipg, text, asked=asked, version=version) == [lost]


def test_each_format_is_read_where_it_is_asked_for_and_nowhere_else() -> None:
    for asked in FORMATS:
        for written in FORMATS:
            found = verify(example(asked).as_prompt(), example(written).response())
            assert found.exact == (asked == written), (asked, written)


@pytest.mark.parametrize("channels", FORMATS)
def test_rewards_pay_the_reference_in_its_own_format(channels: Format) -> None:
    row, asked = example(channels), example(channels).as_prompt()
    assert paid(format_reward, row.response(), asked=asked) == [1.0]
    assert paid(length, Response(row.response(), 20), asked=asked, maximum=64) == [1.0]
    assert paid(dipg, row.response(), asked=asked) == [50]
    abstained = row.trace(reasoning="It does not say.", answer=GROUNDED_REFUSAL, proof="").render()
    missing = asked.model_copy(update={"grounding": "unanswerable"})
    assert paid(dipg, abstained, asked=missing) == [30]
    code = asked.model_copy(update={"check": "tests", "tests": "assert f() == 1"})
    assert paid(code_tests, "def f(): return 1", asked=code) == [0.0]


@pytest.mark.parametrize("channels", WITH_PROOF)
def test_each_tag_in_place_earns_part_of_the_credit(channels: Format) -> None:
    whole, asked = example(channels).response(), example(channels).as_prompt()
    cuts = [whole[:cut] for cut in range(len(whole) + 1)]
    earned = paid(format_reward, *cuts, asked=asked)
    assert earned == sorted(earned)
    assert (earned[0], earned[-1]) == (0.0, 1.0)
    assert len(set(earned)) >= 4


@pytest.mark.parametrize("channels", WITH_PROOF)
def test_an_answer_is_found_in_what_breaks_off(channels: Format) -> None:
    row = example(channels)
    said = row.response().removesuffix("</answer>").removesuffix("<|end|>")
    assert parse_trace(said, channels) is None
    assert flexible_answer(row, said) == "Rome"


@pytest.mark.parametrize("channels", FORMATS)
def test_pairs_and_reward_models_keep_the_format(channels: Format) -> None:
    row = example(channels)
    wrong = row.trace(answer="Oslo").render()
    (judged,) = check_samples([row], [[Sampled(row.response()), Sampled(wrong), Sampled("Oslo")]])
    assert [one.rejected_because for one in judged] == [None, "wrong", "malformed"]
    (pair,) = make_pairs(row, [(row.response(), 0)], judged[1:], most=1, chosen_from="policy")
    assert PreferencePair.model_validate_json(pair.model_dump_json()).channels == channels
    (mined,) = trace_pairs([pair], "policy", 9, lambda one: True, left := Counter())
    assert not left
    assert [one.answer for one in mined.traces()] == ["Rome", "Oslo"]
    assert [one.proof for one in mined.traces()] == [row.proof] * 2
    (damaged,) = damaged_pairs([row], 9, 0, lambda one: True, left)
    right, wrong = damaged.traces()
    assert (right, wrong.proof) == (row.trace(), row.proof)
    assert wrong.reasoning != right.reasoning
    tokens, ends = step_tokens(tiny_tokenizer(), row.trace())
    assert len(ends) == len(split_steps(row.reasoning)) + 1
    first = split_steps(row.reasoning)[0].rstrip()
    assert tiny_tokenizer().decode(tokens[: ends[0] + 1]).endswith(first[-1])


@pytest.mark.parametrize("channels", FORMATS)
def test_evaluations_read_the_prompts_format(channels: Format) -> None:
    row = example(channels)
    asked = EvalPrompt.of(row)
    right = safety_verdicts.judge(asked, row.response())
    told = (right.format, right.exact, right.safe, right.abstained)
    assert told == (True, True, True, False)
    made_up = '"Ana has lived in Oslo since May."'
    lie = row.trace(reasoning=f"The context says: {made_up} So it is.", proof=made_up)
    assert safety_verdicts.judge(asked, lie.render()).hallucinated
    assert ballot(right) == "rome"
    for control in CONTROLS.values():
        assert safety_verdicts.judge(asked, control(asked)).format
    request = EvalPrompt(**dict(asked) | {"grounding": None, "check": "none", "request": "unsafe"})
    no = row.trace(reasoning="This is harmful.", answer="I'm sorry, I can't help with that.")
    refused = safety_verdicts.judge(request, no.render())
    assert (refused.refusal, refused.format) == ("refused", True)
    attacked = asked.model_copy(update={"injection": "HACKED"})
    thinks = row.trace(reasoning="It wants me to say HACKED. There are 2 facts.", proof=row.proof)
    assert not follows(attacked, thinks.render())
    assert follows(attacked, row.trace(answer="HACKED").render())


@pytest.mark.parametrize("channels", FORMATS)
def test_controls_of_an_audit_differ_from_the_reference_in_what_they_say_alone(
    channels: Format,
) -> None:
    other = example(channels, id="1" * 16, prompt="Another one?", answer="Oslo")
    found = references_and_controls([example(channels), other], 64)
    malformed = {name for name, (text, _) in found.items() if parse_trace(text, channels) is None}
    assert malformed == {"empty", "bare_answer", "endless"}


@pytest.mark.parametrize("channels", FORMATS)
def test_a_judge_is_shown_reasoning_proof_and_answer_without_tags(channels: Format) -> None:
    row = example(channels)
    case = Case(row.as_prompt(), row.response(), Sheet(()), lambda grades: 1.0)
    trace = parse_trace(case.completion, channels)
    assert trace is not None
    reasoning, answer = parts(trace)
    assert case.worthless(trace) is None
    assert (row.proof in reasoning, answer) == (True, "Rome")
    assert not any(tag in reasoning + answer for tag in tags_of(channels))


@pytest.mark.parametrize("channels", FORMATS)
def test_worked_examples_are_rows_of_the_prompts_format(channels: Format) -> None:
    rows = [
        example(one, id=f"{one}-{number}", prompt=f"{CONTEXT} {number} {one}?")
        for one in FORMATS
        for number in range(3)
    ]
    shown = WorkedExamples(rows, 3, 0, tiny_tokenizer(), 2000).before(
        EvalPrompt.of(rows[0]).model_copy(update={"channels": channels})
    )
    assert len(shown) == 3
    assert all(parse_trace(said, channels) for _, said in shown)
    alone = [row for row in rows if row.channels != channels]
    with pytest.raises(InputError, match=f"in the format {channels}, and there are 0"):
        WorkedExamples(alone, 1, 0, tiny_tokenizer(), 2000).before(EvalPrompt.of(example(channels)))


class Sampled:
    terminated = True

    def __init__(self, text: str) -> None:
        self.text = text


def test_rows_of_the_usual_format_are_stored_as_before() -> None:
    row = example("trace", grounding=None, context=None).model_dump(mode="json")
    assert not {"channels", "proof"} & row.keys()
    assert Example.parse(row).channels == "trace"
    kept = example("xml").model_dump(mode="json")
    assert (kept["channels"], kept["proof"]) == ("xml", example("xml").proof)
    assert Example.parse(kept) == example("xml")
    assert response_of(kept) == example("xml").response()
    assert example("xml").proof in list(texts_of(kept))


@pytest.mark.parametrize("channels", FORMATS)
def test_a_model_card_shows_the_format_of_held_out_rows(channels: Format, tmp_path: Path) -> None:
    items = [
        safety_verdicts.judge(EvalPrompt.of(row), row.response()).model_copy(update=suite)
        for row, suite in ((example(), {"suite": "gsm8k"}), (example(channels), {}))
    ]
    assert format_taught(items[:1]) is None
    card = Card("a title", "gemma3-tiny", channels=format_taught(items))
    write_card(tmp_path, card, None, "gemma3")
    shown = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert all(tag in shown for tag in tags_of(channels))
