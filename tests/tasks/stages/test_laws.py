"""What holds for every kind that computes: `lyceum plan` compiles what runs, each program is
compiled once, and a stage that is killed again and again ends with the bytes of an undisturbed one,
and repeats no more than its last interval.

Here for two that differ most; tests/end_to_end has the others, which are built of the same parts.
"""

import logging
import re
from pathlib import Path

import pytest

from schemas.base import StageFailed
from tasks.stages import sft
from tasks.training import loop as training
from tests.tasks.stages.bench import CASES, SFT, Bench, keeps_the_laws, write_inputs

pytestmark = pytest.mark.usefixtures("one_layer")

QUICK = ("sft", "reasoning_eval")


@pytest.fixture(scope="module")
def inputs(one_layer: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def bench(tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, inputs, monkeypatch)


@pytest.mark.parametrize("name", QUICK)
def test_a_kind_keeps_the_laws(name: str, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lyceum")
    keeps_the_laws(name, bench)
    resumed = r"resuming at step 2 of 6 from checkpoint 00000002-\d, written \d+ s ago"
    assert name.endswith("_eval") or re.search(resumed, caplog.text)


def test_the_bytes_of_a_base_model_are_part_of_the_key_of_each_kind_that_begins_with_one() -> None:
    for case in CASES.values():
        config = case.kind.Config.parse(case.table)
        if hasattr(config, "model"):
            assert "model" in case.kind.KIND.dependencies(config, None), case.kind.__name__


def test_validation_and_checkpoints_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Validation before the first step and after 3 and 6, checkpoints after 2, 4 and 6: where both
    are due, validation comes first."""
    monkeypatch.setattr(training, "validate", bench.watched("validate", training.validate))
    bench.attempt(sft, SFT, "key", inputs={"policy": ""})
    order = [
        "validate", "step", "step", "save", "step", "validate", "step", "save", "step", "step",
        "validate", "save", "model",
    ]  # fmt: skip
    assert [name for name in bench.trace if name != "seal"] == order


def test_a_checkpoint_is_saved_only_when_the_steps_it_follows_are_finished(bench, monkeypatch):
    """The loss of the newest step is read, and refused if it is not finite, before a checkpoint can
    hold what came of it."""
    batch, nan = sft.batch, float("nan")
    monkeypatch.setattr(
        sft, "batch", lambda packed, chosen, scale: batch(packed, chosen, scale * nan)
    )
    with pytest.raises(StageFailed, match="loss is nan at step 1"):
        bench.attempt(sft, SFT, "key", every=1, inputs={"policy": ""})
    assert bench.checkpoints("key") == []
