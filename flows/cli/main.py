"""The `lyceum` command. Exit codes: 0 done, 1 a stage failed, 2 bad input, 3 the plan does not fit
or an audit or a rehearsal found something, 130 stopped by Ctrl-C.

Nothing heavy is imported here: help, `recipes` and every message about bad input come without
Prefect, let alone JAX. With `--json` a command prints exactly one JSON object on standard output;
everything else goes to standard error.
"""

import argparse
import importlib.metadata
import inspect
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, TextIO

from pydantic import ValidationError

from flows.cli import commands, model_commands
from flows.cli.answer import Answer, drop
from flows.cli.options import options_by_name
from infra.distribution import DISTRIBUTION, absent
from infra.store.objects import Damaged
from infra.visible import plain
from schemas.base import DoesNotFit, InputError, StageFailed, Stopped, nearest, problem_text
from schemas.toml import require_utf_8


class _Parser(argparse.ArgumentParser):
    """A wrong command line is bad input like any other: one line that says what and how to go
    on."""

    def error(self, message: str) -> NoReturn:
        wrong = re.fullmatch(r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if wrong:
            named, value, valid = wrong.groups()
            choices = [choice.strip("'") for choice in valid.split(", ")]
            raise InputError(f"{named}: invalid choice: {value!r}.{nearest(value, choices)}")
        message = re.sub(r"invalid int value: (.*)", r"\1 is no whole number", message)
        message = re.sub(r"invalid float value: (.*)", r"\1 is no number", message)
        raise InputError(f"{message.removesuffix('.')}. See `{self.prog} --help`.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    # plots are files; what a notebook sets for its own is not installed here, and would end a stage
    os.environ["MPLBACKEND"] = "agg"
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started this process has closed it
            setattr(sys, name, io.StringIO())
    if isinstance(sys.stdout, io.TextIOWrapper):  # where text is Latin-1, models write more
        sys.stdout.reconfigure(errors="backslashreplace")
    for name in ("COLUMNS", "LINES"):  # rich takes whatever `str.isdigit` does
        if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(name, "")):
            os.environ.pop(name, None)
    try:
        try:
            return _answer(sys.argv[1:] if arguments is None else arguments)
        finally:
            _flush(sys.stdout)
    except InputError as error:
        return _fail(str(error), 2)
    except DoesNotFit as error:
        return _fail(str(error), 3)
    except (StageFailed, Damaged) as error:
        return _fail(str(error), 1)
    except ValidationError as error:
        if error.title != "Settings":
            raise
        why = problem_text(error.errors()[0])  # Prefect's own, as it is imported
        return _fail(f"a PREFECT_ variable, or your Prefect profile, is wrong: {why}; mend it.", 2)
    except ModuleNotFoundError as error:
        if not (message := absent(error)):
            raise
        return _fail(message, 2)
    except (Stopped, KeyboardInterrupt):
        return _fail("stopped; run the same command again to continue", 130)
    except BrokenPipeError:  # `lyceum runs | head`: whoever read our output has gone
        return 1
    # the machine's: a disk that fails, a network that is gone, no memory left
    except (OSError, MemoryError) as error:
        return _fail(str(error) or "this machine's memory is used up", 1)


def _answer(arguments: Sequence[str]) -> int:
    """Run a command and print its answer; returns the exit code. Raises what the command raises."""
    for word in arguments:
        require_utf_8(word, "an argument")
        if re.fullmatch("--.*=--", word):  # argparse drops `--`, and hands on an empty list
            raise InputError(f"{word}: -- is no value; give one.")
    options, unknown = parser().parse_known_args(arguments)
    if unknown and getattr(options, "question", "") is None and unknown[0][:1] != "-":
        options.question = unknown.pop(0)  # argparse looks for it before the first option alone
    if unknown:
        raise InputError(_unknown(options.command, unknown[0]))
    # somebody waits for the answer, and nothing is lost by giving up
    if options.command not in (commands.init, commands.run, commands.rehearse, commands.serve):
        os.environ.setdefault("LYCEUM_STORE_SECONDS", "30")
    answer: Answer = options.command(options)
    if options.json:
        sys.stdout.write(json.dumps(answer.value, allow_nan=False) + "\n")
    else:
        from flows.cli.show import show

        show(answer.shown)
    return answer.code


def _flush(stream: TextIO) -> None:
    """Write what is left in a stream. Raises OSError: nobody takes it."""
    try:
        stream.flush()
    except OSError:
        drop(stream)
        raise


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # nobody reads it, or the disk is full
        try:
            sys.stderr.write(f"lyceum: {plain(message)}\n")
        finally:
            _flush(sys.stderr)
    return code


def _unknown(command: Callable[[argparse.Namespace], Answer], word: str) -> str:
    """What is wrong with a word that a command does not take."""
    options, names = options_by_name(), re.split(r"[ |]", COMMANDS[command])
    flags = [options[name][0].split()[0] for name in (*filter(None, names), "json")]
    problem = f"unrecognized argument {word!r} of `lyceum {command.__name__}`."
    if "--set" in flags and re.match(r"[\w.]+=", word):
        return f"{problem} Each value has a --set of its own: --set {word}"
    return problem + nearest(word, [flag for flag in flags if flag.startswith("-")])


def parser() -> argparse.ArgumentParser:
    whole = _Parser(
        prog="lyceum",
        description=f"{DESCRIPTION}\n\n{_groups()}",
        usage="lyceum COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
    whole.add_argument("--version", action="version", version=version, help="the version of Lyceum")
    subparsers = whole.add_subparsers(
        prog="lyceum",
        metavar="COMMAND",
        required=True,
        parser_class=_Parser,
        help=argparse.SUPPRESS,
    )
    options = options_by_name()
    for command, names in COMMANDS.items():
        text = inspect.cleandoc(command.__doc__ or "")
        added = subparsers.add_parser(command.__name__, description=text, allow_abbrev=False)
        added.set_defaults(command=command)
        for choice in [*names.split(), "json"]:
            one_of = choice.split("|")
            group = added.add_mutually_exclusive_group(required=True) if one_of[1:] else added
            for option in one_of:
                flag, settings = options[option]
                group.add_argument(flag, **settings)
    return whole


DESCRIPTION = """Teaches small open models to think before they speak: distill, SFT, SimPO,
GRPO, evaluation, as one resumable flow. `lyceum COMMAND --help` says more."""

GROUPS: dict[str, dict[Callable[[argparse.Namespace], Answer], str]] = {
    "Train": {
        commands.recipes: "",
        commands.init: "written source base prompt reasoning answer check domain place spent"
        " no_rehearsal store",
        commands.rehearse: "recipe store rows model set data code",
        commands.plan: "recipe store target set tiny data hours usd",
        commands.run: "recipe store target set tiny data force code deadline seeds",
        commands.runs: "store",
    },
    "Understand": {
        commands.report: "run pages store",
        commands.compare: "run others store",
        model_commands.ask: "run question answering store",
        commands.why: "recipe stage store set tiny data",
        model_commands.rejudge: "run rubric judged judges_usd store",
        model_commands.scores: "run to formats store",
    },
    "Ship": {
        model_commands.gate: "run opponent store",
        model_commands.promote: "promoted|rollback|history why store",
        model_commands.export: "run to exported adapters orbax dtype store",
        model_commands.push: "run repository pushed adapters dataset public dtype store",
        model_commands.endpoint: "run endpoint_port endpoint_host answering store",
    },
    "Operate": {
        commands.doctor: "store target",
        commands.serve: "port host behind_tls recipes",
        commands.deploy: "pool recipes",
        commands.gc: "store machines delete drop_run",
    },
}
"""Commands by what people do, each with its options (`options_by_name`) in the order of its help,
`|` between those of which exactly one is given; every command has `--json` as well."""

COMMANDS = {command: names for group in GROUPS.values() for command, names in group.items()}


def _groups() -> str:
    """Every command with its first sentence, in groups."""
    lines = []
    for title, group in GROUPS.items():
        lines.append(f"{title}:")
        for command in group:
            text = inspect.cleandoc(command.__doc__ or "")
            sentence = re.split(r"(?<=\.)\s", text, maxsplit=1)[0]
            begin, indent = f"  {command.__name__:<{_NAMES}}", " " * (2 + _NAMES)
            lines += textwrap.wrap(
                sentence, HELP_WIDTH, initial_indent=begin, subsequent_indent=indent
            )
        lines.append("")
    return "\n".join(lines)


HELP_WIDTH, _NAMES = 79, 10
"""Columns of the help of all commands, and of their names in it."""


if __name__ == "__main__":
    sys.exit(main())
