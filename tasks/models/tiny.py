"""`gemma3-tiny`: a Gemma 3 small enough to learn from nothing on two CPU cores in minutes, on the
code path of the 1B.

Its vocabulary of 1,536 pieces is the text file `tiny_vocabulary.tsv` (piece, tab, score), in
SentencePiece's byte-pair encoding with byte fallback and one token per digit, as in Gemma. `python
-m tasks.models.tiny` makes that file again from the procedural teacher and prints how many tokens
its rows take.
"""

import io
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceTrainer, sentencepiece_model_pb2

from tasks.data.control_tokens import CONTROL_TOKENS
from tasks.data.tokens import Tokenizer

proto: Any = sentencepiece_model_pb2  # generated code without type information

VOCABULARY = Path(__file__).with_name("tiny_vocabulary.tsv")
SIZE = 1536
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer of `gemma3-tiny`, built from the vocabulary file."""
    model = proto.ModelProto()
    for line in VOCABULARY.read_text(encoding="utf-8").splitlines():
        piece, score = line.split("\t")
        piece = piece.replace("\\n", "\n")
        model.pieces.add(piece=piece, score=float(score), type=_piece_type(piece))
    trainer = model.trainer_spec
    trainer.model_type, trainer.byte_fallback = proto.TrainerSpec.BPE, True
    trainer.vocab_size = len(model.pieces)
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = range(4)
    trainer.pad_piece, trainer.eos_piece = "<pad>", "<eos>"
    trainer.bos_piece, trainer.unk_piece = "<bos>", "<unk>"
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    return Tokenizer(model.SerializeToString())


def _piece_type(piece: str) -> int:
    kinds = proto.ModelProto.SentencePiece
    if piece == "<unk>":
        return kinds.UNKNOWN
    if piece in ("<pad>", "<eos>", "<bos>"):
        return kinds.CONTROL
    if piece in _BYTES:
        return kinds.BYTE
    if piece in (*CONTROL_TOKENS, *TAGS, "\n"):
        return kinds.USER_DEFINED
    return kinds.NORMAL


def train_vocabulary(texts: list[str]) -> str:
    """The vocabulary file's text, learned from `texts`: control tokens, tags, bytes, then pieces in
    merge order."""
    buffer = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=buffer,
        model_type="bpe",
        vocab_size=SIZE,
        character_coverage=1.0,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        unk_piece="<unk>",
        user_defined_symbols=[*CONTROL_TOKENS[4:], *TAGS, "\n"],
        num_threads=1,
        minloglevel=2,
    )
    learned = proto.ModelProto.FromString(buffer.getvalue())
    return "".join(
        f"{piece.piece}\t{piece.score:g}\n".replace("\n\t", "\\n\t") for piece in learned.pieces
    )


if __name__ == "__main__":
    from typing import get_args

    from schemas.examples import Domain, Grounding
    from tasks.teaching.drawing import Drawing

    rows = list(
        Drawing(
            {**dict.fromkeys(Domain, 1200), **dict.fromkeys(get_args(Grounding), 300)}, seed=0
        ).rows()
    )
    texts = [f"user\n{row.prompt}\nmodel\n{row.response()}" for row in rows]
    printable = "".join(chr(code) for code in range(32, 127))
    VOCABULARY.write_text(train_vocabulary([*texts, printable]), encoding="utf-8")
    lengths = sorted(len(tiny_tokenizer().encode(row.prompt + row.response())) for row in rows)
    print(  # noqa: T201
        f"{VOCABULARY}: {len(rows)} rows take {sum(lengths) / len(rows):.0f} tokens on average,"
        f" {lengths[-1]} at most"
    )
