"""A SentencePiece tokenizer of Gemma's kind as the files that `transformers.AutoTokenizer` loads,
with Gemma's chat template.

SentencePiece's byte-pair encoding joins, again and again, the neighbours whose union is the piece
of highest score; `tokenizers`' joins the pair that stands first in a list. The list is therefore
every way to cut a piece into two pieces, best union first. Control tokens and user-defined symbols
are cut out of the text before, by both. Real checkpoints bring these files along: then they are
kept as they are.
"""

import json
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from tasks.data.control_tokens import CONTROL_TOKENS
from tasks.data.tokens import Tokenizer
from tasks.models.hf_directory import template_in

proto: Any = sentencepiece_model_pb2  # generated code without type information

# Of google/gemma-3-1b-it, without the branch for images.
CHAT_TEMPLATE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if message['role'] == 'assistant' -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {%- for item in message['content'] -%}
            {{ item['text'] | trim }}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""


def write_tokenizer(directory: Path, tokenizer: Tokenizer) -> None:
    """Add what `directory` lacks of tokenizer.json, tokenizer_config.json and a chat template. One
    in chat_template.json is read with a processor alone, never with a tokenizer."""
    if not (directory / "tokenizer.json").exists():
        (directory / "tokenizer.json").write_text(tokenizer_json(tokenizer), encoding="utf-8")
    settings = directory / "tokenizer_config.json"
    if not settings.exists():
        settings.write_text(json.dumps(_SETTINGS, indent=2) + "\n", encoding="utf-8")
    template = directory / "chat_template.jinja"
    if not (template_in(template) or template_in(settings)):
        template.write_text(CHAT_TEMPLATE, encoding="utf-8")


_SETTINGS = {
    "tokenizer_class": "GemmaTokenizer",
    "add_bos_token": True,
    "add_eos_token": False,
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": None,
    "clean_up_tokenization_spaces": False,
    "spaces_between_special_tokens": False,
    # transformers' "unlimited"; the model's config has its limit
    "model_max_length": 1_000_000_000_000_000_019_884_624_838_656,
}


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """The tokenizer in the format of the library `tokenizers`. It puts <bos> in front, as Gemma's
    own does."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as FastTokenizer

    pieces = proto.ModelProto.FromString(tokenizer.model_proto).pieces
    kinds = proto.ModelProto.SentencePiece
    vocabulary = {piece.piece: number for number, piece in enumerate(pieces)}
    scores = {piece.piece: piece.score for piece in pieces if piece.type == kinds.NORMAL}
    fast = FastTokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(scores),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bos = ("<bos>", tokenizer.bos_id)
    fast.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[bos]
    )
    # User-defined pieces, runs of blanks among them, are looked for in what the normalizer gives,
    # where a blank is a mark; Gemma's control tokens in the text as it came; other control tokens
    # (`<mask>`) not at all, as in SentencePiece.
    fast.add_tokens(
        [
            AddedToken(piece.piece, special=control, normalized=not control)
            for piece in pieces
            for control in [piece.piece in CONTROL_TOKENS]
            if control or piece.type == kinds.USER_DEFINED
        ]
    )
    text: str = fast.to_str(pretty=True)
    return text


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every cut of a piece into two pieces, the piece of highest score first; of one piece, the cut
    whose parts come first."""
    order = {piece: number for number, piece in enumerate(scores)}
    found = []
    for piece, score in scores.items():
        cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        found += [
            (-score, order[left], order[right], left, right)
            for left, right in cuts
            if left in order and right in order
        ]
    return [(left, right) for _, _, _, left, right in sorted(found)]
