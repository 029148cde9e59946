"""The text of an answer while its tokens come: whole characters, and nothing of a stop sequence."""

import pytest

from tasks.models.tiny import tiny_tokenizer
from tasks.sampling.detokenizer import Detokenizer

TOKENIZER = tiny_tokenizer()
TEXT = "Which day comes after Monday? é数, and then."


def told(
    text: str, stop: list[str], size: int, by_token: bool = False
) -> tuple[list[str], Detokenizer]:
    tokens = TOKENIZER.encode(text)
    detokenizer = Detokenizer(TOKENIZER, stop, by_token=by_token)
    pieces = []
    for start in range(0, len(tokens), size):
        pieces.append(detokenizer.add(tokens[start : start + size], start + size >= len(tokens)))
        if detokenizer.stopped:
            break
    return pieces, detokenizer


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", ["after Mon", "day? é", "数", "W", "en."])
def test_nothing_is_told_from_the_first_stop_sequence_on(stop: str, size: int) -> None:
    """Nor is a token counted that came with it: the last one completes it."""
    pieces, detokenizer = told(TEXT, ["never", stop], size)
    assert "".join(pieces) == detokenizer.text == TEXT[: TEXT.index(stop)]
    assert detokenizer.stopped
    said = [TOKENIZER.decode(detokenizer.tokens[:end]) for end in (None, -1)]
    assert [stop in one for one in said] == [True, False]


def test_the_beginning_of_a_stop_sequence_that_never_comes_is_told_in_the_end() -> None:
    pieces, detokenizer = told(TEXT, ["then. And"], 1)
    assert detokenizer.text == TEXT
    assert not detokenizer.stopped
    assert "then" not in "".join(pieces[:-1])


def test_it_is_known_where_tokens_begin() -> None:
    _, whole = told(TEXT, [], 4, by_token=True)
    tokens = TOKENIZER.encode(TEXT)
    assert whole.told == len(whole.starts) == len(tokens)
    assert all(
        TEXT[start:].startswith(piece)
        for start, token in zip(whole.starts, tokens, strict=True)
        if "\ufffd" not in (piece := TOKENIZER.decode([token]))
    )
    _, cut = told(TEXT, ["Monday"], 4, by_token=True)
    assert cut.told == sum(start < len(cut.text) for start in whole.starts) < len(tokens)
