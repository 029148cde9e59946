"""Every option of the command line, said once: `flows.cli.main` gives each command its own."""

import argparse
from pathlib import Path
from typing import Any

from flows.recipe.overrides import TINY
from flows.scores import FORMATS
from infra.context import context
from infra.store.location import expanded
from schemas.base import InputError
from tasks.models.model_source import TINY as TINY_MODEL

_OPTIONS = """
recipe | recipe | a shipped recipe's name (see `lyceum recipes`) or the path of a TOML file
stage | stage | a stage's name in the recipe
run | run | a run's id (see `lyceum runs`)
others | others | a run to compare it with, or several
question | question | a prompt, as a user would write it; without one, a dialogue
store | --store URI | path, file:// or gs:// URI of the store
target | --target T | where jobs run: local, or a TPU such as v5e-8
machines | --target T | look for machines of this target instead, e.g. v5e-8
set | --set K=V | override a value, e.g. stages.grpo.config.steps=20
tiny | --tiny | run the recipe on a laptop in minutes: gemma3-tiny, every stage small
data | --data DIR | directory of the data files that the recipe reads
force | --force STAGE | run this stage again although it is cached
code | --code FILE | a Python file of yours that the recipe may run as a reward or metric
seeds | --seeds N | run under N seeds, counted from the recipe's own, with one report over them;
  they share data and held-out prompts
rows | --rows N | rows to read of each data set, and to make with each generator
model | --model M | weights to rehearse with, as a recipe names its model
written | file | the recipe to write, e.g. mine.toml
source | --data FILE | your rows: CSV, TSV, JSON, JSONL or Parquet, or a URL (hf://, gs://, s3://)
base | --model M | the model to teach, e.g. gemma3-1b-it or hf://ORG/NAME
prompt | --prompt COLUMN | the column with the question
reasoning | --reasoning COLUMN | the column with the reasoning; - for none
answer | --answer COLUMN | the column with the final answer
check | --check C | how answers are verified: numeric, math, exact, quantity, none
domain | --domain D | what the prompts are about, e.g. math
place | --target T | where it will run: local, or a TPU such as v5e-8
spent | --usd USD | the most that a run may cost, for `lyceum plan`
no_rehearsal | --no-rehearsal | write and validate it without running it
hours | --hours H | length of a session, e.g. 9: says how many sessions the run takes and where
  each ends; a plan that takes longer than one does not fit
deadline | --hours H | end within H hours, e.g. 9; the same command continues later
usd | --usd USD | the plan does not fit if it costs more
judges_usd | --usd USD | the most that each judge behind an API may cost
answering | --stage S | the stage whose model answers (default: the last trained one)
exported | --stage S | the stage whose model is exported (default: the last trained one)
judged | --stage S | the GRPO stage that is judged again (default: the last one)
rubric | --rubric FILE | TOML: [[rewards]] as in a recipe, and `rubrics`, the path of other rubrics
to | --to DIR | the directory to make; it must be new or empty
pages | --to DIR | a directory to make for the page, instead of the store
repository | --to ORG/NAME | the repository on the Hugging Face hub; made if it is missing
pushed | --stage S | the stage whose model is pushed, or with --dataset its rows (default: the
  last one)
dataset | --dataset | the data set that the run was trained on
public | --public | make it visible to everybody
adapters | --adapters | the adapters alone, in PEFT's format, of a stage whose lora has keep = true
orbax | --orbax | an Orbax checkpoint and the tokenizer, as Tunix's own Gemma 3 loads them
dtype | --dtype T | float32 or bfloat16, the type that the proof computes in; float32 is the
  strictest and takes 4 bytes of memory per weight
formats | --as F | the formats
delete | --delete | remove what is listed; without this nothing is changed
drop_run | --drop-run RUN | give up this run's record and report
opponent | --champion RUN | the run whose model has to be beaten (default: the recipe's champion)
promoted | run | the run whose model becomes the champion of its recipe
rollback | --rollback RECIPE | return to this recipe's champion before the current one
history | --history RECIPE | list the champions of this recipe
why | --why TEXT | the reason, for the history
pool | --pool NAME | an existing work pool of type process of the configured Prefect API
recipes | --recipes DIR | a directory whose TOML files are offered beside the shipped recipes
port | --port N | port of the Prefect server and its UI
host | --host ADDRESS | address to listen on; one that other machines reach needs --behind-tls
endpoint_port | --port N | port of the endpoint
endpoint_host | --host ADDRESS | address to listen on; one that other machines reach needs
  LYCEUM_ENDPOINT_KEY
behind_tls | --behind-tls ORIGIN | the origin that browsers see of a TLS proxy in front, e.g.
  https://lyceum.example.org; the proxy must pass the Host header on
json | --json | print exactly one JSON object on standard output; logs go to standard error
"""
"""The name that `COMMANDS` has for an option, the option with its value, and its help, without the
default and that it is repeatable; a line that begins with blanks continues the one before."""


def options_by_name() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every option as `add_argument` takes it, by the name that `COMMANDS` has for it. A positional
    one is shown in capitals."""
    found, settings = {}, _settings()
    for line in _OPTIONS.strip().replace("\n  ", " ").splitlines():
        name, usage, text = line.split(" | ")
        (flag, _, metavar), own = usage.partition(" "), settings.get(name, {})
        if own.get("action") == "append":
            text += " (repeatable)"
        elif "default" in own:
            text += f" (default: {own['default']})"
        if metavar or not flag.startswith("-"):
            own = {"metavar": metavar or flag.upper()} | own
        else:
            own = {"action": "store_true"} | own
        found[name] = flag, {"help": text, **own}
    return found


def _settings() -> dict[str, dict[str, Any]]:
    """What is to be said of an option beside its help."""
    repeated: dict[str, Any] = {"action": "append", "default": []}
    formats = FORMATS.names()
    all_of = f"{', '.join(formats)} (repeatable; default: all)"
    return {
        "others": {"metavar": "RUN2", "nargs": "+"},
        "question": {"nargs": "?"},
        "store": {"default": context().settings.store},
        "target": {"default": "local"},
        "set": {"dest": "overrides", **repeated},
        "tiny": {"action": "append_const", "const": TINY, "dest": "overrides"},
        "data": {"type": _path},
        "force": repeated,
        "code": {"type": _path, **repeated},
        "seeds": {"type": int},
        "rows": {"type": int, "default": 50},
        "model": {"default": TINY_MODEL},
        "written": {"type": _path},
        "hours": {"type": float},
        "deadline": {"type": float},
        "usd": {"type": float},
        "judges_usd": {"type": float},
        "rubric": {"type": _path, "required": True},
        "to": {"type": _path, "required": True},
        "pages": {"type": _path, "dest": "pages"},
        "repository": {"required": True},
        "dtype": {"choices": ("float32", "bfloat16"), "default": "float32"},
        "formats": {"help": all_of, "choices": formats, "dest": "formats", **repeated},
        "drop_run": {"dest": "drop_runs", **repeated},
        "promoted": {"nargs": "?"},
        "why": {"default": "by hand"},
        "pool": {"required": True},
        "recipes": {"type": _path},
        "port": {"type": int, "default": 4200},
        "host": {"default": "127.0.0.1"},
        "endpoint_port": {"type": int, "default": 8000},
        "endpoint_host": {"default": "127.0.0.1"},
    }


def _path(text: str) -> Path:
    try:
        return expanded(text, "path")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
