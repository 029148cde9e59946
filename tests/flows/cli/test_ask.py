"""`lyceum ask`: a run's model answers, word by word as it decodes, and stops when it is told to."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import pytest
from jax.errors import JaxRuntimeError

from flows.cli.ask import Conversation, _questions, answer, dialogue
from infra.store.store import Store
from infra.visible import plain
from schemas.base import InputError
from schemas.recipe import StageSpec
from schemas.reports import RunRecord
from tasks.devices.hosts import make_mesh
from tasks.models.decoder import SIZES
from tasks.models.loading import LoadedModel, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise
from tasks.sampling.sampler import Sampler
from tasks.sampling.slots import Request, SlotSampler
from tests.flows.runs.synthetic_run import write_run

QUESTION = "Which day comes after Monday?"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunRecord, LoadedModel]:
    """A run whose trained stages have models of their own: the store, its record, and the model of
    the last."""
    config, made = replace(SIZES["gemma3-tiny"], num_layers=1), list[LoadedModel]()

    def trained(stage: StageSpec, out: Path) -> None:
        seed = len(made)
        model = initialise(config, seed)
        model.final_norm.set_value(3 * jax.random.normal(jax.random.key(seed), (config.embed_dim,)))
        made.append(LoadedModel("gemma3-tiny", config, model, tiny_tokenizer(), make_mesh()))
        save_model(made[-1], out)

    store, record = write_run(tmp_path_factory.mktemp("ask") / "store", trained=trained)
    return store, record, made[-1]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("flows.cli.ask.RESPONSE_LENGTH", 40)
    return 40


def test_the_answer_is_the_samplers_and_comes_in_pieces(run, short):
    store, record, loaded = run
    told: list[str] = []
    value = answer(store, record, QUESTION, None, told.append)
    sampler = Sampler(loaded, batch_size=1, prompt_length=64, response_length=short)
    [expected] = sampler.generate([QUESTION])
    assert (value["stage"], value["completion"]) == ("grpo", expected.text)
    assert (value["terminated"], value["stopped"]) == (False, False)
    assert "".join(told) == expected.text
    assert len(told) > short // 4
    assert answer(store, record, QUESTION, "sft")["completion"] != expected.text


@pytest.mark.usefixtures("short")
def test_what_is_printed(run, lyceum):
    """The same answer as text, and as one JSON object."""
    arguments = ["ask", "demo-1", QUESTION, "--store", run[0].uri]
    completion = lyceum(*arguments, "--json").json["completion"]
    assert lyceum(*arguments).out == plain(completion) + "\n"


@pytest.mark.usefixtures("short")
def test_whoever_stops_it_keeps_what_was_said(run, capsys):
    store, record, _ = run
    whole: list[str] = []
    answer(store, record, QUESTION, None, whole.append)
    told: list[str] = []

    def tell(piece: str) -> None:
        told.append(piece)
        if len(told) == 4:
            raise KeyboardInterrupt

    value = answer(store, record, QUESTION, None, tell)
    assert told == whole[:4]
    assert value["stopped"]
    assert value["completion"].startswith("".join(told))
    assert not value["terminated"]


def test_a_question_longer_than_the_model_was_made_for_is_refused(run, lyceum):
    """Its memory would not do, or its answer would be noise."""
    asked = lyceum("ask", "demo-1", "--store", run[0].uri, "why " * 40_000, code=2).err
    assert "tokens, and the model was made for texts of at most 32768; ask less" in asked


def test_what_jax_has_not_and_too_little_memory_are_told(run, lyceum, monkeypatch):
    asking = ["ask", "demo-1", QUESTION, "--store", run[0].uri]
    full = JaxRuntimeError("Out of memory allocating 549891639360 bytes.")
    monkeypatch.setattr("tasks.sampling.streaming.Streamer.tokens", Mock(side_effect=full))
    assert "the model cannot answer: Out of memory allocating" in lyceum(*asking, code=1).err
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", Mock(side_effect=AssertionError))
    said = "JAX_PLATFORMS=cuda: JAX cannot use that here (it finds none); set it to cpu."
    assert said in lyceum(*asking, code=2).err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_dialogue_shows_the_model_what_was_said_before(run, short, monkeypatch):
    """Each line of a pipe is a question; the second answer is the sampler's behind the first turn,
    and not the one that it gives to the question alone."""
    store, record, loaded = run
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n\n  And then? \n"))
    told: list[str] = []
    value = dialogue(store, record, None, told.append)
    first, second = value["answers"]
    asked = (value["stage"], first["question"], second["question"])
    assert asked == ("grpo", QUESTION, "And then?")
    slots = SlotSampler(loaded, batch_size=2, prompt_length=256, response_length=short)
    turns = ((QUESTION, first["completion"]),)
    behind, alone = slots.generate([Request("And then?", 0, turns=turns), Request("And then?", 0)])
    assert second["completion"] == behind.text != alone.text
    assert "".join(told) == f"{first['completion']}\n{second['completion']}\n"


@pytest.mark.usefixtures("short")
def test_a_dialogue_at_a_terminal_ends_at_its_end_and_an_answer_at_ctrl_c(run, monkeypatch, lyceum):
    """Ctrl-C at the prompt forgets the line, in an answer ends the answer; Ctrl-D ends the
    dialogue, with exit code 0."""
    typed: list[str | type[BaseException]] = [KeyboardInterrupt, "caf\udce9", QUESTION, "Go on."]
    typed += [EOFError]

    def typing(prompt: str) -> str:
        assert prompt == "> "
        line = typed.pop(0)
        if isinstance(line, str):
            return line
        raise line

    ask, stopped = Conversation.ask, []

    def interrupted(self: Conversation, question: str, tell: Any) -> dict[str, Any]:
        pieces: list[str] = []

        def until(piece: str) -> None:
            tell(piece)
            pieces.append(piece)
            if question == QUESTION and len(pieces) == 3:
                raise KeyboardInterrupt

        value = ask(self, question, until)
        stopped.append((value["stopped"], self.turns[-1] == (question, value["completion"])))
        return value

    monkeypatch.setattr(Conversation, "ask", interrupted)
    monkeypatch.setattr("builtins.input", typing)
    monkeypatch.setattr("sys.stdin", _Terminal())
    said = lyceum("ask", "demo-1", "--store", run[0].uri).err
    assert "Ctrl-D the dialogue" in said
    assert said.endswith("That is not valid UTF-8 text; type it again.\n")
    assert stopped == [(True, True), (False, True)]
    assert typed == []


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_pipe_that_holds_no_text_is_refused_after_what_it_asked(monkeypatch, errors):
    """As locales differ in what standard input does with such a byte."""
    piped = io.TextIOWrapper(
        io.BytesIO(b"\xef\xbb\xbfone?\r\n" * 4096 + b"caf\xe9?\n"), "utf-8", errors
    )
    monkeypatch.setattr(sys, "stdin", piped)
    questions = _questions(people=False)
    assert next(questions) == "one?"
    with pytest.raises(InputError, match="not valid UTF-8 text"):
        list(questions)


@pytest.mark.usefixtures("short")
def test_a_dialogue_is_one_json_object_and_nothing_asked_is_refused(run, monkeypatch, lyceum):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\nHo\n"))
    value = lyceum("ask", "demo-1", "--store", run[0].uri, "--json").json
    assert [one["question"] for one in value["answers"]] == ["Hi", "Ho"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(InputError, match="nothing was asked"):
        dialogue(run[0], run[1], None, sys.stdout.write)
    monkeypatch.setattr("sys.stdin", None)  # as `<&-` leaves it
    assert "nothing was asked" in lyceum("ask", "demo-1", "--store", run[0].uri, code=2).err
