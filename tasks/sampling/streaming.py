"""Streams a greedy answer while it decodes: one slot of `tasks.sampling.slot_programs`, a few
tokens at a time.

Questions of similar length share a compiled prefill, and the cache is only as wide as the context
has become; the persistent compilation cache gives both programs to the next process.
"""

from collections.abc import Iterable, Iterator

from tasks.data.tokens import Tokenizer, Turns, prompt_tokens
from tasks.models.loading import LoadedModel
from tasks.sampling.detokenizer import Detokenizer
from tasks.sampling.slot_programs import Device, SlotPrograms

CHUNK = 4
"""Tokens to decode and to return at a time: fewer cost a dispatch each, more let a reader wait."""

ROOM = 2048
"""Tokens for a prompt. A longer one gets room up to the next power of two."""


class Streamer:
    """Decodes greedily, one prompt at a time."""

    def __init__(self, loaded: LoadedModel, *, response_length: int):
        """Args: response_length: the most tokens of an answer."""
        self.loaded, self.response_length = loaded, response_length
        self._programs: dict[int, SlotPrograms] = {}

    @property
    def compiles(self) -> int:
        """Shapes that were compiled so far."""
        return sum(len(programs.wanted) for programs in self._programs.values())

    def tokens(self, prompt: str, turns: Turns = ()) -> Iterator[int]:
        """The answer's ids, including the terminator if there is one; at most `response_length`.
        `turns`: the conversation before it."""
        tokenizer = self.loaded.tokenizer
        context = prompt_tokens(tokenizer, prompt, turns)
        programs = self._programs_for(len(context))
        device = Device(programs)
        device.admit([context], {name: [0] for name in programs.GIVEN}, [0])
        told = 0
        while True:
            drawn = device.decode(len(context) + max(told, 1) - 1)["token"][0]
            for number in drawn[1 if told else 0 :].tolist():
                told += 1
                yield number
                if number in tokenizer.stop_ids or told == self.response_length:
                    return

    def _programs_for(self, length: int) -> SlotPrograms:
        """The programs with room for so long a prompt."""
        room = max(ROOM, 1 << (length - 1).bit_length())
        if room not in self._programs:
            self._programs[room] = SlotPrograms(
                self.loaded,
                batch_size=1,
                prompt_length=room,
                response_length=self.response_length,
                chunk=CHUNK,
            )
        return self._programs[room]


def pieces(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens as they arrive. Joined, the pieces are `tokenizer.decode(tokens)`; a
    character of several tokens comes whole."""
    detokenizer = Detokenizer(tokenizer, (), by_token=False)
    yield from filter(None, (detokenizer.add([token], last=False) for token in tokens))
    if rest := detokenizer.add([], last=True):
        yield rest
