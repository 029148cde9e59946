"""A Gemma in this process judges: probabilities of single tokens after a question, one program for
all."""

from pathlib import Path

import jax
import numpy as np
import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError, StageFailed
from tasks.contract.reward import Resources
from tasks.data.tokens import prompt_tokens
from tasks.devices.hosts import make_mesh
from tasks.judging.gemma_judge import MOST_CHOICES, GemmaJudge
from tasks.judging.judge import GemmaJudgeConfig, Question, Ruling
from tasks.judging.open_judge import judge_programs, open_judge
from tasks.models.decoder import SIZES
from tasks.models.loading import base_model
from tasks.planning.programs import abstract_model

DIGITS = tuple("0123456789")
CONFIG = {"name": "gemma", "model": "gemma3-tiny", "prompt_length": 24, "batch_size": 4}


pytestmark = pytest.mark.usefixtures("one_layer")


def judge(store: Path, **changes: object) -> GemmaJudge:
    config = GemmaJudgeConfig.parse({**CONFIG, **changes})
    opened = open_judge(config, Resources({}, Answers(open_store(store))))
    assert isinstance(opened, GemmaJudge)
    return opened


def probabilities(ruling: Ruling) -> np.ndarray:
    assert ruling.problem is None
    assert ruling.probabilities is not None
    return np.array(ruling.probabilities)


def test_a_ruling_is_the_probability_of_each_choice_as_the_next_token(tmp_path: Path) -> None:
    """Against a plain forward pass of one row without padding; with different choices in one batch,
    and more questions than fit one. (A second compilation would fail the stage.)"""
    one = judge(tmp_path)
    choices = ("1", "0"), DIGITS
    asked = [Question(f"How good is {i}?", choices[i % 2]) for i in range(6)]
    rulings = one.ask(asked)
    loaded = base_model("gemma3-tiny", 0)
    for ruling, each in zip(rulings, asked, strict=True):
        tokens = np.array([prompt_tokens(loaded.tokenizer, each.text)])
        hidden, _ = loaded.model(tokens, np.arange(tokens.shape[1])[None], np.ones_like(tokens))
        expected = np.asarray(jax.nn.softmax(loaded.model.unembed(hidden[0, -1])))
        ids = [loaded.tokenizer.encode(choice)[0] for choice in each.choices]
        np.testing.assert_allclose(probabilities(ruling), expected[ids], rtol=1e-4)


def test_a_question_is_answered_once_and_the_answer_does_not_depend_on_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = judge(tmp_path / "one").ask([Question(text, DIGITS) for text in "abac"])
    assert first[0].digest == first[2].digest != first[1].digest
    one = judge(tmp_path / "one")
    monkeypatch.setattr(one.rater, "rate", None)  # nothing is left to compute
    assert [
        ruling.cached for ruling in one.ask([Question("c", DIGITS), Question("a", DIGITS)])
    ] == [True, True]
    assert one.values() == {"asked": 2.0, "cached": 2.0, "abstained": 0.0, "usd": 0.0}
    alone = judge(tmp_path / "two").ask([Question("c", DIGITS)])
    assert alone[0].probabilities == first[3].probabilities
    assert alone[0].digest == first[3].digest
    other = judge(tmp_path / "one", prompt_length=32)
    others = other.ask([Question("a", DIGITS), Question("a", ("1", "0"))])
    assert len({first[0].digest, *(ruling.digest for ruling in others)}) == 3


def test_a_question_that_does_not_fit_abstains_and_too_many_end_the_stage(tmp_path: Path) -> None:
    asked = [Question("short", DIGITS), Question("word " * 30, DIGITS)]
    first, second = judge(tmp_path, max_abstained=0.5).ask(asked)
    assert (first.problem, "more than prompt_length = 24" in second.problem) == (None, True)
    with pytest.raises(StageFailed, match=r"on 1 of 2 questions.*prompt_length = 24"):
        judge(tmp_path).ask(asked)


def test_choices_that_are_not_single_tokens_are_refused(tmp_path: Path) -> None:
    too_many = tuple(map(chr, range(97, 97 + MOST_CHOICES + 1)))
    for choices, words in (
        (("10", "9"), "'10' is 2 tokens"),
        ((), "1 to 16 different choices"),
        (("1", "1"), "different choices"),
        (too_many, "1 to 16"),
    ):
        with pytest.raises(InputError, match=words):
            judge(tmp_path).ask([Question("x", choices)])


def test_plan_compiles_the_program_that_judges(tmp_path: Path) -> None:
    one = judge(tmp_path)
    # the policy's; the judge is another
    model = abstract_model("gemma3-270m-it", SIZES["gemma3-270m-it"], make_mesh())
    (program,) = judge_programs(GemmaJudgeConfig.parse(CONFIG), model, questions=10)
    assert (program.name, program.calls) == ("judge", 2.5)
    own = one.rater.program(2.5)
    with jax.set_mesh(one.rater.loaded.mesh):
        texts = {each.function.lower(*each.args).as_text() for each in (program, own)}
    assert len(texts) == 1
