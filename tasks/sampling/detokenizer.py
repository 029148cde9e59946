"""The text of an answer while its tokens arrive."""

from collections.abc import Sequence

from tasks.data.tokens import Tokenizer

_INCOMPLETE = "\ufffd"
"""Bytes that end within a character decode to this."""


class Detokenizer:
    """Turns tokens into text for a client: whole characters, without control tokens, up to
    the first stop sequence. It holds back what may be the beginning of a stop sequence.

    Attributes:
        tokens: those it took, up to the one that completes a stop sequence.
        text: what it has returned so far.
        stopped: whether a stop sequence came.
        starts: where in the text each token begins; only with `by_token`, which takes longer.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], *, by_token: bool) -> None:
        self._tokenizer, self._stop, self._by_token = tokenizer, stop, by_token
        self.tokens: list[int] = []
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
                known = self._tokenizer.decode(self.tokens).rstrip(_INCOMPLETE)
                self.starts.append(len(known))
            self.tokens.append(token)
        text = self._tokenizer.decode(self.tokens)
        if self._places(text):
            while self._places(shorter := self._tokenizer.decode(self.tokens[:-1])):
                self.tokens.pop()
                text = shorter
            text, self.stopped = text[: min(self._places(text))], True
        elif not last:
            text = text.rstrip(_INCOMPLETE)
            text = text[: len(text) - self._unsure(text)]
        new = text[len(self.text) :]
        self.text += new
        return new

    def _places(self, text: str) -> list[int]:
        """Where stop sequences begin in the text."""
        return [place for one in self._stop if (place := text.find(one)) >= 0]

    def _unsure(self, text: str) -> int:
        """How many characters at the end a stop sequence may begin with."""
        beginnings = [one[:length] for one in self._stop for length in range(1, len(one))]
        return max((len(one) for one in beginnings if text.endswith(one)), default=0)
