"""The reply to a request: an answer, or its problem.

A body is the JSON of a chat completion
(https://platform.openai.com/docs/api-reference/chat/object), with the model's thoughts where a
server puts them: in vLLM's `reasoning_content` (in newer versions `reasoning`), in Mistral's list
of chunks, or before `</think>` in the text, if no parser took them out. Or it is that of a text
completion that scores its prompt: its `logprobs`, as JSON, are the text then. `read` makes a
`Content` of whatever a server sends, and never raises.
"""

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tasks.evaluation.refusals import declines

Problem = Literal["truncated", "refused", "empty", "malformed", "failed", "unasked"]
"""`truncated`: cut off at its bound of tokens. `refused`: the provider's filter or the model
declined. `empty`: no text. `malformed`: no chat completion. `failed`: no answer after all attempts,
or the endpoint rejects the request. `unasked`: the budget was spent."""

_FILTERED = "the provider's content filter"
_LONGEST_REFUSAL, _AT_ONCE = 600, 200
"""Characters: a refusal is brief, since a long text that begins so is an answer about declining,
and it comes at once."""

_THOUGHTS = re.compile(r"\s*+(?:<think>|(?![<{\[`]))(.*?)</think>\s*(.*)", re.DOTALL)
"""Thoughts before an answer. Some chat templates end with `<think>`, so that a text begins without
it; one that begins with another tag, or with JSON, is an answer."""


@dataclass(frozen=True)
class Reply:
    """The result of a request.

    Attributes:
        text: the answer; empty without one.
        reasoning: the model's reasoning, if the server sends it separately.
        problem: None for a usable answer.
        input_tokens, output_tokens, usd: of all attempts that were paid, or may have been
            (`tasks.chat.budget`). 0 for a stored answer that another account paid; what this
            account paid before a kill counts.
        cached: the answer was in the store already.
        attempts: requests sent for it, by this process.
        detail: the problem in words.
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
    """A parsed body: text, why it ended, its problem if any, and its usage in tokens (None: not
    stated)."""

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
        detail = f"the body is no JSON ({error}): {body[:80].decode('utf-8', 'replace')!r}"
        return Content(problem="malformed", detail=detail), None


def read_value(value: Any) -> Content:
    """`read` of JSON that was parsed already."""
    usage = _usage(value)
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        detail = f"no choices in {json.dumps(value)[:120]}"
        return Content(problem="malformed", detail=detail, usage=usage)
    message, finish = choice.get("message"), choice.get("finish_reason")
    finish = finish if isinstance(finish, str) else ""
    content = partial(Content, finish_reason=finish, usage=usage)
    scored = choice.get("logprobs")
    completion = isinstance(scored, dict) or value.get("object") == "text_completion"
    if message is None and completion:
        return content(json.dumps(scored))
    if not isinstance(message, dict):
        # Gemini leaves the message out where its filter took the answer.
        if finish == "content_filter":
            return content(problem="refused", detail=_FILTERED)
        return content(problem="malformed", detail=f"no message in {json.dumps(choice)[:120]}")
    refusal = message.get("refusal")
    try:
        text, thoughts = map(_sound, _said(message.get("content")))
    except TypeError as error:
        return content(problem="malformed", detail=str(error))
    if finish == "error":
        return content(problem="malformed", detail=f"broken off: {json.dumps(choice)[:200]}")
    named = (message.get(name) for name in ("reasoning_content", "reasoning"))
    apart = (_sound(one) for one in named if isinstance(one, str) and one)
    reasoning = next(apart, thoughts) or None
    said = partial(content, text, reasoning)
    if isinstance(refusal, str) and refusal:
        refusal = _sound(refusal)
        return content(text or refusal, reasoning, problem="refused", detail=refusal[:200])
    if finish == "content_filter":
        return said(problem="refused", detail=_FILTERED)
    if finish == "length":
        return said(problem="truncated", detail=f"cut off after {len(text)} characters")
    if not text.strip():
        detail = "reasoning without an answer" if reasoning else "no text"
        return content("", reasoning, problem="empty", detail=detail)
    answer = text.strip()
    brief = len(answer) <= _LONGEST_REFUSAL and "<answer>" not in answer
    if brief and declines(answer[:_AT_ONCE]):
        return said(problem="refused", detail=answer[:200])
    return said()


def error_status(value: Any) -> int | None:
    """The status of an error that came with status 200, in place of an answer or in it, as
    OpenRouter hands on those of its providers; None: there is none."""
    match value:
        case {"error": {"code": int(code)}} | {"choices": [{"error": {"code": int(code)}}, *_]}:
            return code if code >= 400 else None
    return None


def _said(content: Any) -> tuple[str, str]:
    """Text and thoughts of a message's content. Raises TypeError: it is neither text nor a list of
    chunks of text and thinking."""
    if content is None or isinstance(content, str):
        found = _THOUGHTS.fullmatch(content or "")
        return (found[2], found[1].strip()) if found else (content or "", "")
    text = thoughts = ""
    for chunk in content if isinstance(content, list) else [None]:
        match chunk:
            case {"type": "text", "text": str(one)}:
                text += one
            case {"type": "thinking", "thinking": one}:
                thoughts += _said(one)[0]
            case _:
                raise TypeError(f"the content is no text but {json.dumps(content)[:120]}")
    return text, thoughts


def _sound(text: str) -> str:
    """Text that UTF-8 can encode: JSON may contain halves of characters."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _usage(value: Any) -> tuple[int, int] | None:
    """Input and output tokens, if both are whole numbers. Output is all that is not input: Gemini
    and xAI count thoughts, which they charge for, in `total_tokens` alone."""
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    inputs, outputs, total = (
        count if type(count := usage.get(name)) is int and count >= 0 else None for name in names
    )
    if inputs is None or outputs is None:
        return None
    return inputs, max(outputs, (total or 0) - inputs)
