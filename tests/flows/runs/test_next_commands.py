"""The last lines of a run are commands that there are."""

import re
import shlex
from pathlib import Path

import pytest

from flows.cli.main import parser
from flows.recipe.overrides import TINY
from flows.runs.next_commands import copied, next_commands
from infra.context import context
from infra.store.location import parsed_location
from tests.flows.runs.synthetic_run import without, write_run


@pytest.mark.parametrize(
    ("stop", "failure", "commands"),
    [
        (None, None, ["ask", "gate", "export"]),
        ("sft", "the loss is nan", ["report", "rehearse", "doctor"]),
        ("sft", None, ["scores", "report", "runs"]),
    ],
)
def test_three_commands_that_parse(stop, failure, commands, tmp_path):
    given = {"stop_before": stop, "failure": failure} if stop else {}
    _, record = write_run(tmp_path, **given)  # type: ignore[arg-type]
    more = "rows", (TINY, "seed=3"), [Path("mine.py")]
    commands_ = next_commands(record, "my.toml", "/a store", *more)
    said = [re.sub(r"   # .*", "", one) for one in commands_]
    words = [shlex.split(one) for one in said]
    assert [one[:2] for one in words] == [["lyceum", command] for command in commands]
    for one in words:
        options = parser().parse_args(one[1:])
        assert options.store == "/a store"
        if one[1] == "rehearse":  # it is small already, and reads the same rows and code
            given = options.data, options.overrides, options.code
            assert given == (Path("rows"), ["seed=3"], [Path("mine.py")])


def test_a_store_that_is_the_default_one_is_not_written():
    default = context().settings.store
    for same in (default, parsed_location(default).as_uri()):
        assert copied("runs", store=same) == "lyceum runs"
    other = copied("plan", "my.toml", store="gs://b/p", target="v5e-8", overrides=(TINY, "seed=3"))
    given = "--store gs://b/p --target v5e-8 --tiny --set seed=3"
    assert other == f"lyceum plan my.toml {given}"


def test_after_a_failure_on_a_tpu_doctor_looks_at_the_cloud(tmp_path):
    _, record = write_run(tmp_path, stop_before="sft", failure="no quota")
    on_tpu = record.model_copy(update={"target": "v5e-8"})
    doctor = next_commands(on_tpu, "my.toml", "gs://b/p")[-1]
    assert doctor.startswith("lyceum doctor --store gs://b/p --target v5e-8   # ")


def test_no_gate_is_offered_where_the_base_was_not_asked(tmp_path):
    record = without(write_run(tmp_path)[1], "base_eval", "base_safety")
    [_, second, _] = next_commands(record, "my.toml", record.store)
    assert second.startswith("lyceum report ")
