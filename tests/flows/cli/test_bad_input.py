"""Bad input: exit code 2, one message that names the value and the fix, no traceback, and nothing
half-written.

What only a running stage can find out (an unfillable quota) and Ctrl-C are in test_flow.py, where
runs are.
"""

import errno
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import create_model

from tests.fakes.recipe import READS, TINY
from tests.flows.lab import start, tree

Fails = Callable[..., str]


@pytest.fixture
def fails(tmp_path: Path, lyceum: Any, monkeypatch: pytest.MonkeyPatch) -> Fails:
    """Run a command line that must fail as bad input; returns its message. The working directory
    must not change."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        before = tree(tmp_path)
        printed = lyceum(*arguments, code=2)
        assert (printed.out, printed.err[:8]) == ("", "lyceum: ")
        assert tree(tmp_path) == before, "something was written"
        return printed.err

    return run


LINES = """
run quickstrat | unknown recipe 'quickstrat'
run nothing_like_it | Valid:
run tiny | unknown recipe 'tiny'. Did you mean tiny.toml? Or give the path of a TOML file.
run tiny.toml --hours soon | argument --hours: 'soon' is no number. See `lyceum run --help`.
run tiny.toml --hours 0 | --hours 0: give a number above 0.
plan tiny.toml --hours nan | --hours nan: give a number above 0.
run tiny.toml --hours inf | --hours inf: give a number above 0, at most 8784.
plan tiny.toml --hours 5e-324 | --hours 4.94066e-324: give a number above 0, at least 1e-09.
plan tiny.toml --usd=-- | --usd=--: -- is no value; give one.
run tiny.toml --seeds few | argument --seeds: 'few' is no whole number. See
run tiny.toml --seeds 1 | One run is `lyceum run` without --seeds.
run tiny.toml --seeds 2 | no stage of recipe 'tiny' trains a model
run ./none.toml | cannot read recipe none.toml
run . | cannot read recipe
run broken.toml | broken.toml is not valid TOML
run broken.toml | line 1
run junk.toml | cannot read recipe junk.toml
run tiny.toml --target v5e-9 | unknown target 'v5e-9'. Did you mean 'v5e-8'?
plan tiny.toml --target v5e-9 | unknown target 'v5e-9'. Did you mean 'v5e-8'?
run tiny.toml --target v5e-8 | a machine in the cloud cannot reach it
run tiny.toml --force distil | has no stage 'distil'. Did you mean 'distill'?
why tiny.toml distil | has no stage 'distil'. Did you mean 'distill'?
run tiny.toml --fast | unrecognized argument '--fast' of `lyceum run`.
run tiny.toml --set seed=1 name=b | Each value has a --set of its own: --set name=b
run tiny.toml --sett seed=1 | Did you mean '--set'?
run tiny.toml --code gone.py | --code gone.py: there is no such file
run tiny.toml --code broken.toml | --code broken.toml: no stage runs it
run marked.toml --force distil | has no stage 'distil'
run nothing.toml | nothing.toml has no stages; add [stages.distill]
run nothing.toml --set stages.sft.config.steps=1 | has no stages
run utf16.toml | byte 0 is not UTF-8; save it as UTF-8
walk | invalid choice: 'walk'. Valid: ask,
rnu | Did you mean 'run'?
run | RECIPE
run quickstart --set stages.grpo.config.rewards=[{name='anser'}] | unknown reward 'anser'
run tiny.toml --set stages.rebalance.config.sead=1 | unknown key 'sead'. Did you mean 'seed'?
run tiny.toml --set stages.rebalance.config.heldout_fraction=nan | is not a finite number
run reads.toml | --data
run reads.toml --data nowhere | --data nowhere: there is no such directory: /
run reads.toml --data tiny.toml | is not a directory
run reads.toml --data empty | --data empty is empty
run reads.toml --data other | rows.jsonl
deploy --pool processes --recipes nowhere | --recipes nowhere is not a directory with recipes
deploy --pool processes --recipes LONG | is not a directory with recipes (*.toml) in it
run tiny.toml --store junk.toml | or a part of it, is a file
plan tiny.toml --store junk.toml | or a part of it, is a file
runs --store junk.toml | or a part of it, is a file
run tiny.toml --store junk.toml/store | is a file
run tiny.toml --store s3://bucket/lyceum | 's3' is not supported
run tiny.toml --store= | the store is empty
run tiny.toml --data= | argument --data: path is empty; give a path.
run stages.9.toml | recipe stages.9.toml: unknown key 'stages.99'
promote tiny-a --why caf\udce9 | an argument: 'caf\\udce9' is not valid UTF-8 text.
"""
"""A command line, and a part of what is said of it; LONG is a name that no system takes. What else
`--set` may be told is in recipe/test_overrides.py."""


@pytest.fixture
def files(tmp_path: Path) -> None:
    """What LINES name: `reads` is a recipe that reads rows.jsonl from the data directory."""
    for name, content in {"tiny": TINY, "reads": READS, "broken": 'name = "broken\n'}.items():
        (tmp_path / f"{name}.toml").write_text(content, encoding="utf-8")
    (tmp_path / "junk.toml").write_bytes(bytes(range(256)))
    (tmp_path / "marked.toml").write_text(TINY, encoding="utf-8-sig")
    (tmp_path / "utf16.toml").write_text(TINY, encoding="utf-16")
    (tmp_path / "stages.9.toml").write_text(f'"stages.99" = 1\n{TINY}', encoding="utf-8")
    (tmp_path / "nothing.toml").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "other.jsonl").write_text("{}\n", encoding="utf-8")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_a_wrong_command_line(fails: Fails, line: str) -> None:
    given, _, said = line.partition(" | ")
    assert said in fails(*given.replace("LONG", "n" * 300).split())


@pytest.mark.usefixtures("files")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_data_directory_that_cannot_be_read(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "empty").chmod(0)
    try:
        assert "cannot be read" in fails("run", "reads.toml", "--data", "empty")
    finally:
        (tmp_path / "empty").chmod(0o700)


EARLY = """[stages.early]
kind = "rebalance"
inputs = { examples = "distill" }
[stages.distill]
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("model =", "modle =", ["unknown key 'modle'. Did you mean 'model'?"]),
        ("model =", "since = 2026-11-21\nmodel =", ["since = 2026-11-21 is a date", "in quotes"]),
        ("model =", 'seed = "one"\nmodel =', ["seed = 'one' is not valid", "integer"]),
        ('kind = "reb', 'kind = "rb', ["unknown stage kind 'rbalance'. Did you mean 'rebalance'?"]),
        ('kind = "reb', "kind = 3 # ", ["stages.rebalance.kind = 3 is not valid"]),
        ('kind = "rebalance"\n', "", ["stages.rebalance.kind' is missing"]),
        ("dural", "dual", ["stages.distill", "'procedual'. Did you mean 'procedural'?"]),
        ("rows = { summarization = 60 }", "rows = { maths = 60 }", ["rows.maths", "'math'"]),
        ('s = "distill"', 's = "distil"', ["'distil' is no stage. Did you mean 'distill'?"]),
        ('s = "distill"', 's = "rebalance"', ["'rebalance' is the stage itself: a cycle"]),
        ('{ examples = "distill" }', '"distill"', ["'distill' is not valid: give a table, { key"]),
        ("{ train = 20, validation = 1, heldout = 2 }", "20", ["with train, validation, heldout"]),
        ('"procedural"', '"gemma"\nprompts = "a.csv"', ["give a list in [ ]; one of tables"]),
        ("examples =", "prompts =", ["has no input 'prompts'", "Valid: examples."]),
        ('inputs = { examples = "distill" }\n', "", ["input 'examples' is missing; add inputs ="]),
        ("[stages.distill]\n", EARLY, ["early.inputs.examples = 'distill' comes later in the"]),
        ("[stages.distill]\n", "[stages.Distill]\n", ["a stage name is lower-case letters"]),
    ],
)
def test_a_wrong_recipe(fails, tiny_recipe, old, new, expected):
    """The message begins with the recipe, and adds nothing of its own making."""
    text = tiny_recipe.read_text(encoding="utf-8")
    assert old in text
    tiny_recipe.write_text(text.replace(old, new), encoding="utf-8")
    message = fails("run", tiny_recipe)
    assert message.startswith(f"lyceum: recipe {tiny_recipe}")
    assert ".." not in message
    if old not in ("model =", '"procedural"', "[stages.distill]\n"):  # some are several mistakes
        assert message.count("\n") == 1
    for text in expected:
        assert text in message


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, "no space is left"), (errno.EROFS, "Read-only file system")],
)
@pytest.mark.parametrize("api", [None, "http://127.0.0.1:1/api"])
def test_a_store_that_is_full_or_read_only(fails, tiny_recipe, monkeypatch, number, expected, api):
    """The disk's answer is simulated where the store writes its probe: a real full disk needs a
    mount, which needs root. It is the first thing said, whether a Prefect API runs or not."""
    monkeypatch.setattr("flows.cli.launch.running_api", lambda: api)
    refused = OSError(number, os.strerror(number))
    monkeypatch.setattr("os.fsync", Mock(side_effect=refused))
    message = fails("run", tiny_recipe, "--store", "store")
    assert expected in message
    assert "--store" in message


def test_an_extra_that_is_not_installed(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.api_core.exceptions", None)
    said = fails("runs", "--store", "gs://bucket/prefix")
    assert "google.api_core.exceptions is not installed" in said
    assert "`uv sync --extra cloud`" in said


def test_a_bad_environment_variable(fails, tiny_recipe, monkeypatch):
    with monkeypatch.context() as patch:  # as Prefect raises it when it is imported
        settings = create_model("Settings", api=int)
        patch.setattr("flows.recipe.shipped.listed", lambda: settings(api="http://["))
        assert "a PREFECT_ variable, or your Prefect profile, is wrong: " in fails("recipes")
    monkeypatch.setenv("LYCEUM_PARALLEL_JOBS", "many")
    assert "LYCEUM_PARALLEL_JOBS='many'" in fails("run", tiny_recipe)
    monkeypatch.delenv("LYCEUM_PARALLEL_JOBS")
    monkeypatch.setenv("LYCEUM_LOCAL_KINDS", "distill,rebalanse")
    for command in ("run", "plan"):
        said = fails(command, tiny_recipe)
        assert "LYCEUM_LOCAL_KINDS: unknown stage kind 'rebalanse'. Did you mean 'reb" in said


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("LYCEUM_TPU_TIER=spott", "LYCEUM_TPU_TIER='spott' is not valid"),
        ("LYCEUM_TPU_LABELS=Team=nlp", "Team=nlp is no label"),
        ("LYCEUM_TPU_PROJECT=", "Name it: LYCEUM_TPU_PROJECT=PROJECT."),
    ],
)
def test_a_wrong_setting_of_tpus_is_told_before_prefect_starts(
    fails: Fails,
    tiny_recipe: Path,
    gcs_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    told: str,
) -> None:
    """With LYCEUM_PLAN=false, where nothing else reads them before."""
    monkeypatch.setenv("LYCEUM_TPU_ENDPOINT", "127.0.0.1:9")
    monkeypatch.setenv("LYCEUM_PLAN", "false")
    monkeypatch.setenv(*setting.split("=", 1))
    monkeypatch.setattr("flows.cli.launch.prefect_api", Mock(side_effect=AssertionError))
    where = "--target", "v5e-8", "--store", f"gs://{gcs_bucket}/lyceum"
    assert told in fails("run", tiny_recipe, *where)


ANSWERED = """name = "gemma"
model = "gemma3-tiny"
prompt_length = 64
prompts = [{ name = "dataset", sources = [{ path = "rows.jsonl", domain = "math", prompt = "q" }] }]
"""


@pytest.mark.parametrize("answered", [False, True])
def test_quotas_beyond_the_rows_of_a_file_are_told_before_anybody_is_asked(
    fails, lyceum, tmp_path, answered
):
    """Of worked rows, and of prompts that a model would answer for hours first."""
    recipe = READS.replace("summarization = {", "math = {")
    if answered:
        recipe = re.sub(r'name = "dataset"\n.*\n', ANSWERED, recipe)
    (tmp_path / "reads.toml").write_text(recipe, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"q": "1+1?", "a": "2"}\n' * 3, encoding="utf-8")
    given = ["reads.toml", "--data", "."]
    for command in ("run", "plan"):
        said = fails(command, *given)
        assert "stages.rebalance.config: quotas.math asks for 23 rows (20 train, 1 valid" in said
        assert "the files of the teachers have at most 3. Lower it, add rows, or take" in said
    lyceum("plan", *given, "--set", "stages.rebalance.config.exact=false")
    lyceum("plan", "reads.toml")  # without the data nobody knows


def test_a_real_process_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    """As a user sees it, and quickly: bad input is found before Prefect is imported."""
    process = start(["run", "nope", "--store", str(tmp_path / "store")])
    out, said = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "store").exists()
