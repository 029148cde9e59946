"""Nonsense for every command and option, in one process: exit code 0 or 2 (3 does not fit), a few
lines, no traceback, nothing written.

Seeded: a failure is the same again. Where a run would begin, it ends: what is tested is what comes
before it.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from flows.cli.main import main
from infra.settings import Settings, TpuSettings
from tests.conftest import TINY

LONG = "n" * 300
PATHS = [
    "", ".", "..", "/proc/x", "/proc", "/proc/self/mem", "/dev/null", "/dev/full", "/dev/null/x",
    "directory", "file", "file/x", "closed", LONG, "x" * 4096, "a/" * 2000, "a\0b", "\udcff",
    "\ud800", "a\nb", "\x1b[31m", "\u202e", "~nobodyhere/x", "--", "tiny.toml", "pipe", "file://",
    "file:///proc/x", "file:///a%00b", f"file:///{LONG}", "s3://x", "http://[", "file://[",
    "https://x/y",
]  # fmt: skip
TEXTS = [*PATHS, "1", "-1", "nan", "1e400", "9" * 5000, "[" * 30_000, "local", "v5e-8 ", "distill"]
TEXTS += ["inf", "many", "a=b,c", ",,,"]
COMMANDS = [
    "runs", "gc", "doctor", "plan tiny.toml", "run tiny.toml", "why tiny.toml distill",
    "report r", "compare r s", "ask r q", "gate r", "export r --to out", "scores r --to out",
    "push r --to a/b", "endpoint r",
    "rejudge r --rubric file", "promote r", "promote --history r", "promote --rollback r",
]  # fmt: skip
PLACES = [
    "{} ", "run {}", "plan {}", "why {} x", "why tiny.toml {}", "report {}", "compare {} {}",
    "ask {} {}", "ask r {} --stage {}", "gate {}", "export {} --to {} --stage {}",
    "export r --to out --dtype {}", "scores {} --to {}", "scores r --to out --as {}",
    "gate r --champion {}", "rejudge {} --rubric {}", "rejudge r --rubric file --usd {}",
    "gc --drop-run {}", "gc --target {}", "promote {}", "promote r --why {}",
    "promote --history {}", "promote --rollback {}", "run tiny.toml --target {}",
    "run tiny.toml --force {}", "run tiny.toml --data {}", "plan tiny.toml --hours {}",
    "plan tiny.toml --usd {}", "plan tiny.toml --set {}", "plan tiny.toml --set model={}",
    "push {} --to {} --stage {}", "endpoint {} --host {} --port {}", "runs {}",
    "init {} --no-rehearsal", "init x.toml --data {} --no-rehearsal",
    "init x.toml --data file --prompt {} --no-rehearsal",
    "init x.toml --data file --usd {} --no-rehearsal",
    "init x.toml --data file --model {} --no-rehearsal",
]  # fmt: skip
VALUES = [
    "9" * 5000, "0x" + "f" * 30_000, "[" * 30_000, "[" * 400 + "]" * 400,
    "{a=" * 300 + "1" + "}" * 300, "nan", "-inf", "1e400", "1e308", "2147483648", "-1",
    "1979-05-27", "07:32:00", "true", "''", "'\ud800'", "\udcff", "\0", "{}", "[]", "[1, 'a']",
    "{ a.b.c = 1 }", "=", f"'{'x' * 100_000}'", "x" * 100_000, "[" + "1," * 100_000 + "]",
    "\x1b]0;owned\x07",
]  # fmt: skip
KEYS = [
    "", "a.b", "seed", "name", "model", "stages", "stages.distill", "stages.distill.kind",
    "stages.distill.inputs.x", "gate.must_win.0", "stages.distill.config.teachers",
    "stages.distill.config.teachers.0.rows.math",
    "stages.distill.config.teachers.99999999999999999999",
    "stages.rebalance.config.quotas.summarization.train",
    "stages.rebalance.config.near_duplicates.words", "stages.rebalance.config.seed",
    "stages.rebalance.config." + "a." * 20_000 + "b", "stages.rebalance.config." + "a" * 100_000,
    "stages.\udcff.x", '"seed"', "tiny.x",
]  # fmt: skip
BROKEN = [
    b"", b"\0" * 999, b"\xef\xbb\xbf" + TINY.encode(), TINY.encode("utf-16"),
    (TINY + TINY).encode(), TINY.encode()[:99], bytes(range(256)), b"x=" + b"[" * 20_000,
    b"x=" + b"[" * 200 + b"]" * 200, b"[" + b"a." * 20_000 + b"a]\n", b"# " + b"x" * 10_000_000,
    b"x=" + b"9" * 9999, b"x=0x" + b"f" * 99_999, b"\n".join(b"[a%d]" % n for n in range(20_000)),
    b"\n".join([*(b"a%d=1" % n for n in range(9_000)), TINY.encode()]),
    b"stages=1", b"stages=[]", b'"""' * 1000, b"x=1e" + b"9" * 999,
]  # fmt: skip


class _Begun(BaseException):
    """A run would begin here."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a recipe and things that are no recipe, where no run begins."""
    monkeypatch.setattr("flows.cli.lanes.running_api", Mock(side_effect=_Begun))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "directory").mkdir()
    (tmp_path / "closed").mkdir(mode=0)
    os.mkfifo(tmp_path / "pipe")
    yield tmp_path
    (tmp_path / "closed").chmod(0o700)


def attempt(capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    """Run one command line; raises AssertionError where it does not keep the contract."""
    before, began, worked = (
        sorted(os.listdir(os.fsencode(os.getcwd()))),
        time.monotonic(),
        time.process_time(),
    )
    said = " ".join(arguments)[:200]
    try:
        code = main(list(arguments))
    except _Begun:
        return
    except SystemExit as stopped:  # --help
        code = int(stopped.code or 0)
    errors = capsys.readouterr().err
    assert code in ((0, 1, 2) if arguments[0] == "doctor" else (0, 2, 3)), (said, code, errors)
    assert "Traceback" not in errors, said
    assert "Value error" not in errors, said
    assert len(errors) < 20_000, said
    assert len(errors.splitlines()) <= 12, (said, errors)
    assert time.process_time() - worked < 5, said
    # it waits for nothing, but others may use the machine
    assert time.monotonic() - began < 60, said
    if code:
        assert sorted(os.listdir(os.fsencode(os.getcwd()))) == before, (
            said,
            "something was written",
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_any_store(place: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """All for the one that only reads; for each of the others a dozen, by its name."""
    chosen = PATHS if command == "runs" else random.Random(command).sample(PATHS, 12)
    for store in chosen:
        attempt(capsys, *command.split(), "--store", store)


def test_any_argument(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(18)
    for template in PLACES:
        for text in chance.sample(TEXTS, 12):
            store = () if template.split()[0] in ("{}", "runs") else ("--store", "none")
            attempt(
                capsys,
                *(text if part == "{}" else part.replace("{}", text) for part in template.split()),
                *store,
            )


def test_any_value_for_set(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(18)
    for key in KEYS:
        for value in chance.sample(VALUES, 8):
            attempt(capsys, "plan", "tiny.toml", "--store", "none", "--set", f"{key}={value}")


def test_any_file_as_a_recipe(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance, good = random.Random(18), TINY.encode()
    cases = list(BROKEN)
    for _ in range(80):
        made = bytearray(good)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(made))
            made[at : at + chance.randrange(20)] = chance.choice(
                [b"", b"[", b"{", b'"', b"\n", b"=", b"'''", b"nan", b"\0", b"\x1b[2J", b"\xff"]
            )
        cases.append(bytes(made))
    for case in cases:
        (place / "broken.toml").write_bytes(case)
        attempt(capsys, "plan", "broken.toml", "--store", "none")
    (place / "broken.toml").write_bytes(b"x=" + b"[" * 20_000)
    attempt(capsys, "rejudge", "r", "--rubric", "broken.toml", "--store", "none")
    for device in ("/dev/zero", "/dev/full", "/dev/random", "pipe", "/proc/self/mem"):
        attempt(capsys, "plan", device, "--store", "none")
        attempt(capsys, "rejudge", "r", "--rubric", device, "--store", "none")


def test_any_environment(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(18)
    texts = [text for text in TEXTS if not {"\0", "\ud800"} & {*text}]  # no system takes these
    names = [f"LYCEUM_{name.upper()}" for name in Settings.model_fields] + [
        f"LYCEUM_TPU_{name.upper()}" for name in TpuSettings.model_fields
    ]
    for name in names:
        for text in chance.sample(texts, 4):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(name, text)
                attempt(capsys, "plan", "tiny.toml")
                attempt(capsys, "gc")


def test_what_a_message_quotes_is_short(place, lyceum):
    message = lyceum("run", "x" * 4096, code=2).err
    assert len(message) < 600
    assert " more)..." in message


@pytest.mark.parametrize(
    ("setting", "code", "expected"),
    [
        ("stages.sft.config.batch_size=100000000000", 2, "no integer may be beyond 2147483647"),
        (
            "stages.sft.config.batch_size=2000000000",
            3,
            "batch_size 2000000000 x sequence_length 128 takes at least",
        ),
        ("stages.base_eval.config.prompt_length=2000000000", 3, "and this machine has"),
        (
            "stages.simpo.config.sampling_batch_size=2000000000",
            3,
            "Stage simpo: sampling_batch_size",
        ),
    ],
)
def test_sizes_that_no_machine_holds_are_found_before_anything_begins(
    place, lyceum, setting, code, expected
):
    given = "quickstart", "--store", "none", "--set", setting
    assert expected in lyceum("run", *given, code=code).err
    lyceum("plan", *given, "--json", code=code)
    assert not (place / "none").exists()
