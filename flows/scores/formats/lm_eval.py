"""Results as lm-evaluation-harness (0.4) writes them with `--log_samples --output_path
DIR/lm_eval`.

    <run>__<model>/results_<time>.json          one per evaluation: rates, standard errors of tasks
    <run>__<model>/samples_<task>_<time>.jsonl  one per task: prompts, greedy answers, their rates

A task is a suite: `<kind>_<suite>`. A rate of a sample is 1.0 or 0.0; null, and not among its
`metrics`, where the answer is outside the rate's denominator. Sampled answers have no place in this
format and are left out.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from flows.runs.results import RunResults
from flows.scores import Format
from flows.scores.evaluations import PROMPT_FIELDS, Evaluation, evaluations, flat_fields, moment
from schemas.evaluation import EvalItem
from tasks.contract.job import write_jsonl

FILTER = "none"


def write(run: RunResults, directory: Path) -> int:
    """Write a results file and its samples files per evaluation; returns the number of files."""
    count = 0
    for one in evaluations(run):
        place = directory / _clean(one.model)
        place.mkdir(exist_ok=True)
        # Two evaluations of a model may have begun at once: each has a microsecond of its own.
        place_in_recipe = one.run.recipe.stages.index(one.stage.spec)
        time = moment(one.started) + timedelta(microseconds=place_in_recipe)
        date = time.replace(tzinfo=None).isoformat(timespec="microseconds").replace(":", "-")
        samples = {
            _task(one, suite): [_sample(one, *numbered) for numbered in enumerate(items)]
            for suite, items in one.suites.items()
        }
        results = json.dumps(_results(one, samples), indent=2, ensure_ascii=False)
        (place / f"results_{date}.json").write_text(results, encoding="utf-8")
        for task, rows in samples.items():
            write_jsonl(place / f"samples_{task}_{date}.jsonl", rows)
        count += 1 + len(samples)
    return count


def _clean(model: str) -> str:
    """Shorten a model's name as `lm_eval.utils.sanitize_model_name` does."""
    return re.sub(r"[\"<>:/|\\?*\[\]]+", "__", model)


def _task(one: Evaluation, suite: str) -> str:
    return re.sub(r"\W", "_", f"{one.kind}_{suite}")


def _results(one: Evaluation, samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    tasks = {_task(one, suite): items for suite, items in one.suites.items()}
    return {
        "results": {task: _rates(one, task, items) for task, items in tasks.items()},
        "group_subtasks": {},
        "configs": {_task(one, suite): _config(one, suite) for suite in one.suites},
        "versions": dict.fromkeys(tasks, one.manifest.version),
        "n-shot": dict.fromkeys(tasks, one.config("shots") or 0),
        "higher_is_better": {task: dict.fromkeys(one.better_if_higher, True) for task in tasks},
        "n-samples": {
            task: {"original": len(items), "effective": len(items)} for task, items in tasks.items()
        },
        "config": {
            "model": "lyceum",
            "model_args": {"pretrained": one.model, "base": one.run.recipe.model},
            "batch_size": one.config("batch_size"),
            "batch_sizes": [],
            "device": None,
            "use_cache": None,
            "limit": None,
            "bootstrap_iters": 0,
            "gen_kwargs": {},
            **dict.fromkeys(
                ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), one.config("seed")
            ),
        },
        "git_hash": one.manifest.execution.get("git"),
        "date": one.started,
        "pretty_env_info": json.dumps(one.manifest.execution.get("packages", {})),
        "transformers_version": None,
        "lm_eval_version": None,
        "upper_git_hash": None,
        "task_hashes": {
            task: content_hash("".join(map(identity, rows))) for task, rows in samples.items()
        },
        "model_source": "lyceum",
        "model_name": one.model,
        "model_name_sanitized": _clean(one.model),
        "system_instruction": None,
        "system_instruction_sha": None,
        "fewshot_as_multiturn": True if one.config("shots") else None,
        "chat_template": None,
        "chat_template_sha": None,
        "total_evaluation_time_seconds": str(one.seconds),
    }


def _rates(one: Evaluation, task: str, items: Sequence[EvalItem]) -> dict[str, Any]:
    rates: dict[str, Any] = {"name": task, "alias": task, "sample_len": len(items)}
    for name, mean in one.means(items).items():
        rates[f"{name},{FILTER}"] = mean.value
        rates[f"{name}_stderr,{FILTER}"] = "N/A" if mean.stderr is None else mean.stderr
    return rates


def _config(one: Evaluation, suite: str) -> dict[str, Any]:
    metrics = [
        {"metric": name, "aggregation": "mean"}
        | ({"higher_is_better": True} if name in one.better_if_higher else {})
        for name in one.outcomes
    ]
    return {
        "task": _task(one, suite),
        "dataset_path": suite,
        "output_type": "generate_until",
        "generation_kwargs": _generation(one),
        "description": one.config("instructions", ""),
        "num_fewshot": one.config("shots") or 0,
        "metric_list": metrics,
        "repeats": 1,
        "should_decontaminate": False,
        "metadata": {
            "version": one.manifest.version,
            "run": one.run.run_id,
            "stage": one.stage.name,
            "artifact": one.manifest.digest,
        },
    }


def _generation(one: Evaluation) -> dict[str, Any]:
    return {"do_sample": False, "temperature": 0.0, "max_gen_toks": one.config("response_length")}


def _sample(one: Evaluation, number: int, item: EvalItem) -> dict[str, Any]:
    doc, asked = flat_fields(item, PROMPT_FIELDS), one.asked(item)
    scores = {name: outcome(item) for name, outcome in one.outcomes.items()}
    return {
        "doc_id": number,
        "doc": doc,
        "target": item.answer,
        "arguments": {"gen_args_0": {"arg_0": asked, "arg_1": _generation(one)}},
        "resps": [[item.completion]],
        "filtered_resps": [item.completion],
        "filter": FILTER,
        "metrics": [name for name, value in scores.items() if value is not None],
        "doc_hash": content_hash(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": content_hash(asked),
        "target_hash": content_hash(item.answer),
        **{name: None if value is None else float(value) for name, value in scores.items()},
    }


def identity(row: dict[str, Any]) -> str:
    return str(row["doc_hash"] + row["prompt_hash"] + row["target_hash"])


def content_hash(text: str) -> str:
    """Hash a string as `lm_eval.utils.hash_string` does."""
    return hashlib.sha256(text.encode()).hexdigest()


FORMAT = Format(write=write)
