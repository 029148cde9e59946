"""What an endpoint answers: the sampler's tokens, the model's log-probabilities, the same in pieces
as at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.data.tokens import prompt_tokens
from tasks.models.loading import LoadedModel
from tasks.sampling.sampler import Sampler
from tasks.sampling.slots import Request, SlotSampler
from tasks.sampling.streaming import Streamer
from tests.tasks.sampling import test_slots
from tests.tasks.serving.place import SHAPE, Place, place

ASKED = test_slots.PROMPTS
FEW = 8
"""Of them are asked where one answer after the other is waited for."""

loaded = test_slots.loaded


@pytest.fixture(scope="module")
def endpoint(loaded: LoadedModel) -> Iterator[Place]:
    with place(loaded) as found:
        yield found


@pytest.fixture(scope="module")
def greedy(loaded: LoadedModel) -> list[Any]:
    return Sampler(loaded, batch_size=len(ASKED), **SHAPE).generate(ASKED)


def test_greedy_answers_are_those_of_ask_and_of_evaluations(endpoint, loaded, greedy):
    greedy = greedy[:FEW]
    answers = [endpoint.chat(prompt, temperature=0) for prompt in ASKED[:FEW]]
    choices = [one["choices"][0] for one in answers]
    assert [one["message"]["content"] for one in choices] == [one.text for one in greedy]
    assert [one["finish_reason"] == "stop" for one in choices] == [one.terminated for one in greedy]
    assert {one["finish_reason"] for one in choices} == {"stop", "length"}
    counted = [one["usage"]["completion_tokens"] for one in answers]
    assert counted == [len(one.tokens) for one in greedy]
    streamer = Streamer(loaded, response_length=SHAPE["response_length"])
    told = loaded.tokenizer.decode(list(streamer.tokens(ASKED[0])))
    assert choices[0]["message"]["content"] == told


def test_no_answer_is_another_one_in_a_crowd(endpoint: Place, greedy: list[Any]) -> None:
    """64 clients at a time, streamed and not: also answers of the terminator alone, which are
    empty, and none but those."""

    def said(number: int) -> str:
        prompt, options = ASKED[number % len(ASKED)], {"temperature": 0}
        if number % 2:
            return str(endpoint.chat(prompt, **options)["choices"][0]["message"]["content"])
        messages = [{"role": "user", "content": prompt}]
        events = endpoint.stream("chat/completions", messages=messages, **options)
        return "".join(event["choices"][0]["delta"].get("content", "") for event in events)

    with ThreadPoolExecutor(64) as clients:
        found = list(clients.map(said, range(128)))
    assert found == [greedy[number % len(ASKED)].text for number in range(len(found))]


def test_a_seed_draws_what_evaluations_draw_and_choices_are_rows(endpoint, loaded):
    slots = SlotSampler(loaded, batch_size=8, **SHAPE, sampled=True)
    rows = [Request(ASKED[1], row, 7) for row in range(3)]
    theirs = [one.text for one in slots.generate(rows, temperature=0.9)]
    answer = endpoint.chat(ASKED[1], temperature=0.9, seed=7, n=3)
    assert [one["message"]["content"] for one in answer["choices"]] == theirs
    assert len(set(theirs)) > 1
    again = endpoint.chat(ASKED[1], temperature=0.9, seed=8)
    assert again["choices"][0]["message"]["content"] != theirs[0]


def test_a_small_nucleus_is_greedy_beside_rows_that_are_not(endpoint, greedy):
    narrow = endpoint.chat(ASKED[2], temperature=1.5, top_p=1e-6, seed=1)
    assert narrow["choices"][0]["message"]["content"] == greedy[2].text
    wide = endpoint.chat(ASKED[2], temperature=1.5, seed=1)
    assert wide["choices"][0]["message"]["content"] != greedy[2].text


def test_log_probabilities_are_the_models(endpoint, loaded, greedy):
    """Against one forward pass over prompt and answer, at temperature 1 whatever was asked for."""
    answer = endpoint.chat(ASKED[3], temperature=0, logprobs=True, top_logprobs=3)["choices"][0]
    told = answer["logprobs"]["content"]
    tokens = [one for one in greedy[3].tokens if one not in loaded.tokenizer.stop_ids]
    prompt = prompt_tokens(loaded.tokenizer, ASKED[3])
    text = jnp.asarray([[*prompt, *tokens]])
    hidden, _ = loaded.model(text, jnp.arange(text.shape[1])[None], jnp.ones_like(text))
    logps = np.asarray(jax.nn.log_softmax(loaded.model.unembed(hidden[0]), axis=-1))
    logps = logps[len(prompt) - 1 : -1]
    assert len(told) == len(tokens) > 2
    assert [one["token"] for one in told] == [loaded.tokenizer.decode([one]) for one in tokens]
    expected = [float(row[token]) for row, token in zip(logps, tokens, strict=True)]
    assert [one["logprob"] for one in told] == pytest.approx(expected, abs=1e-4)
    for one, row in zip(told, logps, strict=True):
        likely = [other["logprob"] for other in one["top_logprobs"]]
        assert likely == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=1e-4)
        assert likely[0] == one["logprob"]
    options = {"temperature": 0, "max_tokens": 12}
    chat = endpoint.chat(ASKED[3], **options, logprobs=True, top_logprobs=20)["choices"][0]
    plain = endpoint.ask("completions", prompt=prompt, **options, logprobs=20)["choices"][0]
    best = [
        {other["token"]: other["logprob"] for other in reversed(one["top_logprobs"])}
        for one in chat["logprobs"]["content"]
    ]
    assert plain["logprobs"]["top_logprobs"] == best
    assert min(map(len, best)) < 20  # parts of characters have one text


@pytest.mark.parametrize("kind", ["chat/completions", "completions"])
def test_pieces_joined_are_the_whole(endpoint: Place, kind: str) -> None:
    """Text, log-probabilities, finish reasons and usage, of two choices that stop at a text."""
    chat = kind.startswith("chat")
    free: dict[str, Any] = {"temperature": 1.0, "seed": 3, "n": 2, "max_tokens": 20}
    free |= {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    free |= {"messages": [{"role": "user", "content": ASKED[4]}]} if chat else {"prompt": ASKED[4]}
    unstopped = endpoint.ask(kind, **free)["choices"]
    texts = [one["message"]["content"] if chat else one["text"] for one in unstopped]
    stop = texts[0][len(texts[0]) // 2 :][:3]  # across tokens
    assert len(stop) == 3
    body = free | {"stop": [stop, "never said"]}
    whole = endpoint.ask(kind, **body)
    events = endpoint.stream(kind, **body, stream_options={"include_usage": True})
    assert events[-1]["usage"] == whole["usage"]
    assert {event["usage"] for event in events[:-1]} == {None}
    said, finish, told = ["", ""], [None, None], [[], []]  # type: ignore[var-annotated]
    for event in events[:-1]:
        (choice,) = event["choices"]
        index = choice["index"]
        said[index] += choice["delta"].get("content", "") if chat else choice["text"]
        finish[index] = choice["finish_reason"] or finish[index]
        if choice["logprobs"]:
            told[index] += choice["logprobs"]["content" if chat else "token_logprobs"]
    for index, choice in enumerate(whole["choices"]):
        assert said[index] == (choice["message"]["content"] if chat else choice["text"])
        assert finish[index] == choice["finish_reason"]
        assert told[index] == choice["logprobs"]["content" if chat else "token_logprobs"]
    assert said[0] == texts[0][: texts[0].index(stop)]
    assert finish[0] == "stop"
    assert len(events) > 4


def test_text_is_continued_in_no_template_and_token_ids_are_taken_as_they_are(endpoint, loaded):
    """The ids of a chat's prompt give the chat's answer; several prompts give several choices."""
    ids = prompt_tokens(loaded.tokenizer, ASKED[5])
    options = {"temperature": 0, "max_tokens": 12}
    chat = endpoint.chat(ASKED[5], **options)["choices"][0]["message"]["content"]
    answered = endpoint.ask("completions", prompt=[ids, ids], **options)["choices"]
    assert [(one["index"], one["text"]) for one in answered] == [(0, chat), (1, chat)]
    pad, size = loaded.tokenizer.pad_id, len(loaded.tokenizer)
    for none in ([], [*ids, pad], [-1], [size]):  # padding would be left out without a word
        refused = endpoint.post("completions", prompt=[ids, none], **options)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
    plain = endpoint.ask("completions", prompt=["seven"], **options)["choices"][0]["text"]
    own = [loaded.tokenizer.bos_id, *loaded.tokenizer.encode("seven")]
    assert plain == endpoint.ask("completions", prompt=own, **options)["choices"][0]["text"]


def test_what_was_said_before_and_by_the_system_is_in_the_prompt(endpoint, loaded):
    messages = [
        {"role": "system", "content": "sort"},
        {"role": "user", "content": [{"type": "text", "text": "red"}]},
        {"role": "assistant", "content": "blue"},
        {"role": "user", "content": "name?"},
    ]
    options = {"temperature": 0, "max_tokens": 8}
    ids = prompt_tokens(loaded.tokenizer, "name?", (("sort\n\nred", "blue"),))
    chat = endpoint.ask("chat/completions", messages=messages, **options)
    plain = endpoint.ask("completions", prompt=ids, **options)
    assert chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
    assert chat["usage"] == plain["usage"]
