"""`lyceum scores`: what other tools read of a run, against structures recorded from those tools,
and by the tools where they are installed.

`score_formats.json` is from inspect_ai 0.3.285 (the fields of its log's models) and lm_eval 0.4.13
(files of a run of a toy task).
"""

import errno
import json
import math
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.main import main
from flows.scores.evaluations import mean_of
from flows.scores.formats import lm_eval
from tests.flows.runs.synthetic_run import write_run

RECORDED = json.loads((Path(__file__).parent / "score_formats.json").read_text(encoding="utf-8"))


class Lab:
    """A run with two suites of 24 prompts, three samples of each prompt (the second is wrong) and
    requests; and all formats of it.

    `grpo` answers three of four prompts rightly.
    """

    def __init__(self, root: Path) -> None:
        config = {"instructions": "Think.", "response_length": 64, "seed": 7, "shots": 4}
        config["sampling"] = {"samples": 3, "temperature": 0.8}
        sizes = {"suites": ("heldout", "gsm8k"), "samples": 3, "per_domain": 4, "requests": 4}
        self.store, self.record = write_run(
            root / "store", text=' "é"', config={"grpo_eval": config}, **sizes
        )
        self.out = root / "out"
        self.command = ["scores", self.record.run_id, "--store", self.store.uri, "--json"]
        assert main([*self.command, "--to", str(self.out)]) == 0

    def log(self, stage: str, task: str) -> dict[str, Any]:
        """The inspect_ai log of a stage's task."""
        logs = [json.loads(path.read_text()) for path in (self.out / "inspect_ai").glob("*.json")]
        wanted = (stage, task)
        named = {(one["eval"]["metadata"]["stage"], one["eval"]["task"]): one for one in logs}
        return dict(named[wanted])

    def results(self, model: str, task: str) -> dict[str, Any]:
        """The lm_eval results of a model that hold a task."""
        files = (self.out / "lm_eval" / f"demo-1__{model}").glob("results_*.json")
        values = [json.loads(path.read_text(encoding="utf-8")) for path in files]
        [found] = [value for value in values if task in value["results"]]
        return dict(found)

    def samples(self, model: str, task: str) -> list[dict[str, Any]]:
        [path] = (self.out / "lm_eval" / f"demo-1__{model}").glob(f"samples_{task}_*.jsonl")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("scores"))


def test_a_standard_error_is_that_of_the_harnesses_and_a_prompt_counts_once() -> None:
    """Prompts a: 1, 0 (mean 1/2), b: 1, c counts nowhere. Mean 3/4; sd with n - 1 = sqrt(2 *
    (1/4)^2 / 1); / sqrt 2 = 1/4."""
    mean = mean_of([("a", True), ("a", False), ("b", True), ("c", None)])
    assert (mean.value, mean.stderr, mean.n, mean.left_out) == (0.75, pytest.approx(0.25), 2, 1)
    assert mean_of([("a", True)]).stderr is None  # type: ignore[union-attr]
    assert mean_of([("a", None)]) is None


# inspect_ai


def check_fields(value: Any, path: str) -> None:
    """All keys are fields of inspect_ai's model at this path, and none that it requires is
    missing."""
    known = RECORDED["inspect_ai"]["fields"].get(path)
    if isinstance(value, list):
        for one in value:
            check_fields(one, path)
    elif isinstance(value, dict):
        if known:
            every = {*known["required"], *known["optional"]}
            assert set(known["required"]) <= set(value) <= every, path
        for name, inner in value.items():
            below = f"{path}.{name}".lstrip(".")
            starred = f"{path}.*"
            check_fields(inner, starred if starred in RECORDED["inspect_ai"]["fields"] else below)


def test_a_log_has_the_fields_of_inspect_ai_and_no_others(lab: Lab) -> None:
    paths = sorted((lab.out / "inspect_ai").glob("*.json"))
    assert len(paths) == 4 + 4 + 2, "four reasoning evaluations, their samples, two of safety"
    for path in paths:
        log = json.loads(path.read_text(encoding="utf-8"))
        check_fields(log, "")
        task, task_id = log["eval"]["task"].replace("_", "-"), log["eval"]["task_id"]
        assert path.stem == f"2023-11-14T22-13-20-00-00_{task}_{task_id}"


def test_a_log_has_every_answer_and_rate(lab: Lab) -> None:
    log = lab.log("grpo_eval", "reasoning_eval")
    about = log["eval"]
    assert (about["model"], about["dataset"]["name"]) == ("lyceum/demo-1/grpo", "heldout, gsm8k")
    assert about["model_generate_config"] == {"max_tokens": 64, "temperature": 0.0, "seed": 7}
    assert len(log["samples"]) == 48
    [exact] = [score for score in log["results"]["scores"] if score["name"] == "exact_answer"]
    rates = {name: metric["value"] for name, metric in exact["metrics"].items()}
    assert rates.pop("stderr") == pytest.approx(math.sqrt(0.75 * 0.25 / 47))
    assert rates == {"mean": 0.75, "heldout": 0.75, "gsm8k": 0.75}
    sample = log["samples"][0]
    assert sample["input"] == "Think.\n\nheld math 0: what is 0 + 1?"
    assert (sample["target"], sample["epoch"]) == ("1", 1)
    said = '<reasoning>I look. "é"</reasoning>\n<answer>1</answer>'
    assert sample["output"]["completion"] == sample["messages"][1]["content"] == said
    assert sample["scores"]["exact_answer"] == {"value": 1.0, "answer": "1"}
    kept = {"suite": "heldout", "domain": "math", "family": "sums"}
    assert sample["metadata"].items() >= kept.items()


def test_sampled_answers_are_epochs_of_a_log_of_their_own(lab: Lab) -> None:
    """Three of four prompts are right in two of three samples: 1/2."""
    log = lab.log("grpo_eval", "reasoning_eval_sampled")
    assert log["eval"]["config"]["epochs"] == 3
    assert log["eval"]["model_generate_config"]["temperature"] == 0.8
    assert sorted({sample["epoch"] for sample in log["samples"]}) == [1, 2, 3]
    [exact] = [score for score in log["results"]["scores"] if score["name"] == "exact_answer"]
    assert exact["metrics"]["mean"]["value"] == pytest.approx(0.5)
    assert exact["scored_samples"] == 48
    spread = math.sqrt((36 * (2 / 3 - 0.5) ** 2 + 12 * 0.25) / 47)
    assert exact["metrics"]["stderr"]["value"] == pytest.approx(spread / math.sqrt(48))


def test_an_answer_outside_a_rate_has_no_score_of_it(lab: Lab) -> None:
    """20 of 60 grounded questions and none of the 4 requests are answerable."""
    log = lab.log("safety_eval", "safety_eval")
    [rate] = [score for score in log["results"]["scores"] if score["name"] == "over_refusal_rate"]
    assert (rate["scored_samples"], rate["unscored_samples"]) == (20, 44)
    scored = [sample for sample in log["samples"] if "over_refusal_rate" in sample["scores"]]
    assert {sample["metadata"].get("grounding") for sample in scored} == {"answerable"}


# lm-evaluation-harness


def test_hashes_are_those_of_lm_eval() -> None:
    rows = RECORDED["lm_eval"]["samples"]
    for row in rows:
        doc = json.dumps(row["doc"], indent=2, ensure_ascii=False)
        hashed = {"doc_hash": doc, "prompt_hash": row["doc"]["q"], "target_hash": row["target"]}
        assert {
            name: lm_eval.content_hash(text) for name, text in hashed.items()
        }.items() <= row.items()
    whole = lm_eval.content_hash("".join(map(lm_eval.identity, rows)))
    assert whole == RECORDED["lm_eval"]["task_hash"]


def test_results_have_the_structure_of_lm_eval(lab: Lab) -> None:
    recorded = RECORDED["lm_eval"]
    value = lab.results("grpo", "reasoning_eval_gsm8k")
    assert sorted(value) == recorded["results"]
    assert sorted(value["config"]) == recorded["config"]
    tasks = {"reasoning_eval_heldout", "reasoning_eval_gsm8k"}
    parts = "results configs versions n-shot higher_is_better n-samples task_hashes"
    assert all(set(value[part]) == tasks for part in parts.split())
    assert {one["num_fewshot"] for one in value["configs"].values()} == {4}
    assert {*value["n-shot"].values()} == {4}
    for config in value["configs"].values():
        assert set(config) <= set(recorded["configs"])
    rates = value["results"]["reasoning_eval_gsm8k"]
    assert {name.replace("exact_answer", "exact_match") for name in rates} >= set(recorded["rates"])
    assert rates["exact_answer,none"] == 0.75
    assert rates["exact_answer_stderr,none"] == pytest.approx(math.sqrt(0.75 * 0.25 / 23))
    better = value["higher_is_better"]["reasoning_eval_gsm8k"]
    assert better == {"exact_answer": True, "format_rate": True}, "more markers are not better"
    assert (value["model_name"], value["model_name_sanitized"]) == ("demo-1/grpo", "demo-1__grpo")


def test_samples_have_the_structure_of_lm_eval_and_their_rates_add_up(lab: Lab) -> None:
    recorded = {name for name in RECORDED["lm_eval"]["sample"] if name != "exact_match"}
    for task in ("reasoning_eval_heldout", "safety_eval_heldout", "safety_eval_xstest"):
        rows = lab.samples("grpo", task)
        rates = lab.results("grpo", task)["results"][task]
        for row in rows:
            assert recorded <= set(row)
            assert sorted(row["arguments"]["gen_args_0"]) == RECORDED["lm_eval"]["arguments"]
            assert all(row[name] in (0.0, 1.0) for name in row["metrics"])
            assert all(row[name] is None for name in set(row) - recorded - set(row["metrics"]))
        for name in {name for row in rows for name in row["metrics"]}:
            values = [row[name] for row in rows if row[name] is not None]
            assert rates[f"{name},none"] == pytest.approx(sum(values) / len(values)), (task, name)
    assert rows[0]["resps"] == [[rows[0]["filtered_resps"][0]]]


def test_the_datasets_library_reads_the_samples(lab: Lab, tmp_path: Path) -> None:
    """As the Hub's viewers of lm_eval's results do."""
    import datasets

    for path in (lab.out / "lm_eval" / "demo-1__grpo").glob("samples_*.jsonl"):
        rows = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path))["train"]
        first = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
        assert rows[0]["doc"]["id"] == first["doc"]["id"]


# Parquet


def test_every_rate_can_be_taken_again_from_parquet(lab: Lab) -> None:
    for record in lab.record.stages:
        if record.kind not in ("reasoning_eval", "safety_eval"):
            continue
        table = pq.read_table(lab.out / "parquet" / f"{record.name}.parquet")
        assert not [field.name for field in table.schema if pa.types.is_null(field.type)]
        rows = [row for row in table.to_pylist() if row["sample"] is None]
        assert table.num_rows == len(rows) * (4 if record.kind == "reasoning_eval" else 1)
        compared = 0
        for name in {f"outcome_{one}" for one in record.metrics} & {*table.column_names}:
            values = [row[name] for row in rows if row[name] is not None]
            rate = pytest.approx(sum(values) / len(values)) if values else None
            assert record.metrics[name.removeprefix("outcome_")] == rate, (record.name, name)
            compared += bool(values)
        assert compared >= 4


def test_all_tables_have_the_same_columns_for_the_same_fields(lab: Lab) -> None:
    one, other = (
        {field.name: str(field.type) for field in pq.read_schema(lab.out / "parquet" / name)}
        for name in ("base_eval.parquet", "safety_eval.parquet")
    )
    shared = one.keys() & other.keys()
    assert shared >= {"prompt", "completion", "domain", "grounding", "sample", "tokens"}
    assert [name for name in shared if one[name] != other[name]] == []
    types = {"prompt": "string", "tokens": "int64", "format": "bool", "tolerance": "double"}
    assert types.items() <= one.items()


# TensorBoard


def scalars(directory: Path) -> Iterator[tuple[str, int, float]]:
    """`(tag, step, value)` of an event file: records of length, checksum, protobuf, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    [path] = directory.glob("events.out.tfevents.*")
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)
        data = data[16 + length :]


def test_curves_and_metrics_are_scalars_of_one_run_per_stage(lab: Lab) -> None:
    place = [stage.name for stage in lab.record.recipe.stages].index("grpo_eval")
    sft, evaluated = (
        {(tag, step): value for tag, step, value in scalars(lab.out / "tensorboard" / name)}
        for name in ("sft", "grpo_eval")
    )
    assert sum(tag == "loss" for tag, _ in sft) == 39
    assert sft["loss", 2] == pytest.approx(1.5)
    assert sft["validation_loss", 39] == pytest.approx(0.5)
    assert evaluated["metrics/exact_answer", place] == pytest.approx(0.75)
    assert evaluated["metrics/domains.math.exact_answer", place] == pytest.approx(0.75)


# The command


def test_only_what_is_asked_for_is_written(lab, tmp_path, lyceum):
    twice = "--as", "parquet", "--as", "parquet"
    value = lyceum(*lab.command, "--to", tmp_path / "new", *twice).json
    assert list(value["formats"]) == ["parquet"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["parquet"]
    assert all((tmp_path / "new" / name).is_file() for name in value["formats"]["parquet"])


def test_bad_input_is_refused_and_leaves_nothing(lab, tmp_path, lyceum):
    new = tmp_path / "new"
    for arguments, said in (
        (["--to", lab.out], "is not empty; give the name of a new directory"),
        (["--to", "/proc/nowhere/new"], "/proc/nowhere/new cannot be written"),
        (["--to", new, "--as", "csv"], "Valid: inspect_ai, lm_eval, parquet, tensorboard."),
    ):
        assert said in lyceum(*lab.command, *arguments, code=2).err
    store, record = write_run(tmp_path / "store", "early", stop_before="base_eval")
    early = ["scores", record.run_id, "--store", store.uri, "--to", new]
    nothing = "run 'early' has nothing for inspect_ai: no evaluation"
    assert nothing in lyceum(*early, "--as", "inspect_ai", code=2).err
    assert [path.name for path in tmp_path.iterdir()] == ["store"], "no half of a directory"
    lyceum(*early)  # its data stages have metrics
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tensorboard"]


def test_a_full_disk_is_one_message_and_no_thread_is_left(lab, tmp_path, lyceum, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("tensorboardX.record_writer.RecordWriter.flush", full)
    threads = threading.active_count()
    new = "--to", tmp_path / "new", "--as", "tensorboard"
    said = lyceum(*lab.command, *new, code=2).err
    assert "new cannot be written: No space left on device" in said
    assert (threading.active_count(), [*tmp_path.iterdir()]) == (threads, [])
