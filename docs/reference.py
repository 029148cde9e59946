"""docs/commands.md and the table of docs/recipes.md, made from the code and from
flows/recipes/takes.csv: `uv run python -m docs.reference`."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from flows.cli.main import COMMANDS, GROUPS
from flows.cli.options import options_by_name
from flows.recipe.shipped import Takes, takes
from flows.runs.wording import duration
from infra.settings import Settings, TpuSettings

PAGE = Path(__file__).with_name("commands.md")
RECIPES = PAGE.with_name("recipes.md")
HEAD = """# Commands and settings

Made from the code by `uv run python -m docs.reference`; `lyceum COMMAND --help` says the same.

Every command has `--json`: exactly one JSON object on standard output, all else on standard error.
`RECIPE` is a shipped name or the path of a TOML file, `RUN` the id that a run printed.

| exit code | means |
|---|---|
| 0 | done, or paused by its deadline (`run --hours`) |
| 1 | a stage failed, a gate was not passed, `doctor` found a fault, a report lacks artifacts |
| 2 | bad input: one message with the fix, no traceback, nothing lost |
| 3 | the plan does not fit, or an audit or a rehearsal found something |
| 130 | stopped by Ctrl-C; the same command continues |
"""
OF_THE_MACHINE = {
    "parallel_jobs": "half of the cores",
    "cache": "`~/.cache/lyceum`",
    "compile_cache": "`~/.cache/lyceum/jax-PROCESSOR`",
    "project": "that variable",
}
TAIL = """
## Other variables that are read

| variable | for |
|---|---|
| `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, Kaggle's own | weights and data of hubs, `push` |
| `LYCEUM_ENDPOINT_KEY` | the key that `lyceum endpoint` asks for |
| `JAX_PLATFORMS` | what local jobs compute on; `cpu` leaves this machine's GPU or TPU alone |
| `<PROVIDER>_API_KEY`, `<PROVIDER>_BASE_URL` | an endpoint, e.g. `VLLM_BASE_URL` |
| `<PROVIDER>_API_KEY_SECRET` | the key's name in Secret Manager, for a judge that a TPU asks |
| `GOOGLE_CLOUD_PROJECT`, Google's application default credentials | buckets and TPUs |
| `STORAGE_EMULATOR_HOST` | a Cloud Storage of your own |
| `PREFECT_API_URL`, `PREFECT_API_AUTH_STRING` | your own Prefect |
| `PREFECT_HOME` | where a Prefect of this machine keeps its records |
| `RAY_ADDRESS` | a Ray cluster that cleans rows |
| `MLFLOW_TRACKING_URI`, `TRACKIO_PROJECT`, `WANDB_PROJECT`, ... | every run is sent there, live |
"""


def page() -> str:
    """The whole page as Markdown."""
    options = options_by_name()
    parts = [HEAD, "## Commands\n"]
    for title, group in GROUPS.items():
        names = ", ".join(f"[{one.__name__}](#{one.__name__})" for one in group)
        parts.append(f"{title}: {names}.\n")
    parts += [_command(one, options) for one in COMMANDS]
    parts += [
        "## Settings\n",
        "Environment variables; options of a command win over them. None changes a stage's key."
        " All commands except `init`, `run`, `rehearse` and `serve` give a bucket up after 30 s"
        " unless `LYCEUM_STORE_SECONDS` is set.\n",
    ]
    parts += [_settings(model) for model in (Settings, TpuSettings)]
    return "\n".join(parts).rstrip("\n") + "\n" + TAIL


def _command(command: Any, options: dict[str, tuple[str, dict[str, Any]]]) -> str:
    shown, rows = [f"lyceum {command.__name__}"], []
    for choice in COMMANDS[command].split():
        usages = []
        for name in choice.split("|"):
            flag, settings = options[name]
            value = settings.get("metavar", "")
            usage = f"{flag} {value}".strip() if flag.startswith("-") else value
            usages.append(usage)
            rows.append(f"| `{usage}` | {settings['help']} |")
        place, many = not flag.startswith("-"), settings.get("nargs")
        needed = settings.get("required") or len(usages) > 1 or (place and many != "?")
        usage = " or ".join(usages) + " ..." * (many == "+")
        shown.append(usage if needed else f"[{usage}]")
    text = inspect.cleandoc(command.__doc__ or "")
    table = ["| option | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(
        [f"### {command.__name__}\n", f"```\n{' '.join(shown)}\n```\n", text, "", *table]
    )


def _settings(model: type[Settings] | type[TpuSettings]) -> str:
    rows = ["| variable | what | default |", "|---|---|---|"]
    for names, text in _attributes(inspect.cleandoc(model.__doc__ or "")):
        variables = ", ".join(f"`{model.PREFIX}{name.upper()}`" for name in names)
        rows.append(f"| {variables} | {text} | {_default(model, names[0])} |")
    return "\n".join(rows) + "\n"


def _attributes(text: str) -> list[tuple[list[str], str]]:
    """Names and text of each entry of a docstring's `Attributes:`."""
    body = inspect.cleandoc(text.split("Attributes:\n")[1])
    entries = re.findall(r"^([a-z_, ]+): (.*(?:\n .*)*)", body, re.M)
    return [(names.split(", "), re.sub(r"\s+", " ", said)) for names, said in entries]


def _default(model: type[Settings] | type[TpuSettings], name: str) -> str:
    """As it is written into a variable."""
    if name in OF_THE_MACHINE:
        return OF_THE_MACHINE[name]
    value = model.model_fields[name].get_default(call_default_factory=True)
    if value in (None, "", (), {}):
        return "none"
    if isinstance(value, bool | float):
        value = f"{value:g}"
    return f"`{value}`"


TAKES_HEAD = """| recipe | target | time | USD | and what these take | most HBM, GiB | fits, 9 h | |
|---|---|---|---|---|---|---|---|
"""


def recipes_page() -> str:
    """docs/recipes.md with the table of what recipes take."""
    text = RECIPES.read_text(encoding="utf-8")
    before, found, rest = text.partition(TAKES_HEAD)
    if not found:
        raise ValueError(f"{RECIPES} has no table that begins with {TAKES_HEAD}")
    after = re.sub(r"\A(\|.*\n)*", "", rest)
    return before + TAKES_HEAD + "".join(f"{_taken(row)}\n" for row in takes()) + after


def _taken(row: Takes) -> str:
    memory = f"{row.most_gib} of {row.limit_gib}" if row.limit_gib else row.most_gib
    said = "planned" if row.by == "plan" else "measured"
    cells = (
        f"`{row.recipe}`",
        row.target,
        duration(60 * row.minutes).removesuffix(" 0 s"),
        f"{row.usd:.2f}",
        row.without.replace(" ", ", "),
        memory,
        row.fits,
        " ".join((f"{said} {row.date}", *(f"`--set {one}`" for one in row.settings.split()))),
    )
    return f"| {' | '.join(cells)} |"


def write() -> None:
    """Bring both pages up to date."""
    for path, text in ((PAGE, page()), (RECIPES, recipes_page())):
        path.write_text(text, encoding="utf-8", newline="\n")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    write()
