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

from flows.cli.commands import serve
from flows.cli.main import COMMANDS, main
from flows.cli.options import options_by_name
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
GIVEN = {
    "recipe": "tiny.toml", "stage": "distill", "run": "r", "others": "s", "question": "q",
    "promoted": "r", "written": "x.toml", "source": "file", "rubric": "file", "to": "out",
    "repository": "a/b", "pool": "p", "store": "none", "no_rehearsal": "",
}  # fmt: skip
"""What a command is given beside the option that is tried."""


def templates() -> Iterator[str]:
    """Each command with each of its options that has a value, which is {}."""
    options = options_by_name()
    for command, names in COMMANDS.items():
        groups = [group.split("|") for group in names.split()]
        for tried in [name for group in groups for name in group if command is not serve]:
            if options[tried][1].get("action") in ("store_true", "append_const"):
                continue
            words = [command.__name__]
            for name in [tried if tried in group else group[0] for group in groups]:
                flag = f"{options[name][0]}=" if options[name][0].startswith("-") else ""
                if name == tried or name in GIVEN:
                    value = "{}" if name == tried else GIVEN[name]
                    words.append(f"{flag}{value}".removesuffix("="))
            yield " ".join(words)


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
    monkeypatch.setattr("flows.cli.launch.running_api", Mock(side_effect=_Begun))
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


@pytest.mark.parametrize("store", PATHS)
def test_any_store(place: Path, capsys: pytest.CaptureFixture[str], store: str) -> None:
    attempt(capsys, "runs", "--store", store)


@pytest.mark.parametrize("template", templates())
def test_any_argument(place: Path, capsys: pytest.CaptureFixture[str], template: str) -> None:
    for text in random.Random(template).sample(TEXTS, 8):
        attempt(capsys, *(part.replace("{}", text) for part in template.split()))


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
