"""Checks a model's directory in Hugging Face's format without reading weights. It loads neither JAX
nor numpy, since the flow checks models before the first stage runs.

Lyceum puts every prompt in Gemma's own turns (`tasks.data.tokens`), so a base model needs no chat
template. One with other turns is refused: users of the trained model would prompt it with turns
that it never saw, and an export, which keeps it, is refused after all the training.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from schemas.base import InputError
from tasks.data.control_tokens import CONTROL_TOKENS

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER = "tokenizer.model"

MOST_SPARE_ROWS = 1024
"""The most rows of an embedding without a piece (Gemma 3 4B has 64). More mean another model's
vocabulary, whose pieces belong to other rows."""

_TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_TURN = "<start_of_turn>"
_CHAT = (
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "So."},
)
_ASKED = "<bos><start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n"
_ANSWERED = f"{_ASKED}So.<end_of_turn>\n"
"""What Gemma's template makes of the first message, and of both."""

_GGUF = b"GGUF"
_SHOWN = 4
"""How many missing files a message names."""

_TAKE = (
    "Name a directory with the original weights in Hugging Face's format (config.json,"
    " model.safetensors, tokenizer.model), or the hub's, e.g. hf://google/gemma-3-270m."
)


def no_directory(path: Path) -> str:
    """The error for a file that was given as a model."""
    return f"a {_kind(path)} and no directory. {_TAKE}"


def others_in(directory: Path) -> str:
    """The error for a directory with files of another format, if it has any."""
    others = sorted(path for path in directory.iterdir() if path.suffix in (".gguf", ".bin"))
    return f", but {others[0].name}, a {_kind(others[0])}. {_TAKE[:-1]}" if others else ""


def check_directory(directory: Path) -> None:
    """Refuse a directory with a config.json that cannot be loaded.

    Raises:
        InputError: no JSON, weights of another format or not whole, no tokenizer or another
            model's, or a chat template of another family.
    """
    config = read_object(directory / "config.json")
    weight_files(directory)
    text = config.get("text_config") or config
    check_tokenizer(directory / TOKENIZER, text.get("vocab_size"))
    check_template(directory)


def check_template(directory: Path) -> None:
    """Raise InputError if a directory has a chat template with other turns than Gemma's."""
    for name in _TEMPLATES:
        template = template_in(directory / name)
        if template and (wrong := _other_turns(template)):
            raise InputError(
                f"{directory / name} has a chat template {wrong}: Lyceum asks and teaches in"
                " Gemma's turns. Remove the template, from a copy if it is a hub's (Gemma's is"
                " written in its place), or take the base model that has none."
            )


def _other_turns(template: str) -> str:
    """How a chat template differs from Gemma's; empty if it does not, or if it takes more than
    jinja to render it."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if _TURN not in template:
        return f"without {_TURN}, so of another family"
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        render = jinja.from_string(template).render
        for count, expected in ((1, _ASKED), (2, _ANSWERED)):
            more = {"bos_token": "<bos>", "eos_token": "<eos>", "add_generation_prompt": count == 1}
            if (text := render(messages=_CHAT[:count], **more)) != expected:
                return f"that renders {text[:400]!r} instead of {expected!r}"
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError):
        pass
    return ""


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a directory. Raises InputError when there are none, or the index
    names one that is missing."""
    if (directory / WEIGHTS).exists():
        return [directory / WEIGHTS]
    if not (directory / INDEX).exists():
        found = others_in(directory) or f". {_TAKE[:-1]}"
        raise InputError(f"{directory} has neither {WEIGHTS} nor {INDEX}{found}.")
    try:
        text = (directory / INDEX).read_text(encoding="utf-8")
        names = [str(Path(name)) for name in sorted(set(json.loads(text)["weight_map"].values()))]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{directory / INDEX} is damaged ({error}); download it again.") from error
    missing = [name for name in names if Path(name).name != name or not (directory / name).exists()]
    if missing:
        raise InputError(
            f"{directory}: {INDEX} names {', '.join(missing[:_SHOWN])}, which is not there;"
            " download it again."
        )
    return [directory / name for name in names]


def check_tokenizer(path: Path, rows: int | None) -> None:
    """Refuse a tokenizer that cannot be this model's.

    Args:
        rows: of the embedding; None where that is not known.

    Raises:
        InputError: it is missing, is no tokenizer, has no turns, or has another number of pieces.
    """
    if not path.is_file():
        raise InputError(
            f"{path.parent} has no {TOKENIZER}. Copy it there from the base model; transformers"
            " alone does not save it."
        )
    status = path.stat()
    pieces, missing = _pieces(path, status.st_size, status.st_mtime_ns)
    if missing:
        raise InputError(
            f"{path} has no {', '.join(missing)}: it is no Gemma tokenizer. Copy {TOKENIZER} there"
            " from the base model of these weights."
        )
    if rows is not None and not 0 <= rows - pieces <= MOST_SPARE_ROWS:
        raise InputError(
            f"{path} has {pieces} pieces, and the model's vocabulary {rows}: it belongs to another"
            f" model. Copy {TOKENIZER} there from the base model of these weights."
        )


@lru_cache(maxsize=16)
def _pieces(path: Path, size: int, changed: int) -> tuple[int, list[str]]:
    """A tokenizer's number of pieces, and the control tokens that it lacks. Raises InputError."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(path.read_bytes())
    except RuntimeError as error:
        raise InputError(
            f"{path} is no SentencePiece model, or not whole; download it again."
        ) from error
    ids = {token: processor.piece_to_id(token) for token in CONTROL_TOKENS}
    missing = [token for token, number in ids.items() if processor.id_to_piece(number) != token]
    return processor.get_piece_size(), missing


def template_in(path: Path) -> str:
    """The chat template in a file; empty where there is none. Raises InputError: it is damaged."""
    if not path.is_file():
        return ""
    if path.suffix == ".jinja":
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no text ({error}); download it again.") from error
    template = read_object(path).get("chat_template")
    if isinstance(template, list):  # several by name
        named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else ""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file. Raises InputError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}); download it again.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no JSON object; download it again.")
    return found


def _kind(path: Path) -> str:
    """Name a file's kind, for a message."""
    with path.open("rb") as file:
        if file.read(len(_GGUF)) == _GGUF:
            return "GGUF file, whose quantised weights are for inference"
    return "file"
