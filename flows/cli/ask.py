"""`lyceum ask`: greedy answers from the model of one of a run's stages, told as they are decoded:
one, or a dialogue. It loads JAX into its own process."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from flows.cli.answer import say
from flows.recipe.trained import trained_stage
from infra.context import context
from infra.process import worker_environment
from infra.store.store import Store
from schemas.base import InputError, StageFailed
from schemas.examples import parse_any
from schemas.reports import RunRecord
from schemas.toml import require_utf_8
from tasks.models.model_source import window

RESPONSE_LENGTH = 1024
"""The most tokens of an answer."""

Tell = Callable[[str], None]


class Conversation:
    """A dialogue with the model of `stage` (the last trained stage by default).

    Attributes:
        about: `run_id` and `stage`, for people and programs.
        turns: the questions and answers so far, all of which the model sees.
    """

    def __init__(self, store: Store, record: RunRecord, stage: str | None) -> None:
        """Raises InputError when the run has no such model, or its artifact is gone or damaged."""
        chosen, manifest = trained_stage(store, record, stage)
        keep_compiled()
        start_jax()
        from tasks.models.loading import load_model
        from tasks.sampling.streaming import Streamer

        self.about = {"run_id": record.run_id, "stage": chosen.name}
        self.turns: tuple[tuple[str, str], ...] = ()
        directory = store.local_dir(manifest)
        self._window = window(str(directory))
        self._loaded = load_model(directory)
        self._streamer = Streamer(self._loaded, response_length=RESPONSE_LENGTH)

    def ask(self, question: str, tell: Tell | None = None) -> dict[str, Any]:
        """Ask something.

        Args:
            tell: called with each piece of the answer's text as it is decoded. With it, Ctrl-C ends
                the answer and `stopped` is true; without it, KeyboardInterrupt goes through.

        Raises:
            InputError: with what was said before it is longer than the model was made for.
            StageFailed: JAX cannot compute an answer, as where there is too little memory.
        """
        from jax.errors import JaxRuntimeError

        from tasks.data.tokens import prompt_tokens
        from tasks.sampling.streaming import pieces

        tokenizer = self._loaded.tokenizer
        length = len(prompt_tokens(tokenizer, question, self.turns))
        if self._window and length > self._window:
            raise InputError(
                f"the question, with what was said before it, has {length} tokens, and the model"
                f" was made for texts of at most {self._window}; ask less, or begin a new dialogue."
            )
        tokens: list[int] = []
        stopped = False

        def recorded() -> Iterator[int]:
            for token in self._streamer.tokens(question, self.turns):
                tokens.append(token)
                yield token

        try:
            for piece in pieces(tokenizer, recorded()):
                if tell:
                    tell(piece)
        except KeyboardInterrupt:
            if tell is None:
                raise
            stopped = True
        except JaxRuntimeError as error:
            raise StageFailed(f"the model cannot answer: {error}") from error
        completion = tokenizer.decode(tokens)
        self.turns += ((question, completion),)
        trace = parse_any(completion)
        return {
            "question": question,
            "completion": completion,
            "reasoning": trace.reasoning if trace else None,
            "proof": trace.proof or None if trace else None,
            "answer": trace.answer if trace else None,
            "terminated": bool(tokens) and tokens[-1] in tokenizer.stop_ids,
            "stopped": stopped,
        }


def answer(
    store: Store, record: RunRecord, question: str, stage: str | None, tell: Tell | None = None
) -> dict[str, Any]:
    """The answer to one question; see `Conversation`.

    Raises:
        InputError: the question is empty, the run has no such model, or its artifact is gone or
            damaged.
    """
    if not question.strip():
        raise InputError("the question is empty; ask something, in quotes.")
    conversation = Conversation(store, record, stage)
    return conversation.about | conversation.ask(question, tell)


def dialogue(
    store: Store, record: RunRecord, stage: str | None, tell: Tell | None
) -> dict[str, Any]:
    """Answer line after line of standard input, until it ends (Ctrl-D). Ctrl-C ends an answer, and
    at the prompt it forgets what was typed.

    Raises InputError as `Conversation` does, or when nothing was asked.
    """
    people = sys.stdin.isatty()
    conversation = Conversation(store, record, stage)
    if people and tell:
        sys.stderr.write(
            f"{' '.join(conversation.about.values())}: Ctrl-C ends an answer, Ctrl-D the dialogue\n"
        )
    answers = []
    for question in _questions(people and tell is not None):
        answers.append(conversation.ask(question, tell))
        if tell:
            tell("\n")
    if not answers and not people:
        raise InputError("nothing was asked: give a question, or one a line on standard input.")
    return conversation.about | {"answers": answers}


def start_jax() -> None:
    """Let JAX use the CPU, or what JAX_PLATFORMS says; variables that are set later it misses.
    Raises InputError: that is not to be had."""
    named = os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"JAX_PLATFORMS={named}: JAX cannot use that here ({str(error) or 'it finds none'});"
            " set it to cpu."
        ) from error


def keep_compiled() -> None:
    """Let JAX cache this process' programs where local jobs do, too."""
    for name, value in worker_environment(context().settings.compile_cache).items():
        if name.startswith(("JAX_COMPILATION_CACHE_", "JAX_PERSISTENT_CACHE_")):
            os.environ.setdefault(name, value)


def _questions(people: bool) -> Iterator[str]:
    """The lines that are not empty; people get a prompt, and can edit what they type. Raises
    InputError: standard input is no text."""
    if not people:
        try:
            for line in sys.stdin:
                require_utf_8(line, "the question")
                # editors on Windows begin a file with a byte order mark
                if question := line.removeprefix("\ufeff").strip():
                    yield question
        except UnicodeDecodeError as error:
            raise InputError("standard input is not valid UTF-8 text.") from error
        return
    import readline  # noqa: F401 - `input` takes it

    while True:
        try:
            if line := input("> ").strip():
                require_utf_8(line, "the question")
                yield line
        except (InputError, UnicodeDecodeError):  # as a backspace leaves half of a character
            say("That is not valid UTF-8 text; type it again.")
        except KeyboardInterrupt:
            sys.stdout.write("\n")
        except EOFError:
            sys.stdout.write("\n")
            return
