"""inspect_ai, lm_eval and TensorBoard, where they are installed, read what `lyceum scores` writes
for them."""

from pathlib import Path

import pytest

from tests.flows.scores import test_scores
from tests.flows.scores.test_scores import Lab

lab = test_scores.lab


def test_inspect_ai_reads_the_logs_and_finds_the_same_metrics(lab: Lab) -> None:
    log_api = pytest.importorskip("inspect_ai.log")
    logs = log_api.list_eval_logs(str(lab.out / "inspect_ai"))
    assert len(logs) == 10
    for info in logs:
        log = log_api.read_eval_log(info)
        written = {
            score.name: {name: metric.value for name, metric in score.metrics.items()}
            for score in log.results.scores
        }
        log_api.recompute_metrics(log)
        found = {
            score.name: {name: metric.value for name, metric in score.metrics.items()}
            for score in log.results.scores
        }
        assert set(found) == set(written)
        for name, metrics in written.items():
            assert found[name] == pytest.approx(metrics), (log.eval.task_display_name, name)


def test_lm_eval_shows_the_results(lab: Lab) -> None:
    utils = pytest.importorskip("lm_eval.utils")
    table = utils.make_table(lab.results("grpo", "reasoning_eval_gsm8k"))
    assert "|reasoning_eval_gsm8k  |" in table
    files = [str(path) for path in (lab.out / "lm_eval").rglob("*.json*")]
    assert len(utils.get_results_filenames(files)) == 6
    [name] = [
        Path(path).name
        for path in utils.get_sample_results_filenames(files)
        if "grpo/samples_safety_eval_xstest" in path
    ]
    assert utils.get_file_task_name(name) == "safety_eval_xstest"


def test_tensorboard_reads_the_events(lab: Lab) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(lab.out / "tensorboard" / "sft")).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 40))
