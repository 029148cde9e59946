"""The `lyceum` command. Exit codes: 0 done, 1 a stage failed, 2 bad input, 3 the plan does not fit
or an audit or a rehearsal found something, 130 stopped by Ctrl-C.

Nothing heavy is imported here: help, `recipes` and every message about bad input come without
Prefect, let alone JAX. With `--json` a command prints exactly one JSON object on standard output;
everything else goes to standard error.
"""

import argparse
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from flows.cli import commands
from flows.cli.show import show
from flows.planning.plan import DoesNotFit
from flows.recipe.overrides import TINY
from flows.scores import FORMATS
from infra.context import context
from infra.store.objects import Damaged
from infra.targets import TARGETS
from infra.visible import plain
from schemas.base import InputError, StageFailed, Stopped


class _Parser(argparse.ArgumentParser):
    """A wrong command line is bad input like any other: one line that says what and how to go
    on."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}. See `{self.prog} --help`.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        # somebody waits for the answer, and nothing is lost by giving up
        if options.command not in (
            commands.run,
            commands.rehearse,
            commands.serve,
        ):
            os.environ.setdefault("LYCEUM_STORE_SECONDS", "30")
        answer: commands.Answer = options.command(options)
        if options.json:
            sys.stdout.write(json.dumps(answer.value, allow_nan=False) + "\n")
        else:
            show(answer.shown)
        return answer.code
    except InputError as error:
        return _fail(str(error), 2)
    except DoesNotFit as error:
        return _fail(str(error), 3)
    except (StageFailed, Damaged) as error:
        return _fail(str(error), 1)
    except (Stopped, KeyboardInterrupt):
        return _fail("stopped; run the same command again to continue", 130)
    except BrokenPipeError:  # `lyceum runs | head`: whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (
        OSError,
        MemoryError,
    ) as error:  # the machine's: a disk that fails, a network that is gone, no memory left
        return _fail(str(error) or "this machine's memory is used up", 1)


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"lyceum: {plain(message)}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lyceum",
        description=(
            "Teaches small open models to think before they speak: distill, SFT, SimPO, GRPO,"
            " evaluation, as one resumable flow."
        ),
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    def add(
        name: str,
        command: Callable[[argparse.Namespace], commands.Answer],
        *parts: Callable[[argparse.ArgumentParser], None],
    ) -> None:
        text = inspect.cleandoc(command.__doc__ or "")
        sentence = re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("%", "%%")
        sub = subparsers.add_parser(name, help=sentence, description=text, allow_abbrev=False)
        for part in parts:
            part(sub)
        sub.add_argument(
            "--json",
            action="store_true",
            help="print exactly one JSON object on standard output; logs go to standard error",
        )
        sub.set_defaults(command=command)

    add("run", commands.run, _recipe, _store, _target, _overrides, _force, _code)
    add("rehearse", commands.rehearse, _recipe, _store, _sizes, _changes, _code)
    add("plan", commands.plan, _recipe, _store, _target, _overrides, _budget)
    add("why", commands.why, _recipe, _stage, _store, _overrides)
    add("runs", commands.runs, _store)
    add("report", commands.report, _run, _store)
    add("compare", commands.compare, _run, _other_runs, _store)
    add("ask", commands.ask, _run, _question, _store)
    add("export", commands.export, _run, _to, _store)
    add("scores", commands.scores, _run, _formats, _store)
    add("rejudge", commands.rejudge, _run, _rewards, _store)
    add("recipes", commands.recipes)
    add("gc", commands.gc, _store, _garbage)
    add("doctor", commands.doctor, _store, _target)
    add("gate", commands.gate, _run, _opponent, _store)
    add("promote", commands.promote, _champion, _store)
    add("serve", commands.serve, _port, _recipes)
    add("deploy", commands.deploy, _pool, _recipes)
    return parser


def _recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="a shipped recipe's name (see `lyceum recipes`) or the path of a TOML file",
    )


def _stage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", metavar="STAGE", help="a stage's name in the recipe")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's id (see `lyceum runs`)")


def _other_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "others", metavar="RUN", nargs="+", help="a run to compare it with, or several"
    )


def _question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", metavar="QUESTION", help="a prompt, as a user would write it")
    parser.add_argument(
        "--stage", metavar="S", help="the stage whose model answers (default: the last trained one)"
    )


def _rewards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rubric",
        metavar="FILE",
        type=Path,
        required=True,
        help="TOML: [[rewards]] as in a recipe, and `rubrics`, a path, if there are others",
    )
    parser.add_argument(
        "--stage", metavar="S", help="the GRPO stage that is judged again (default: the last one)"
    )
    parser.add_argument(
        "--usd", metavar="USD", type=float, help="the most that each judge behind an API may cost"
    )


def _to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=Path,
        required=True,
        help="the directory to make; one that is not empty is refused",
    )
    parser.add_argument(
        "--stage",
        metavar="S",
        help="the stage whose model is exported (default: the last trained one)",
    )
    parser.add_argument(
        "--adapters",
        action="store_true",
        help="the adapters alone, in PEFT's format, of a stage whose lora has keep = true",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help=(
            "in which the proof computes; float32 takes 4 bytes of memory per weight and tells the"
            " most (default: float32)"
        ),
    )


def _formats(parser: argparse.ArgumentParser) -> None:
    names = FORMATS.names()
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=Path,
        required=True,
        help="the directory to make; one that is not empty is refused",
    )
    parser.add_argument(
        "--as",
        metavar="F",
        choices=names,
        action="append",
        default=[],
        dest="formats",
        help=f"{', '.join(names)} (repeatable; default: all)",
    )


def _store(parser: argparse.ArgumentParser) -> None:
    default = context().settings.store
    parser.add_argument(
        "--store",
        metavar="URI",
        default=default,
        help=f"path, file:// or gs:// URI of the store (default: {default})",
    )


def _target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        metavar="T",
        default="local",
        help=f"where jobs run: {', '.join(TARGETS)} (default: local)",
    )


def _sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        metavar="N",
        type=int,
        default=50,
        help="rows that are read of each data set, and made by each generator (default: 50)",
    )
    parser.add_argument(
        "--model",
        metavar="DIR",
        default="gemma3-tiny",
        help="weights to rehearse with, as a recipe's model (default: gemma3-tiny)",
    )


def _overrides(parser: argparse.ArgumentParser) -> None:
    _changes(parser)
    parser.add_argument(
        "--tiny",
        action="append_const",
        const=TINY,
        dest="overrides",
        help="the recipe on a laptop, in minutes: gemma3-tiny, every stage small",
    )


def _changes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="K=V",
        action="append",
        default=[],
        dest="overrides",
        help="override a value, e.g. stages.grpo.config.steps=20",
    )
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="directory of the data files that the recipe reads"
    )


def _budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hours",
        metavar="H",
        type=float,
        help="the plan does not fit if it takes longer, e.g. 9 for a session of nine hours",
    )
    parser.add_argument(
        "--usd", metavar="USD", type=float, help="the plan does not fit if it costs more"
    )


def _force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force",
        metavar="STAGE",
        action="append",
        default=[],
        help="run this stage again although it is cached",
    )


def _code(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--code",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a Python file of yours that the recipe may run as a reward (repeatable)",
    )


def _garbage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", metavar="T", help="look for machines of this target instead, e.g. v5e-8"
    )
    parser.add_argument(
        "--delete",
        action="store_true",
        help="remove what is listed; without this nothing is changed",
    )
    parser.add_argument(
        "--drop-run",
        metavar="RUN",
        action="append",
        default=[],
        dest="drop_runs",
        help="give up this run's record and report (repeatable)",
    )


def _opponent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--champion",
        metavar="RUN",
        help="the run whose model is to be beaten (default: that of its recipe's champion)",
    )


def _champion(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="the run whose model becomes the champion of its recipe",
    )
    what.add_argument(
        "--rollback",
        metavar="RECIPE",
        help="return to the champion of this recipe before the current one",
    )
    what.add_argument("--history", metavar="RECIPE", help="list the champions of this recipe")
    parser.add_argument(
        "--why",
        metavar="TEXT",
        default="by hand",
        help="what the history will say (default: by hand)",
    )


def _pool(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pool",
        metavar="NAME",
        required=True,
        help="an existing work pool of type process of the configured Prefect API",
    )


def _recipes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipes",
        metavar="DIR",
        type=Path,
        help="a directory whose TOML files are offered beside the shipped recipes",
    )


def _port(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        metavar="N",
        type=int,
        default=4200,
        help="port of the Prefect server and its UI (default: 4200)",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help=(
            "address to listen on; one that other machines reach needs --behind-tls (default:"
            " 127.0.0.1)"
        ),
    )
    parser.add_argument(
        "--behind-tls",
        metavar="ORIGIN",
        help=(
            "a proxy that speaks TLS stands in front: what browsers see, e.g."
            " https://lyceum.example.org; it passes Host on as it is"
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
