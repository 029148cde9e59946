"""Training with a teacher behind an endpoint: the same bytes after a kill."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.stages import on_policy_distill
from tests.fakes.scoring_server import ScoringServer
from tests.tasks.distillation.test_teacher_logps import TABLE, serve, teacher  # noqa: F401
from tests.tasks.stages.bench import Bench, content
from tests.tasks.stages.test_on_policy_distill import config, stage

pytestmark = pytest.mark.usefixtures("one_layer")


def test_a_killed_stage_asks_for_nothing_again_and_ends_with_the_same_bytes(
    serve: Callable[..., ScoringServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics included: what the teacher has cost is that of all attempts."""
    server = serve()
    table = config(
        steps=4, num_iterations=2, log_every=1, teacher={**TABLE, "input_usd_per_million": 1.0}
    )
    inputs, written = stage(tmp_path, table).inputs, table.model_dump(mode="json")
    outs = []
    for name, point in (("whole", None), ("killed", ("step", 4, "before"))):
        (tmp_path / name).mkdir()
        server.seen.clear()
        bench = Bench(tmp_path / name, inputs, monkeypatch)
        outs.append(bench.attempt(on_policy_distill, written, "key", point, every=1))
        if point is not None:
            outs[-1] = bench.attempt(on_policy_distill, written, "key")
        assert len(server.seen) == 32
    assert content(outs[0]) == content(outs[1])
