"""The text of an answer while its tokens arrive."""

from collections.abc import Sequence

from tasks.data.tokens import Tokenizer

_INCOMPLETE = "\ufffd"
"""Bytes that end within a character decode to this."""


class Detokenizer:
    """Turns tokens into text for a client: whole characters, without control tokens, up to
    the first stop sequence. It holds back what may be the beginning of a stop sequence.

    Attributes:
        text: what it has returned so far.
        stopped: whether a stop sequence came.
        starts: where in the text each token begins; only with `by_token`, which takes longer.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], *, by_token: bool) -> None:
        self._tokenizer, self._stop, self._by_token = tokenizer, stop, by_token
        self._tokens: list[int] = []
        self.starts: list[int] = []
        self.text, self.stopped = "", False

    @property
    def told(self) -> int:
        """How many tokens begin in `text`."""
        return sum(start < len(self.text) for start in self.starts)

    def add(self, tokens: Sequence[int], last: bool) -> str:
        """Take tokens and return the text that they complete. `last`: no more will come."""
        for token in tokens:
            if self._by_token:
                known = self._tokenizer.decode(self._tokens).rstrip(_INCOMPLETE)
                self.starts.append(len(known))
            self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        found = [place for one in self._stop if (place := text.find(one)) >= 0]
        if found:
            text, self.stopped = text[: min(found)], True
        elif not last:
            text = text.rstrip(_INCOMPLETE)
            text = text[: len(text) - self._unsure(text)]
        new = text[len(self.text) :]
        self.text += new
        return new

    def _unsure(self, text: str) -> int:
        """How many characters at the end a stop sequence may begin with."""
        beginnings = [one[:length] for one in self._stop for length in range(1, len(one))]
        return max((len(one) for one in beginnings if text.endswith(one)), default=0)
