"""Bad input: exit code 2, one message that names the value and the fix, no traceback, and nothing
half-written.

What only a running stage can find out (an unfillable quota) and Ctrl-C are in test_flow.py, where
runs are.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli.main import main

Fails = Callable[..., str]


@pytest.fixture
def fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Fails:
    """Run a command line that must fail as bad input; returns its message. The working directory
    must not change."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        before = tree(tmp_path)
        assert main([str(argument) for argument in arguments]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("lyceum: ")
        assert "Traceback" not in printed.err
        assert tree(tmp_path) == before, "something was written"
        return printed.err

    return run


def tree(root: Path) -> dict[str, bytes | None]:
    """Everything below a directory, by relative path."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


@pytest.fixture
def recipe_with(tiny_recipe: Path) -> Callable[[str, str], Path]:
    """The tiny recipe with one piece of text replaced."""

    def change(old: str, new: str) -> Path:
        text = tiny_recipe.read_text(encoding="utf-8")
        assert old in text
        tiny_recipe.write_text(text.replace(old, new), encoding="utf-8")
        return tiny_recipe

    return change


def test_missing_recipe(fails: Fails) -> None:
    assert "unknown recipe 'quickstrat'" in fails("run", "quickstrat")
    assert "Valid: " in fails("run", "nothing_like_it")
    assert "cannot read recipe none.toml" in fails("run", "./none.toml")
    assert "cannot read recipe" in fails("run", ".")


def test_broken_toml(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text('name = "broken\n', encoding="utf-8")
    message = fails("run", "broken.toml")
    assert "broken.toml is not valid TOML" in message
    assert "line 1" in message


def test_a_recipe_that_is_no_text(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "junk.toml").write_bytes(bytes(range(256)))
    assert "cannot read recipe junk.toml" in fails("run", "junk.toml")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'model = "gemma3-tiny"',
            'modle = "gemma3-tiny"',
            ["unknown key 'modle'. Did you mean 'model'?"],
        ),
        (
            'model = "gemma3-tiny"',
            'model = "gemma3-tiny"\nsince = 2026-11-21',
            ["since = 2026-11-21 is a date", "as a string, in quotes"],
        ),
        (
            'model = "gemma3-tiny"',
            'model = "gemma3-tiny"\nseed = "one"',
            ["seed = 'one' is not valid", "integer"],
        ),
        (
            'kind = "rebalance"',
            'kind = "rebalnce"',
            ["stages.rebalance: unknown stage kind 'rebalnce'. Did you mean 'rebalance'?"],
        ),
        ('kind = "rebalance"\n', "", ["stages.rebalance.kind' is missing"]),
        (
            'name = "procedural"',
            'name = "procedual"',
            ["stages.distill", "unknown teacher 'procedual'. Did you mean 'procedural'?"],
        ),
        ("rows = { summarization = 60 }", "rows = { maths = 60 }", ["rows.maths", "'math'"]),
        (
            'examples = "distill"',
            'examples = "distil"',
            ["inputs.examples = 'distil' is no stage. Did you mean 'distill'?"],
        ),
        (
            'examples = "distill"',
            'examples = "rebalance"',
            ["'rebalance' is the stage itself: a cycle"],
        ),
        (
            'examples = "distill"',
            'prompts = "distill"',
            ["has no input 'prompts'", "Valid: examples."],
        ),
        (
            'inputs = { examples = "distill" }\n',
            "",
            ["stages.rebalance: input 'examples' is missing; add inputs ="],
        ),
        (
            '[stages.distill]\nkind = "distill"',
            (
                '[stages.early]\nkind = "rebalance"\ninputs = { examples = "distill"'
                ' }\n[stages.distill]\nkind = "distill"'
            ),
            ["stages.early.inputs.examples = 'distill' comes later in the file"],
        ),
        ("[stages.distill]\n", "[stages.Distill]\n", ["a stage name is lower-case letters"]),
    ],
)
def test_a_wrong_recipe(
    fails: Fails, recipe_with: Callable[[str, str], Path], old: str, new: str, expected: list[str]
) -> None:
    message = fails("run", recipe_with(old, new))
    for text in expected:
        assert text in message


def test_unknown_reward(fails: Fails) -> None:
    assert "unknown reward 'exact_anser'. Did you mean 'exact_answer'?" in fails(
        "run", "quickstart", "--set", "stages.grpo.config.rewards=[{name = 'exact_anser'}]"
    )


def test_set_with_a_bad_path_or_type(fails: Fails, tiny_recipe: Path) -> None:
    """What else `--set` may be told is in recipe/test_overrides.py."""
    wrong = fails("run", tiny_recipe, "--set", "stages.rebalance.config.sead=1")
    assert "unknown key 'sead'. Did you mean 'seed'?" in wrong
    wrong = fails("run", tiny_recipe, "--set", "stages.rebalance.config.heldout_fraction=nan")
    assert "is not a finite number" in wrong


def test_unknown_target_stage_and_option(fails: Fails, tiny_recipe: Path) -> None:
    assert "unknown target 'v5e-9'. Did you mean 'v5e-8'?" in fails(
        "run", tiny_recipe, "--target", "v5e-9"
    )
    assert "unknown target 'v5e-9'. Did you mean 'v5e-8'?" in fails(
        "plan", tiny_recipe, "--target", "v5e-9"
    )
    assert "a machine in the cloud cannot reach it" in fails(
        "run", tiny_recipe, "--target", "v5e-8"
    )
    assert "has no stage 'distil'. Did you mean 'distill'?" in fails(
        "run", tiny_recipe, "--force", "distil"
    )
    assert "has no stage 'distil'. Did you mean 'distill'?" in fails("why", tiny_recipe, "distil")
    assert "--fast" in fails("run", tiny_recipe, "--fast")
    assert "invalid choice: 'walk'" in fails("walk")
    assert "RECIPE" in fails("run")


class TestDataDirectory:
    """--data that is missing, no directory, empty, without the file, or full of junk."""

    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        (tmp_path / "data").mkdir()
        return tmp_path / "data"

    @pytest.fixture
    def reads(self, recipe_with: Callable[[str, str], Path]) -> Path:
        """A recipe that reads rows.jsonl from the data directory."""
        source = (
            '{ path = "rows.jsonl", domain = "math", prompt = "q", reasoning = "q", answer = "a" }'
        )
        return recipe_with(
            'name = "procedural"\nrows = { summarization = 60 }\ngrounded = {}',
            f'name = "dataset"\nsources = [{source}]',
        )

    def test_missing(self, fails: Fails, reads: Path) -> None:
        assert "--data nowhere: there is no such directory" in fails(
            "run", reads, "--data", "nowhere"
        )

    def test_not_named_at_all(self, fails: Fails, reads: Path) -> None:
        assert "--data" in fails("run", reads)

    def test_a_file(self, fails: Fails, reads: Path) -> None:
        assert "is not a directory" in fails("run", reads, "--data", reads)

    def test_empty(self, fails: Fails, reads: Path, data: Path) -> None:
        assert f"--data {data} is empty" in fails("run", reads, "--data", data)

    def test_without_the_file_that_the_recipe_reads(
        self, fails: Fails, reads: Path, data: Path
    ) -> None:
        (data / "other.jsonl").write_text("{}\n", encoding="utf-8")
        assert "rows.jsonl" in fails("run", reads, "--data", data)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_unreadable(self, fails: Fails, reads: Path, data: Path) -> None:
        data.chmod(0)
        try:
            assert "cannot be read" in fails("run", reads, "--data", data)
        finally:
            data.chmod(0o700)


class TestStore:
    """A store that is a file, below a file, of an unknown scheme, read-only or full."""

    def test_a_file(self, fails: Fails, tiny_recipe: Path, tmp_path: Path) -> None:
        (tmp_path / "store").write_text("mine", encoding="utf-8")
        for command in (["run", tiny_recipe], ["plan", tiny_recipe], ["runs"]):
            message = fails(*command, "--store", "store")
            assert str(tmp_path / "store") in message
            assert "is a file" in message

    def test_below_a_file(self, fails: Fails, tiny_recipe: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine", encoding="utf-8")
        assert "is a file" in fails("run", tiny_recipe, "--store", "file/store")

    def test_an_unknown_scheme(self, fails: Fails, tiny_recipe: Path) -> None:
        assert "'s3' is not supported" in fails("run", tiny_recipe, "--store", "s3://bucket/lyceum")

    @pytest.mark.parametrize(
        ("number", "expected"), [("ENOSPC", "no space is left"), ("EROFS", "Read-only file system")]
    )
    def test_full_or_read_only(
        self,
        fails: Fails,
        tiny_recipe: Path,
        monkeypatch: pytest.MonkeyPatch,
        number: str,
        expected: str,
    ) -> None:
        """The disk's answer is simulated where the store writes its probe: a real full disk needs a
        mount, which needs root."""
        import errno

        def refuse(descriptor: int) -> None:
            raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

        monkeypatch.setattr("os.fsync", refuse)
        message = fails("run", tiny_recipe, "--store", "store")
        assert expected in message
        assert "--store" in message

    def test_a_bad_environment_variable(
        self, fails: Fails, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LYCEUM_PARALLEL_JOBS", "many")
        assert "LYCEUM_PARALLEL_JOBS='many'" in fails("run", tiny_recipe)


def test_a_real_process_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    """As a user sees it, and quickly: bad input is found before Prefect is imported."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "run", "nope", "--store", str(tmp_path / "store")],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()
