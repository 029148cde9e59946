r"""The only path from text to tokens, in Gemma's chat template. Training, sampling and evaluation
all use these functions.

<bos><start_of_turn>user\n{prompt}<end_of_turn>\n<start_of_turn>model\n{response}<end_of_turn>

Turns before a prompt, such as worked examples, follow `<bos>`, each with a line feed after it.

The terminator `<end_of_turn>` is part of the response, so the loss mask always covers it: a model
that is not taught to stop does not stop. Control tokens spelled out in a prompt are encoded as
plain characters: outside text cannot end a turn or begin another.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import sentencepiece

from tasks.data.control_tokens import CONTROL_TOKENS

_CONTROL = re.compile(f"(?<=<)(?={'|'.join(token[1:] for token in CONTROL_TOKENS)})")


Turns = tuple[tuple[str, str], ...]
"""Turns of a chat, each what the user said and what the model answered."""


class TooLong(ValueError):
    """A prompt or response has more tokens than the fixed shape it must fit."""


class Tokenizer:
    """A SentencePiece model with Gemma's control tokens.

    Attributes:
        pad_id, bos_id, start_of_turn_id: of control tokens, all of which are in `control_ids`.
        end_of_turn_id: the terminator, which ends the model's turn.
        stop_ids: what ends a sampled response: the terminator, or `<eos>`, with which a pretrained
            model without turns stops. Exported models stop at the same.
    """

    def __init__(self, model_proto: bytes):
        """Args: model_proto: the serialised SentencePiece model. Raises ValueError when a control
        token is missing."""
        self.model_proto = model_proto
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model_proto)
        ids = {token: self._processor.piece_to_id(token) for token in CONTROL_TOKENS}
        missing = [token for token in ids if self._processor.id_to_piece(ids[token]) != token]
        if missing:
            names = ", ".join(missing)
            raise ValueError(f"the tokenizer has no {names}: it is not a Gemma tokenizer")
        self.control_ids = frozenset(ids.values())
        self.pad_id, eos_id, self.bos_id = (ids[f"<{one}>"] for one in ("pad", "eos", "bos"))
        self.start_of_turn_id, self.end_of_turn_id = ids["<start_of_turn>"], ids["<end_of_turn>"]
        self.stop_ids = (eos_id, self.end_of_turn_id)

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        return cls(path.read_bytes())

    def save(self, path: Path) -> None:
        path.write_bytes(self.model_proto)

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without <bos>; control tokens in `text` become ordinary
        characters."""
        return [token for part in _CONTROL.split(text) for token in self._processor.encode(part)]

    def ends(self, text: str) -> list[int]:
        """The end in `text` of each token of `encode(text)`; a character in several tokens ends
        with its last byte."""
        ends, start = [], 0
        for part in _CONTROL.split(text):
            offsets = self._processor.encode(part, return_type="offset_mapping")["offsets"]
            ends += [start + end for _, end in offsets]
            start += len(part)
        return ends

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, without control tokens and ids beyond the vocabulary: Gemma 3 4B has
        64 rows without a piece."""
        pieces, control = len(self), self.control_ids
        known = [token for token in map(int, tokens) if token < pieces and token not in control]
        return self._processor.decode(known)

    @cached_property
    def around_prompt(self) -> tuple[list[int], list[int]]:
        """The tokens before a prompt, and those between it and the response."""
        user, line, model = (self.encode(text) for text in ("user\n", "\n", "model\n"))
        before = [self.bos_id, self.start_of_turn_id, *user]
        return before, [self.end_of_turn_id, *line, self.start_of_turn_id, *model]


def prompt_tokens(tokenizer: Tokenizer, prompt: str, turns: Turns = ()) -> list[int]:
    """The earlier turns, if any, then the user's turn, stripped of white space as in Gemma's
    template, and the opening of the model's turn."""
    (bos, *user), after = tokenizer.around_prompt
    tokens = [bos]
    for asked, said in turns:
        tokens += [*user, *tokenizer.encode(asked.strip()), *after]
        tokens += [*response_tokens(tokenizer, said.strip()), *tokenizer.encode("\n")]
    return [*tokens, *user, *tokenizer.encode(prompt.strip()), *after]


def response_tokens(tokenizer: Tokenizer, response: str) -> list[int]:
    """The model's turn with its terminator."""
    return [*tokenizer.encode(response), tokenizer.end_of_turn_id]


def pad_left(rows: Sequence[Sequence[int]], length: int, pad_id: int) -> np.ndarray:
    """Rows padded on the left to (len(rows), length), int32. Raises TooLong, naming the row."""
    return np.ascontiguousarray(pad_right([row[::-1] for row in rows], length, pad_id)[:, ::-1])


def pad_right(rows: Sequence[Sequence[int]], length: int, pad_id: int) -> np.ndarray:
    """Rows padded on the right to (len(rows), length), int32. Raises TooLong, naming the row."""
    out = np.full((len(rows), length), pad_id, np.int32)
    for index, row in enumerate(rows):
        if len(row) > length:
            raise TooLong(
                f"row {index} has {len(row)} tokens, more than the {length} of the fixed shape"
            )
        out[index, : len(row)] = row
    return out
