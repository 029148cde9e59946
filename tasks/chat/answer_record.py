"""What is kept of a request in the store: the newest paid body, and what all of them cost.

A body that may be asked for again (an empty one, a truncated one) is kept before that happens, so
that not even these are paid twice by a run that is killed in between.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tasks.chat.budget import Cost, Prices
from tasks.chat.reply import Content, Reply, read_value
from tasks.chat.request import ChatRequest
from tasks.chat.transport import Failure

EMPTY_TRIES = 3
"""How often a question is paid for, at most, when there is no text in the answers."""


@dataclass(frozen=True)
class Record:
    """The kept answer to a request.

    Attributes:
        body: JSON as the server sent it.
        asked: how many bodies were paid for, this the last.
        max_tokens: the bound of this one's response.
        cost: of all attempts.
        account: who paid.
    """

    body: Any
    asked: int
    max_tokens: int | None
    cost: Cost
    account: str

    @cached_property
    def content(self) -> Content:
        return read_value(self.body)

    def to_bytes(self) -> bytes:
        cost = [self.cost.input_tokens, self.cost.output_tokens, self.cost.usd]
        value = {
            "asked": self.asked,
            "max_tokens": self.max_tokens,
            "cost": cost,
            "account": self.account,
            "body": self.body,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Record":
        """Raises ValueError, KeyError or TypeError for what `to_bytes` did not write."""
        value = json.loads(raw)
        return cls(
            value["body"],
            value["asked"],
            value["max_tokens"],
            Cost(*value["cost"]),
            value["account"],
        )

    def is_final(self, request: ChatRequest, longer: bool) -> bool:
        """Whether the question should not be paid for again. `longer`: a truncated answer may be,
        once, with twice the bound."""
        if self.content.problem == "empty":
            return self.asked >= EMPTY_TRIES
        return not (
            self.content.problem == "truncated"
            and longer
            and self.max_tokens == request.max_tokens is not None
        )

    def next_bound(self, request: ChatRequest) -> int | None:
        """The bound of the next response, in tokens."""
        return (
            2 * self.max_tokens
            if self.content.problem == "truncated" and self.max_tokens is not None
            else self.max_tokens
        )

    def reply(self, account: str | None, *, cached: bool, attempts: int = 0) -> Reply:
        """What the asker gets; it costs nothing if `account` is not the one that paid."""
        content, cost = self.content, self.cost if self.account == account else Cost()
        return Reply(
            text=content.text,
            reasoning=content.reasoning,
            finish_reason=content.finish_reason,
            problem=content.problem,
            input_tokens=cost.input_tokens,
            output_tokens=cost.output_tokens,
            usd=cost.usd,
            cached=cached,
            attempts=attempts,
            detail=content.detail,
        )


def cost_of(content: Content, request: ChatRequest, max_tokens: int | None, prices: Prices) -> Cost:
    """What one body cost; where it does not say, a byte of text counts as a token."""
    if content.usage is not None:
        inputs, outputs = content.usage
    else:
        text = len(f"{content.text}{content.reasoning or ''}".encode())
        inputs, outputs = (
            request.most_input_tokens,
            text if max_tokens is None else min(text, max_tokens),
        )
    return Cost(inputs, outputs, prices.usd(inputs, outputs))


def lost(
    failure: Failure,
    record: Record | None,
    doubtful: Cost,
    attempts: int,
    account: str,
    why: str = "",
) -> Reply:
    """What the asker gets after so many attempts, this the last. `doubtful`: what was not answered
    and may have been billed."""
    cost = doubtful + (record.cost if record and record.account == account else Cost())
    return Reply(
        text="",
        problem="malformed" if failure.kind == "malformed" else "failed",
        input_tokens=cost.input_tokens,
        output_tokens=cost.output_tokens,
        usd=cost.usd,
        attempts=attempts,
        detail=f"{failure.detail}{why}",
    )
