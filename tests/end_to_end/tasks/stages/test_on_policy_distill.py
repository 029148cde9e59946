"""On-policy distillation: a student that comes to write as its teacher."""

from pathlib import Path

import pytest

from tasks.contract.job import read_rows
from tasks.stages.on_policy_distill import run
from tests.tasks.stages.bench import TEACHER, model
from tests.tasks.stages.test_on_policy_distill import HALF, config, stage

pytestmark = pytest.mark.usefixtures("one_layer")


RUNS = {
    "policy_gradient": {"steps": 12, "num_iterations": 2, "micro_batch_size": 8, "log_every": 6},
    "gkd": {**HALF, "steps": 9, "log_every": 3},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_student_comes_to_write_as_its_teacher(name: str, tmp_path: Path) -> None:
    """Both begin at random; the teacher is of another size, and sure of what comes next."""
    table = config(optimizer={"learning_rate": 1e-2}, **RUNS[name])
    teacher = model(TEACHER, 1)
    teacher.model.final_norm.set_value(teacher.model.final_norm.get_value() + 3.0)
    job = stage(tmp_path, table, teacher=teacher)
    run(job)
    curve = list(read_rows(job.out / "curves.jsonl"))
    logged = [1, *range(table.log_every, table.steps + 1, table.log_every)]
    assert [row["step"] for row in curve] == logged
    assert curve[-1]["reverse_kl"] < 0.2 * curve[0]["reverse_kl"]
    assert curve[-1]["entropy"] < 0.5 * curve[0]["entropy"]
    assert {"loss", "teacher_logp", "completion_tokens", "truncated", "unscored"} <= set(curve[0])
    rolled = [step if step % 2 or table.num_iterations == 1 else step - 1 for step in logged]
    assert sorted({row["step"] for row in read_rows(job.out / "rollouts.jsonl")}) == sorted(
        set(rolled)
    )
