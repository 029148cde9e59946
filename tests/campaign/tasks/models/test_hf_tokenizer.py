"""Gemma's own vocabulary of 262,144 pieces, as SentencePiece reads it and as we write it for
`tokenizers`: the same ids for real text. REAL_GEMMA names a directory that real_gemma.py of
../shared/bin wrote."""

import os
import random
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer

from infra.process import ROOT
from tasks.data.control_tokens import CONTROL_TOKENS
from tasks.data.tokens import Tokenizer
from tasks.models.hf_tokenizer import tokenizer_json

FILES = ("**/*.py", "**/*.md", "../shared/data/*/*.jsonl", "../shared/data/*/*.json")
LINES_OF_FILE, LONGEST = 150, 2000


def _lines() -> Iterator[str]:
    """Code, markdown, records; then every character there is, blanks and tags in any order."""
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            if ".venv" not in str(path):
                lines = path.read_text(encoding="utf-8").splitlines()
                yield from (line[:LONGEST] for line in lines[:LINES_OF_FILE])
    draw = random.Random(0)
    letters = [chr(code) for code in range(sys.maxunicode + 1)]
    letters = [letter for letter in letters if unicodedata.category(letter) not in ("Cs", "Cn")]
    words = [" ", "  ", "    ", "\n", "\n\n", "\t", "▁", "▁▁", "<b>", "</table>", "====", "שלום"]
    for _ in range(3000):
        parts = (draw.choice(letters if draw.random() < 0.4 else words) for _ in range(20))
        yield "".join(parts)
    yield from (blank * count + "x" for blank in " \n\t▁" for count in range(1, 40))


def test_real_text_has_the_ids_of_sentencepiece() -> None:
    directory = os.environ.get("REAL_GEMMA")
    if not directory:
        pytest.skip("REAL_GEMMA=DIR with what ../shared/bin/real_gemma.py wrote")
    ours = Tokenizer.from_file(Path(directory) / "tokenizer.model")
    theirs = FastTokenizer.from_str(tokenizer_json(ours))
    lines = [line for line in _lines() if not any(token in line for token in CONTROL_TOKENS)]
    assert len(lines) > 10_000
    joined = ["\n".join(lines[start : start + 5]) for start in range(0, len(lines), 5)]
    for text in (*lines, *joined):
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False).ids == ids, text
        assert theirs.decode(ids, skip_special_tokens=False) == ours.decode(ids), text
