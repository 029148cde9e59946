"""What a person reads of a run: what will happen and for how long, what a stage made, and what to
try next."""

import re

from prefect.artifacts import Artifact


def test_a_run_begins_with_what_it_will_do_and_ends_with_what_to_try(again, capsys):
    """Another seed takes as long as the one before; other quotas nobody has measured."""
    lab = again
    assert lab.run_people("--set", "stages.rebalance.config.seed=7") == 0
    said = capsys.readouterr()
    first, second = said.err.splitlines()[:2]
    assert first == "2 stages, 1 cached: distill. To run: rebalance."
    assert re.fullmatch(r"About \d.* as in earlier runs\.", second)
    made = Artifact.get("rebalance-made")
    assert f"{lab.store_path}/artifacts/rebalance/" in str(made.data), "a link to what it made"
    *_, title, scores, report, runs = said.out.splitlines()
    assert title == "Next:"
    at = f"--store {lab.store_path}"
    assert re.match(rf"  lyceum scores tiny-\S+ --to scores {at}   # ", scores)
    assert re.match(rf"  lyceum report tiny-\S+ {at}   # ", report)
    assert runs.startswith(f"  lyceum runs {at}   # ")
    assert lab.run_people("--set", "stages.rebalance.config.quotas.summarization.train=11") == 0
    assert "No estimate yet: no earlier run has timed rebalance." in capsys.readouterr().err
