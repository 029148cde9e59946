"""`lyceum rejudge`: a finished run's GRPO stage under other rewards, rubrics or weights, without
sampling anything. It loads JAX into its own process, for the advantages.

What is judged anew is kept in the store like any ruling. The page, and the ledger as it would have
been, lie with the run: `runs/<run>/rejudge-<digest>.html` and `.ledger.jsonl.gz`; the digest is
that of what the file says.
"""

import gzip
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from flows.cli.ask import start_jax
from flows.recipe.trained import finished_stage, sound_artifact
from flows.report import blocks as ui
from flows.report.html import page, write_page
from flows.runs.record import run_folder
from infra.store.answers import Answers
from infra.store.store import Store
from schemas.base import InputError, StrictModel, digest, explain_validation, problem_text
from schemas.examples import Prompt
from schemas.ledger import LedgerRow
from schemas.reports import RunRecord
from schemas.rubrics import Rubric
from schemas.toml import toml_table, toml_text
from tasks.contract.job import read_jsonl, write_jsonl
from tasks.contract.kinds import stage_kind
from tasks.contract.reward import REWARDS, Resources
from tasks.reinforcement.rewarding import parse_rewards

LEDGER = "ledger.jsonl.gz"
MOST_ROWS = 40
"""Rows of the table on the terminal; of more updates it shows every n-th."""


class Wanted(StrictModel):
    """The file that says how to judge.

    ```toml
    rubrics = "rubrics.jsonl"        # beside this file, as a rubrics stage writes it; without it,
                                     the run's own
    [[rewards]]
    name = "rubric_judge"
    aggregation = "explicit"
    ...
    ```

    Attributes:
        rewards: as in a recipe; these are all rewards, not additions.
    """

    rewards: tuple[dict[str, Any], ...] = Field(min_length=1)
    rubrics: str | None = None


def rejudge_run(
    store: Store,
    record: RunRecord,
    file: Path,
    stage: str | None,
    usd: float | None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Judge a run's GRPO stage (the last one by default) again.

    Raises:
        InputError: the file is not valid, the run has no such stage, or an artifact is gone.
        StageFailed: a judge gave too few rulings, or an artifact is damaged.
    """
    start_jax()
    from tasks.devices.hosts import halves
    from tasks.reinforcement.rejudge import Stage, rejudge

    wanted, text = _read(file)
    configs = parse_rewards(wanted.rewards, f"{file}: rewards")  # before anything is fetched
    chosen, manifest = finished_stage(store, record, stage, ("grpo",), "ledger")
    inputs = {
        name: store.local_dir(
            sound_artifact(store, ref.kind, ref.key, f"input {name!r} of stage {chosen.name!r}")
        )
        for name, ref in manifest.inputs.items()
        if name != "policy"
    }
    ledger_file = store.local_dir(manifest, {LEDGER}) / LEDGER
    try:
        config = stage_kind("grpo").config.parse(manifest.config)
        asked = read_jsonl(inputs["prompts"] / "prompts.jsonl", Prompt)
        own = read_jsonl(inputs["rubrics"] / "rubrics.jsonl", Rubric) if "rubrics" in inputs else []
        with gzip.open(ledger_file, "rt", encoding="utf-8") as lines:
            rows = [LedgerRow.model_validate_json(line) for line in lines]
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        raise InputError(
            f"another version of Lyceum made stage {chosen.name!r} ({place}: {problem_text(wrong)})"
            "; `lyceum run` with the same recipe makes it by this one."
        ) from error
    with tempfile.TemporaryDirectory() as scratch:
        given = None
        if wanted.rubrics is not None:
            given = _given_rubrics(file.parent / wanted.rubrics)
            write_jsonl(Path(scratch) / "rubrics.jsonl", given)
            inputs["rubrics"] = Path(scratch)
        devices = None
        if any(REWARDS[one.name].models(one) for one in configs):
            devices = halves()[1]
        # judges' accounts follow from the seed, and nothing else: what others have paid is free
        mine, answers = time.time_ns(), Answers(store)
        resources = Resources(inputs, answers, mine, config.response_length, devices)
        prompts = {prompt.id: prompt for prompt in asked}
        about = Stage(config, manifest.dependencies, prompts, _criteria(own))
        criteria = None if given is None else _criteria(given)
        found = rejudge(
            about, rows, wanted.rewards, resources, criteria, usd=usd, progress=progress
        )
    said = [one.model_dump(mode="json") for one in given or ()]
    name = f"{run_folder(record.run_id)}/rejudge-{digest([text, said])[:12]}"
    value = {"run_id": record.run_id, "stage": chosen.name, "file": str(file), **found}
    ledger = (row.model_dump(mode="json") for row in value.pop("ledger"))
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ledger)
    store.write_bytes(f"{name}.ledger.jsonl.gz", gzip.compress(body.encode(), mtime=0))
    return {
        **value,
        "page": write_page(store, f"{name}.html", _page(value)),
        "ledger": store.location(f"{name}.ledger.jsonl.gz"),
    }


def rejudged(value: Mapping[str, Any]) -> Iterator[ui.Block]:
    """The answer of `rejudge_run`, for a terminal."""
    title = f"{value['stage']} of {value['run_id']} under {value['file']}"
    every = -(-len(value["updates"]) // MOST_ROWS)
    yield _updates(value["updates"][:: max(1, every)], title)
    yield from (f"{name}: {sentence(one)}" for name, one in value["rewards"].items())
    yield verdict(value["summary"])
    yield f"Page: {value['page']}"


def _updates(updates: Sequence[Mapping[str, Any]], title: str = "") -> ui.Table:
    rows = []
    for one in updates:
        turned = (one["cosine"] or 0) < 0
        rewards = _text(one["reward_before"]), _text(one["reward_after"])
        sign = ui.Cell(_text(one["cosine"]), "bad" if turned else "plain")
        counts = str(one["step"]), str(one["responses"])
        changed = str(one["changed_sign"]), "reversed" if turned else ""
        rows.append((*counts, *rewards, sign, *changed))
    head = ("update", "responses", "reward", "reward now", "cosine", "advantages of other sign", "")
    return ui.Table(head, rows, title)


def sentence(reward: Mapping[str, Any]) -> str:
    """Say where a reward's values came from."""
    words = {
        "ledger": "as in the ledger",
        "rulings": "the ledger's rulings, weighed again",
        "scored": "scored again",
    }
    if "questions" not in reward:
        return words[reward["from"]]
    asked = f"{reward['new']:.0f} of {reward['questions']:.0f} questions were new"
    return f"{words[reward['from']]}; {asked} and cost ${reward['usd']:.4f}"


def verdict(summary: Mapping[str, Any]) -> str:
    mean = undecided = ""
    if (cosine := summary["cosine_mean"]) is not None:
        mean = f" The mean cosine of the advantages before and after is {cosine:.3f}."
    if count := summary["undecided"]:
        undecided = f", {count} cannot be compared because one of the two teaches nothing"
    return (
        f"The updates on {summary['reversed']} of {summary['rollouts']} rollouts would change"
        f" sign{undecided}; {summary['changed_sign']} of {summary['responses']} responses have an"
        f" advantage of the other sign.{mean}"
    )


def _read(file: Path) -> tuple[Wanted, str]:
    text = toml_text(file, "--rubric")
    try:
        return Wanted.parse(toml_table(text, str(file))), text
    except ValidationError as error:
        raise InputError(explain_validation(error, Wanted, str(file))) from error


def _criteria(rubrics: Sequence[Rubric]) -> dict[str, Any]:
    return {one.id: one.criteria for one in rubrics}


def _given_rubrics(path: Path) -> list[Rubric]:
    place, found = str(path), []
    if not os.path.isfile(path):  # a pipe would wait for ever
        raise InputError(f"rubrics: cannot read {path}: there is no such file.")
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                place = f"{path}, line {number}"
                if line.strip():
                    found.append(Rubric.model_validate_json(line))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"rubrics: cannot read {path}: {error}.") from error
    except ValidationError as error:
        raise InputError(explain_validation(error, Rubric, place)) from error
    if not found:
        raise InputError(f"rubrics: {path} holds none; leave `rubrics` out for the run's own.")
    return found


def _page(value: Mapping[str, Any]) -> str:
    from flows.report import plots

    updates = value["updates"]

    def series(name: str) -> tuple[list[float], list[float]]:
        known = [one for one in updates if one[name] is not None]
        return [one["step"] for one in known], [one[name] for one in known]

    title = "Cosine of the advantages before and after; below 0 the update would change sign"
    means = {"then": series("reward_before"), "now": series("reward_after")}
    drawn = [plots.curve(title, {"cosine": series("cosine")}), plots.curve("Mean reward", means)]
    head = ui.Heading((f"Judged again: {value['stage']} of ", ui.code(value["run_id"])), 1)
    rewards = [(name, sentence(one)) for name, one in value["rewards"].items()]
    main = [
        ui.Heading("Rewards"),
        ui.card(ui.Table(("reward", ui.Column("where its values are from", "wrap")), rewards)),
        ui.Heading("Updates"),
        *ui.grid(drawn),
        ui.Paragraph(_ALONE, "note"),
        ui.Details("All updates", [_updates(updates)], open=True),
    ]
    return page(f"{value['run_id']} judged again", [head, verdict(value["summary"])], main)


_ALONE = (
    "Each update by itself, on the responses that were sampled: with other rewards the policy, and"
    " so later responses, would have been others."
)


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
