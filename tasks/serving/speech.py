"""The text of an answer while its tokens come."""

from collections.abc import Sequence

from tasks.data.tokens import Tokenizer

_INCOMPLETE = "\ufffd"
"""What bytes that are no whole character decode to."""


class Speech:
    """Text that may be told: whole characters, no control tokens, nothing from the first stop
    sequence on. What may be the beginning of a stop sequence is held back.

    Attributes:
        text: what was told.
        stopped: a stop sequence came.
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

    def hear(self, tokens: Sequence[int], last: bool) -> str:
        """The next tokens; returns the text that may be told now. `last`: no more will come."""
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
