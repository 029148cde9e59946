"""What came back: an answer, or what is wrong with it.

A body is the JSON of a chat completion
(https://platform.openai.com/docs/api-reference/chat/object), with vLLM's `reasoning_content` (in
newer versions `reasoning`); or of a text completion that scores its prompt: its `logprobs`, as
JSON, are the text then. Whatever a server sends, `read` makes a `Content` of it and never raises.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from tasks.evaluation.refusals import declines

Problem = Literal["truncated", "refused", "empty", "malformed", "failed", "unasked"]
"""`truncated`: cut off at its bound of tokens. `refused`: the provider's filter or the model
declined. `empty`: no text. `malformed`: no chat completion. `failed`: no answer after all attempts,
or the endpoint rejects the request. `unasked`: the budget was spent."""

_LONGEST_REFUSAL, _AT_ONCE = 600, 200
"""Characters: who declines is brief, for a long text that begins so is an answer about declining;
and says so at once."""


@dataclass(frozen=True)
class Reply:
    """What became of a request.

    Attributes:
        text: the answer; empty where there is none.
        reasoning: what the model thought, where the server keeps that apart.
        problem: None for an answer that can be used.
        input_tokens, output_tokens, usd: of all attempts that were paid, or may have been
            (`tasks.chat.budget`). 0 for an answer in the store that somebody else paid; what this
            account paid before a kill it has paid.
        cached: the answer was in the store already.
        attempts: requests sent for it, by this process.
        detail: what went wrong, in words.
    """

    text: str
    reasoning: str | None = None
    finish_reason: str = ""
    problem: Problem | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    cached: bool = False
    attempts: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Content:
    """A body that was read: text, why it ended, its problem if any, and its usage in tokens (None:
    the server did not say)."""

    text: str = ""
    reasoning: str | None = None
    finish_reason: str = ""
    problem: Literal["truncated", "refused", "empty", "malformed"] | None = None
    detail: str = ""
    usage: tuple[int, int] | None = None


def read(body: bytes) -> tuple[Content, Any]:
    """Classify the body of an answer with status 200; also its JSON, None where it is none."""
    try:
        value = json.loads(body)
        return read_value(value), value
    except (ValueError, RecursionError) as error:
        start = body[:80].decode("utf-8", "replace")
        return (
            Content(problem="malformed", detail=f"the body is no JSON ({error}): {start!r}"),
            None,
        )


def read_value(value: Any) -> Content:
    """`read` of JSON that was parsed already."""
    usage = _usage(value)
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Content(
            problem="malformed", detail=f"no choices in {json.dumps(value)[:120]}", usage=usage
        )
    choice = choices[0]
    message, finish = choice.get("message"), choice.get("finish_reason")
    finish = finish if isinstance(finish, str) else ""
    if message is None and isinstance(choice.get("logprobs"), dict):
        return Content(json.dumps(choice["logprobs"]), finish_reason=finish, usage=usage)
    if not isinstance(message, dict):
        # Gemini leaves the message out where its filter took the answer.
        if finish == "content_filter":
            return Content(
                finish_reason=finish,
                problem="refused",
                detail="the provider's content filter",
                usage=usage,
            )
        return Content(
            finish_reason=finish,
            problem="malformed",
            detail=f"no message in {json.dumps(choice)[:120]}",
            usage=usage,
        )
    text, refusal = message.get("content"), message.get("refusal")
    parts = [
        part
        for name in ("reasoning_content", "reasoning")
        if isinstance(part := message.get(name), str) and part
    ]
    reasoning = _sound(parts[0]) if parts else None
    if not isinstance(text, str | None):
        detail = f"the content is no text but {json.dumps(text)[:120]}"
        return Content(finish_reason=finish, problem="malformed", detail=detail, usage=usage)
    text = _sound(text or "")
    if isinstance(refusal, str) and refusal:
        return Content(
            text or _sound(refusal), reasoning, finish, "refused", _sound(refusal[:200]), usage
        )
    if finish == "content_filter":
        return Content(text, reasoning, finish, "refused", "the provider's content filter", usage)
    if finish == "length":
        return Content(
            text, reasoning, finish, "truncated", f"cut off after {len(text)} characters", usage
        )
    if not text.strip():
        return Content(
            "",
            reasoning,
            finish,
            "empty",
            "reasoning without an answer" if reasoning else "no text",
            usage,
        )
    if _declines(text):
        return Content(text, reasoning, finish, "refused", text.strip()[:200], usage)
    return Content(text, reasoning, finish, None, "", usage)


def _sound(text: str) -> str:
    """Text that can be written as UTF-8: JSON may hold halves of characters."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _declines(text: str) -> bool:
    stripped = text.strip()
    if len(stripped) > _LONGEST_REFUSAL or "<answer>" in stripped:
        return False
    return declines(stripped[:_AT_ONCE])


def _usage(value: Any) -> tuple[int, int] | None:
    """Input and output tokens, if both are whole numbers."""
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    known = tuple(
        count
        for count in counts
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0
    )
    return (known[0], known[1]) if len(known) == 2 else None
