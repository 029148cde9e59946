"""Every option of the command line, said once: `flows.cli.main` gives each command its own."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.recipe.overrides import TINY
from flows.scores import FORMATS
from infra.context import context
from infra.store.location import expanded
from schemas.base import InputError
from tasks.models.model_source import TINY as TINY_MODEL


def options_by_name() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every option by the name that `COMMANDS` has for it."""
    default, formats = context().settings.store, FORMATS.names()
    repeated: dict[str, Any] = {"action": "append", "default": []}
    last = "(default: the last trained one)"
    return {
        "recipe": _option(
            "recipe", "a shipped recipe's name (see `lyceum recipes`) or the path of a TOML file"
        ),
        "stage": _option("stage", "a stage's name in the recipe"),
        "run": _option("run", "a run's id (see `lyceum runs`)"),
        "others": _option(
            "others", "a run to compare it with, or several", metavar="RUN2", nargs="+"
        ),
        "question": _option(
            "question", "a prompt, as a user would write it; without one, a dialogue", nargs="?"
        ),
        "store": _option(
            "--store URI",
            f"path, file:// or gs:// URI of the store (default: {default})",
            default=default,
        ),
        "target": _option(
            "--target T",
            "where jobs run: local, or a TPU such as v5e-8 (default: local)",
            default="local",
        ),
        "machines": _option("--target T", "look for machines of this target instead, e.g. v5e-8"),
        "set": _option(
            "--set K=V",
            "override a value, e.g. stages.grpo.config.steps=20 (repeatable)",
            dest="overrides",
            **repeated,
        ),
        "tiny": _option(
            "--tiny",
            "run the recipe on a laptop in minutes: gemma3-tiny, every stage small",
            action="append_const",
            const=TINY,
            dest="overrides",
        ),
        "data": _option("--data DIR", "directory of the data files that the recipe reads", _path),
        "force": _option(
            "--force STAGE", "run this stage again although it is cached (repeatable)", **repeated
        ),
        "code": _option(
            "--code FILE",
            "a Python file of yours that the recipe may run as a reward or metric (repeatable)",
            _path,
            **repeated,
        ),
        "seeds": _option(
            "--seeds N",
            "run under N seeds, counted from the recipe's own, with one report over them; they"
            " share data and held-out prompts",
            int,
        ),
        "rows": _option(
            "--rows N",
            "rows to read of each data set, and to make with each generator (default: 50)",
            int,
            default=50,
        ),
        "model": _option(
            "--model M",
            f"weights to rehearse with, as a recipe names its model (default: {TINY_MODEL})",
            default=TINY_MODEL,
        ),
        "written": _option("file", "the recipe to write, e.g. mine.toml", _path),
        "source": _option(
            "--data FILE",
            "your rows: CSV, TSV, JSON, JSONL or Parquet, or a URL (hf://, gs://, s3://)",
        ),
        "base": _option("--model M", "the model to teach, e.g. gemma3-1b-it or hf://ORG/NAME"),
        "prompt": _option("--prompt COLUMN", "the column with the question"),
        "reasoning": _option("--reasoning COLUMN", "the column with the reasoning; - for none"),
        "answer": _option("--answer COLUMN", "the column with the final answer"),
        "check": _option(
            "--check C", "how answers are verified: numeric, math, exact, quantity, choice, none"
        ),
        "domain": _option("--domain D", "what the prompts are about, e.g. math"),
        "place": _option("--target T", "where it will run: local, or a TPU such as v5e-8"),
        "spent": _option("--usd USD", "the most that a run may cost, for `lyceum plan`"),
        "no_rehearsal": _option("--no-rehearsal", "write and validate it without running it"),
        "hours": _option(
            "--hours H",
            "length of a session, e.g. 9: says how many sessions the run takes and where each ends;"
            " a plan that takes longer than one does not fit",
            float,
        ),
        "deadline": _option(
            "--hours H", "end within H hours, e.g. 9; the same command continues later", float
        ),
        "usd": _option("--usd USD", "the plan does not fit if it costs more", float),
        "judges_usd": _option(
            "--usd USD", "the most that each judge behind an API may cost", float
        ),
        "answering": _option("--stage S", f"the stage whose model answers {last}"),
        "exported": _option("--stage S", f"the stage whose model is exported {last}"),
        "judged": _option(
            "--stage S", "the GRPO stage that is judged again (default: the last one)"
        ),
        "rubric": _option(
            "--rubric FILE",
            "TOML: [[rewards]] as in a recipe, and `rubrics`, the path of other rubrics",
            _path,
            required=True,
        ),
        "to": _option(
            "--to DIR", "the directory to make; it must be new or empty", _path, required=True
        ),
        "pages": _option(
            "--to DIR",
            "a directory to make for the page, instead of the store",
            _path,
            dest="pages",
        ),
        "repository": _option(
            "--to ORG/NAME",
            "the repository on the Hugging Face hub; made if it is missing",
            required=True,
        ),
        "pushed": _option(
            "--stage S",
            "the stage whose model is pushed, or with --dataset its rows (default: the last one)",
        ),
        "dataset": _option("--dataset", "the data set that the run was trained on"),
        "public": _option("--public", "make it visible to everybody"),
        "adapters": _option(
            "--adapters",
            "the adapters alone, in PEFT's format, of a stage whose lora has keep = true",
        ),
        "orbax": _option(
            "--orbax", "an Orbax checkpoint and the tokenizer, as Tunix's own Gemma 3 loads them"
        ),
        "dtype": _option(
            "--dtype T",
            "float32 or bfloat16, the type that the proof computes in; float32 is the strictest and"
            " takes 4 bytes of memory per weight (default: float32)",
            choices=("float32", "bfloat16"),
            default="float32",
        ),
        "formats": _option(
            "--as F",
            f"{', '.join(formats)} (repeatable; default: all)",
            choices=formats,
            dest="formats",
            **repeated,
        ),
        "delete": _option("--delete", "remove what is listed; without this nothing is changed"),
        "drop_run": _option(
            "--drop-run RUN",
            "give up this run's record and report (repeatable)",
            dest="drop_runs",
            **repeated,
        ),
        "opponent": _option(
            "--champion RUN",
            "the run whose model has to be beaten (default: the recipe's champion)",
        ),
        "promoted": _option(
            "run", "the run whose model becomes the champion of its recipe", nargs="?"
        ),
        "rollback": _option(
            "--rollback RECIPE", "return to this recipe's champion before the current one"
        ),
        "history": _option("--history RECIPE", "list the champions of this recipe"),
        "why": _option(
            "--why TEXT", "the reason, for the history (default: by hand)", default="by hand"
        ),
        "pool": _option(
            "--pool NAME",
            "an existing work pool of type process of the configured Prefect API",
            required=True,
        ),
        "recipes": _option(
            "--recipes DIR",
            "a directory whose TOML files are offered beside the shipped recipes",
            _path,
        ),
        "port": _option(
            "--port N", "port of the Prefect server and its UI (default: 4200)", int, default=4200
        ),
        "host": _option(
            "--host ADDRESS",
            "address to listen on; one that other machines reach needs --behind-tls (default:"
            " 127.0.0.1)",
            default="127.0.0.1",
        ),
        "endpoint_port": _option(
            "--port N", "port of the endpoint (default: 8000)", int, default=8000
        ),
        "endpoint_host": _option(
            "--host ADDRESS",
            "address to listen on; one that other machines reach needs LYCEUM_ENDPOINT_KEY"
            " (default: 127.0.0.1)",
            default="127.0.0.1",
        ),
        "behind_tls": _option(
            "--behind-tls ORIGIN",
            "the origin that browsers see of a TLS proxy in front, e.g. https://lyceum.example.org;"
            " the proxy must pass the Host header on",
        ),
        "json": _option(
            "--json", "print exactly one JSON object on standard output; logs go to standard error"
        ),
    }


def _path(text: str) -> Path:
    try:
        return expanded(text, "path")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _option(
    usage: str, text: str, value: Callable[[str], Any] | None = None, **settings: Any
) -> tuple[str, dict[str, Any]]:
    """An option as `add_argument` takes it, from `--option WHAT`, or `--option` for one without a
    value; a positional one from its name, which the usage shows in capitals."""
    flag, _, metavar = usage.partition(" ")
    if metavar or not flag.startswith("-"):
        settings = {"metavar": metavar or flag.upper()} | settings
    else:
        settings = {"action": "store_true"} | settings
    if value:
        settings["type"] = value
    return flag, {"help": text, **settings}
