"""Logs of inspect_ai (its format 2, read by inspect_ai 0.3): `inspect view --log-dir
DIR/inspect_ai`, `inspect_ai.log.read_eval_log`.

One log per evaluation, task and file named as inspect_ai names them; a second one,
`<kind>_sampled`, of answers that were sampled, with an epoch per sample. Every rate is a score of
its own, 1.0 or 0.0 of a sample that counts and absent of one that does not, with inspect_ai's
metrics mean, stderr and, of each suite, grouped mean: `inspect_ai.log.recompute_metrics` finds the
same numbers.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.runs.results import RunResults
from flows.scores import Format
from flows.scores.evaluations import Evaluation, evaluations, moment, token
from schemas.evaluation import EvalItem
from schemas.examples import parse_trace

_BY_SUITE = {
    "metric": {"type": "metric", "name": "mean", "params": {}},
    "group_key": "suite",
    "all": False,
}
_METRICS = [{"name": f"inspect_ai/{name}", "options": {}} for name in ("mean", "stderr")]
_SHOWN = {"id", "prompt", "answer", "completion", "sample"}
"""Fields of an item that stand elsewhere in a sample than in its metadata."""


def write(run: RunResults, directory: Path) -> int:
    """Write one or two logs per evaluation; returns the number of files."""
    count = 0
    for one in evaluations(run):
        tasks = {one.kind: one.stage.items, f"{one.kind}_sampled": one.stage.samples}
        for task, items in tasks.items():
            if items:
                log = _log(one, task, items)
                created = log["eval"]["created"].replace(":", "-").replace("+", "-")
                name = f"{created}_{task.replace('_', '-')}_{log['eval']['task_id']}.json"
                text = json.dumps(log, indent=1, ensure_ascii=False, allow_nan=False)
                (directory / name).write_text(text, encoding="utf-8")
                count += 1
    return count


def _log(one: Evaluation, task: str, items: Sequence[EvalItem]) -> dict[str, Any]:
    created = moment(one.started).isoformat(timespec="seconds")
    ended = moment(one.started + one.seconds).isoformat(timespec="seconds")
    epochs = max((item.sample or 0) + 1 for item in items)
    ids = list(dict.fromkeys(item.id for item in items))
    sampling = one.config("sampling") if items[0].sample is not None else None
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": token(one.manifest.key, task),
            "run_id": token(one.run.run_id),
            "created": created,
            "task": task,
            "task_id": token(one.run.run_id, one.stage.name, task),
            "task_version": one.manifest.version,
            "task_display_name": f"{one.stage.name}: {task}",
            "dataset": {
                "name": ", ".join(one.suites),
                "samples": len(ids),
                "sample_ids": ids,
                "shuffled": False,
            },
            "model": f"lyceum/{one.model}",
            "model_generate_config": _generation(one, sampling),
            "model_args": {"base": one.run.recipe.model},
            "config": {"epochs": epochs, "epochs_reducer": ["mean"]},
            "packages": {
                name: version
                for name, version in one.manifest.execution.get("packages", {}).items()
                if version
            },
            "metadata": {
                "run": one.run.run_id,
                "stage": one.stage.name,
                "artifact": one.manifest.ref().model_dump(mode="json"),
            },
            "scorers": [
                {"name": name, "options": {}, "metrics": _metrics(one)} for name in one.means(items)
            ],
        },
        "plan": {"name": "plan", "steps": [{"solver": "generate", "params": {}}], "config": {}},
        "results": {
            "total_samples": len(items),
            "completed_samples": len(items),
            "scores": _scores(one, items),
        },
        "stats": {"started_at": created, "completed_at": ended},
        "samples": [_sample(one, task, item) for item in items],
    }


def _generation(one: Evaluation, sampling: dict[str, Any] | None) -> dict[str, Any]:
    temperature = sampling["temperature"] if sampling else 0.0
    config = {"max_tokens": one.config("response_length"), "temperature": temperature}
    config["seed"] = one.config("seed")
    return {name: value for name, value in config.items() if value is not None}


def _metrics(one: Evaluation) -> list[dict[str, Any]]:
    grouped = {"name": "inspect_ai/grouped", "options": _BY_SUITE}
    return [*_METRICS, *[grouped] * (len(one.suites) > 1)]


def _scores(one: Evaluation, items: Sequence[EvalItem]) -> list[dict[str, Any]]:
    """The results: one score per rate that counts anything."""
    by_suite = {
        suite: one.means([item for item in items if item.suite == suite])
        for suite in (one.suites if len(one.suites) > 1 else ())
    }
    scores = []
    for name, mean in one.means(items).items():
        metrics: dict[str, dict[str, Any]] = {
            "mean": {"name": "mean", "value": mean.value, "params": {}},
            # inspect_ai also says 0 for one sample
            "stderr": {"name": "stderr", "value": mean.stderr or 0.0, "params": {}},
        }
        for suite, means in by_suite.items():
            if name in means:
                metrics[suite] = {
                    "name": suite,
                    "group": "grouped",
                    "value": means[name].value,
                    "params": _BY_SUITE,
                }
        counts = {"scored_samples": mean.n, "unscored_samples": mean.left_out}
        score = {"name": name, "scorer": name, "reducer": "mean", **counts, "params": {}}
        scores.append({**score, "metrics": metrics})
    return scores


def _sample(one: Evaluation, task: str, item: EvalItem) -> dict[str, Any]:
    trace = parse_trace(item.completion, item.channels)
    answer = trace.answer if trace else item.completion
    asked, model = one.asked(item), f"lyceum/{one.model}"
    message = {"role": "assistant", "content": item.completion, "source": "generate"}
    message["model"] = model
    usage = {"output_tokens": item.tokens, "total_tokens": item.tokens}
    details = item.model_dump(mode="json", exclude=_SHOWN, exclude_none=True)
    return {
        "id": item.id,
        "epoch": (item.sample or 0) + 1,
        "input": asked,
        "target": item.answer,
        "messages": [{"role": "user", "content": asked, "source": "input"}, message],
        "output": {
            "model": model,
            "choices": [
                {"message": message, "stop_reason": "max_tokens" if item.truncated else "stop"}
            ],
            "completion": item.completion,
            "usage": usage,
        },
        "scores": {
            name: {"value": float(value), "answer": answer}
            for name, outcome in one.outcomes.items()
            if (value := outcome(item)) is not None
        },
        "metadata": details,
        "model_usage": {model: usage},
        "uuid": token(one.run.run_id, one.stage.name, task, item.id, str(item.sample)),
    }


FORMAT = Format(write=write)
