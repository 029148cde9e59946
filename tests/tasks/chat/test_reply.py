"""What the chat engine makes of the text that comes back."""

import json
from pathlib import Path

import pytest

from tasks.chat.provider import endpoint_of
from tasks.chat.reply import read
from tests.fakes.chat_fixtures import PRICES, ask, message
from tests.fakes.chat_server import ChatServer, Fault

REFUSALS = [
    "I'm sorry, but I can't help with that.",
    "I’m sorry, I cannot assist with this request.",
    "Sorry, I can't comply.",
    "As an AI language model, I cannot provide that.",
    "I cannot help with that.",
    "Unfortunately, I am unable to provide this information.",
]
NO_REFUSALS = [
    "Context does not contain this information",
    "<reasoning>I can't help noticing that 2 + 2 = 4.</reasoning>\n<answer>4</answer>",
    "I can't help but notice " + "a long answer follows. " * 40,
    "Sorry is the hardest word.",
    "42",
]


@pytest.mark.parametrize("text", [*REFUSALS, *NO_REFUSALS])
def test_refusals_in_words_are_told_from_answers(text: str) -> None:
    body = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    content, _ = read(json.dumps(body).encode())
    assert content.problem == ("refused" if text in REFUSALS else None)


def test_an_answer_that_speaks_of_secrets_is_left_as_it_is(tmp_path: Path) -> None:
    """Where there is no key nothing is hidden: code that assigns an api_key, and the word `none`,
    which stands for no key."""
    text = 'none: client = Client(api_key="sk-0123456789abcdef", token="abcdefghijk")'
    local = endpoint_of("local", {"LOCAL_BASE_URL": "http://x/v1"})
    assert local.hide(text.encode()) == text.encode()
    with ChatServer(reply=lambda body: text) as server:
        assert ask(server.url, tmp_path)[0].text == text


def test_halves_of_characters_do_not_break_files(tmp_path: Path) -> None:
    halves = {"content": "a \ud83d lone half", "reasoning": "\udc00"}
    with ChatServer(lambda request: message(**halves)) as server:
        (reply,) = ask(server.url, tmp_path)
    assert reply.text.encode().decode() == reply.text
    assert reply.text.startswith("a ")
    assert (reply.reasoning or "").encode()


_CHUNKS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "2 and 2 "}]},
    {"type": "text", "text": "4"},
    {"type": "thinking", "thinking": [{"type": "text", "text": "make 4."}]},
]


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ("<think>\n2 and 2 make 4.\n</think>\n\n4", "4", "2 and 2 make 4."),
        ("2 and 2 make 4.\n</think>\n\n4", "4", "2 and 2 make 4."),
        (_CHUNKS, "4", "2 and 2 make 4."),
        ({"content": "4", "reasoning_content": "2 and 2 make 4."}, "4", "2 and 2 make 4."),
        ({"content": "4", "reasoning": "2 and 2 make 4."}, "4", "2 and 2 make 4."),
        ('{"reason": "it says </think>"}', '{"reason": "it says </think>"}', None),
        ("```\n</think>\n```", "```\n</think>\n```", None),
        ("<answer></think></answer>", "<answer></think></answer>", None),
        ("<think>never ends", "<think>never ends", None),
    ],
)
def test_thoughts_before_an_answer_are_no_part_of_it(content, text, reasoning):
    """As DeepSeek's and Qwen's models write them behind a server without a parser for them, the
    second with a chat template that ends with `<think>`; as Mistral's do; and as vLLM has them
    apart."""
    said = content if isinstance(content, dict) else {"content": content}
    body = {"choices": [{"message": said, "finish_reason": "stop"}]}
    found, _ = read(json.dumps(body).encode())
    assert (found.text, found.reasoning, found.problem) == (text, reasoning, None)


def test_thoughts_that_only_the_total_counts_are_paid(tmp_path: Path) -> None:
    """Gemini's and xAI's `completion_tokens` are those of the answer alone: 12 of 112 here."""
    usage = {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 132}
    counted = Fault("change", change=lambda body: body.update(usage=usage))
    with ChatServer(lambda request: counted) as server:
        (reply,) = ask(server.url, tmp_path)
    assert (reply.input_tokens, reply.output_tokens) == (20, 112)
    assert reply.usd == PRICES.usd(20, 112)
