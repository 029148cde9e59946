"""Names and text from outside: no name leaves its directory or reads another file, and no text acts
on the terminal that shows it.

What text can do in a report is in test_report.py, which names a store takes in test_store.py.
"""

import io
import json
import subprocess
import unicodedata
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from flows.cli import show
from flows.cli.terminal import Terminal
from flows.report.blocks import Table
from infra.process import ROOT
from infra.store.store import open_store
from infra.visible import plain
from schemas.base import InputError
from schemas.recipe import parse_recipe
from tasks.contract.kinds import stage_kind, stage_kinds
from tasks.contract.reward import REWARDS
from tasks.contract.teacher import TEACHERS
from tasks.data.data_files import check_data_path, data_files
from tasks.data.readers import Record, read_records
from tests.fakes.http import Handler, HttpServer
from tests.fakes.process import python
from tests.fakes.recipe import READS, TINY
from tests.flows.lab import tree
from tests.flows.runs.synthetic_run import write_run

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\rover [red]:boom:[/x] \\[red]"
ODD = ["..", ".", "", "../../etc", "/etc/passwd", "a/../../b", "~", "a\n", "con\0", "-x", "*"]
NAMES = st.one_of(st.sampled_from([*ODD, "\\..\\x", "\udcff", "é"]), st.text(max_size=12))


# Runs, recipes, stages, kinds


@pytest.mark.parametrize("command", ["report", "ask", "compare"])
def test_a_run_id_is_one_of_those_that_are_listed(command, tmp_path, lyceum):
    """A record lies where `../evil` leads, and is not read."""
    store = tmp_path / "store"
    (store / "runs").mkdir(parents=True)
    (store / "evil").mkdir()
    (store / "evil" / "run.json").write_text("{}", encoding="utf-8")
    before = tree(tmp_path)
    more = {"report": [], "ask": ["Why?"], "compare": ["good"]}[command]
    for run in ("../evil", "/etc", "..", ".", "", "good/../../evil", "evil\n", "\x1b[2J", "-evil"):
        said = lyceum(command, "--store", store, "--", run, *more, code=2).err
        assert f"unknown run {run!r}" in said
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(run_id="../../escaped"),
        lambda record: record.update(run_id="another"),
        lambda record: record["stages"][0]["artifact"].update(kind="../../escaped"),
        lambda record: record["stages"][0]["artifact"].update(key="../../../escaped"),
        lambda record: record["recipe"].update(name="../escaped"),
        lambda record: record["recipe"]["stages"][0].update(name="../escaped"),
    ],
)
def test_a_forged_run_record_leads_nowhere(change, tmp_path, lyceum):
    store, record = write_run(tmp_path / "store")
    path = store.path(f"runs/{record.run_id}/run.json")
    forged = json.loads(path.read_text(encoding="utf-8"))
    change(forged)
    path.write_text(json.dumps(forged), encoding="utf-8")
    before = tree(tmp_path)
    lyceum("report", record.run_id, "--store", store.uri, code=2)
    assert tree(tmp_path) == before


@given(name=NAMES)
def test_recipe_and_stage_names_are_path_segments(name: str) -> None:
    """Whatever is accepted is one segment that cannot be mistaken for an option, a hidden file or a
    place."""
    quoted = json.dumps(name.encode("utf-8", "replace").decode(), ensure_ascii=True)
    staged = TINY.replace("[stages.distill]", f"[stages.{quoted}]")
    for text in (TINY.replace('"tiny"', quoted), staged.replace('"distill" }', f"{quoted} }}")):
        try:
            recipe = parse_recipe(text, "names.toml")
        except InputError:
            continue
        for accepted in (recipe.name, *(stage.name for stage in recipe.stages)):
            assert accepted.isascii()
            assert accepted.isidentifier()


KNOWN = {*stage_kinds(), *REWARDS.names(), *TEACHERS.names()}


# hypothesis draws strings that the source holds, too
@given(name=NAMES.filter(lambda name: name not in KNOWN))
def test_kinds_rewards_and_teachers_are_names_of_known_files(name: str) -> None:
    with pytest.raises(InputError, match="unknown stage kind"):
        stage_kind(name)
    for family in (REWARDS, TEACHERS):
        with pytest.raises(InputError, match="unknown"):
            family.parse({"name": name}, "here")


@pytest.mark.parametrize(
    "kind", ["worker", "stage", "data.readers", "../flows/cli", "os", "__init__", "plugins"]
)
def test_a_module_that_is_no_stage_is_no_kind(kind: str) -> None:
    with pytest.raises(InputError, match="unknown stage kind"):
        stage_kind(kind)


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "../../../escaped"},
        {"key": "../../escaped"},
        {"stage": "../escaped", "kind": "../escaped"},
    ],
)
def test_a_forged_job_writes_nothing_outside_its_store(change, tmp_path):
    store = open_store(tmp_path / "store")
    job = {"stage": "distill", "kind": "distill", "key": "0" * 64, "attempt": "1", "config": {}}
    job |= {"store": store.uri, "target": "local"}
    file = tmp_path / "work" / job["key"] / "1" / "job.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(job | change), encoding="utf-8")
    assert python("-m", "tasks.worker", file, stderr=subprocess.DEVNULL).wait() in (1, 2)
    written = [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*")]
    outside = [one for one in written if one.endswith(".json") and not one.startswith("store")]
    assert outside == [f"work/{job['key']}/1/job.json"]
    assert not [name for name in written if "escaped" in name]


# Data files


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with links that lead out of it, and names that mean something to shells,
    globs and terminals."""
    place = tmp_path_factory.mktemp("data")
    (place / "outside").mkdir()
    (place / "outside" / "secret.jsonl").write_text("{}", encoding="utf-8")
    inside = place / "data"
    rows = [f"{name}.jsonl" for name in ("a", "a1", "a[1]", "b?", "bx", "new\nline", "\x1b[2J")]
    for name in (*rows, "~", "$HOME", "-x"):
        (inside / "sub" / "deep").mkdir(parents=True, exist_ok=True)
        for directory in (inside, inside / "sub", inside / "sub" / "deep"):
            (directory / name).write_text(name, encoding="utf-8")
    (inside / "link").symlink_to(place / "outside")
    (inside / "sub" / "link.jsonl").symlink_to(place / "outside" / "secret.jsonl")
    (inside / "loop").symlink_to(inside)
    return inside


_STARS = ["*", "**", "a*", "**b", "*.jsonl", "a[1]*", "b?*"]
_PLACES = ["..", ".", "", "a.jsonl", "a[1].jsonl", "sub", "deep", "link", "loop", "outside"]
_WRONG = ["secret.jsonl", "~", "\\", "\0", "x" * 300]
_PARTS = st.sampled_from([*_STARS, *_PLACES, *_WRONG])
PATHS = st.one_of(st.lists(_PARTS, max_size=6).map("/".join), NAMES)


@given(path=PATHS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_data_path_leads_to_files_of_the_data_directory_only(data: Path, path: str) -> None:
    """Whatever a recipe says: a refusal that people can read, or regular files below --data."""
    try:
        found = data_files(data, check_data_path(path), "here")
    except ValueError:  # InputError is one
        return
    assert found
    for name, file in found:
        assert file.resolve().is_relative_to(data.resolve())
        assert file.is_file()
        assert (data / name).read_bytes() == file.read_bytes()


def test_only_a_star_is_special_in_a_data_path(data: Path) -> None:
    def names(pattern: str) -> list[str]:
        return [name for name, _ in data_files(data, pattern, "here")]

    assert names("a[1].jsonl") == names("a[1]*") == ["a[1].jsonl"]
    assert names("b?.jsonl") == names("b?*") == ["b?.jsonl"]
    assert names("a*.jsonl") == ["a.jsonl", "a1.jsonl", "a[1].jsonl"]
    assert names("sub/**/a.jsonl") == ["sub/a.jsonl", "sub/deep/a.jsonl"]
    with pytest.raises(ValueError, match=r"a part of its own: a/\*\*/b\.jsonl"):
        check_data_path("sub/a**.jsonl")


@pytest.mark.parametrize("stem", ["a[1]", "b*", "c?", "{d,e}", "x::y", "new\nline", "%41"])
def test_a_parquet_file_s_name_is_no_pattern_and_no_url(stem: str, tmp_path: Path) -> None:
    name = f"{stem}.parquet"
    for written in ("a1.parquet", "bx.parquet", "cx.parquet", "d.parquet", "A.parquet", name):
        with (tmp_path / written).open("wb") as out:
            pyarrow.parquet.write_table(pyarrow.table({"q": [written]}), out)
    assert list(read_records(name, tmp_path / name)) == [Record(1, {"q": name})]


def test_a_parquet_file_opens_no_other_file_and_no_url(tmp_path: Path) -> None:
    """Features that a file declares of itself, as Hugging Face `datasets` understands them, are
    columns like any other."""
    asked: list[str] = []

    class Noting(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(404, "")

        do_HEAD = do_GET

    with HttpServer(Noting) as server:
        places = [f"{server.url}/image.png", str(ROOT / "docs" / "report.png")]
        column = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        images = pyarrow.array([{"bytes": None, "path": place} for place in places], type=column)
        features = {"q": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
        table = pyarrow.table({"q": ["a", "b"], "image": images})
        declared = {"huggingface": json.dumps({"info": {"features": features}})}
        file = tmp_path / "images.parquet"
        pyarrow.parquet.write_table(table.replace_schema_metadata(declared), file)
        rows = [record.row["image"] for record in read_records("images.parquet", file)]
    assert rows == [{"bytes": None, "path": place} for place in places]
    assert asked == []


# Text on the terminal


def assert_harmless(shown: str) -> None:
    """No control character but line feed and tab, nothing that turns text round, and nothing that
    cannot be encoded."""
    for character in shown:
        kind = unicodedata.category(character)
        assert character in "\n\t" or kind not in ("Cc", "Cs", "Zl", "Zp"), repr(character)
        assert unicodedata.bidirectional(character) not in TURNING


TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


@given(text=st.text(st.characters(), max_size=40))
def test_plain_text_is_harmless_and_other_text_is_left_alone(text: str) -> None:
    assert_harmless(plain(text))
    if text.isprintable() and text.isascii():
        assert plain(text) == text


def test_text_from_outside_does_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What a model answered, a row held or a library said is shown in full; escape sequences,
    markup and emoji codes are text."""
    out = io.StringIO()
    Terminal(Console(file=out)).say(ESCAPES)
    show.show([ESCAPES, Table(("column",), [(ESCAPES,)], "title")])
    printed = capsys.readouterr().out
    for shown in (out.getvalue(), printed):
        assert_harmless(shown)
        assert r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\rover [red]:boom:[/x] \[red]" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", f"missing{ESCAPES}.toml"],
        ["run", "quickstart", "--set", f"stages.sft.config.steps='{ESCAPES[:3]}\u202e'"],
        ["run", "quickstart", "--target", ESCAPES],
        ["run", "quickstart", "--data", ESCAPES],
        ["run", "quickstart", "--store", f"s3://{ESCAPES}"],
        ["run", "quickstart", f"--{ESCAPES}"],
        ["report", ESCAPES],
        ["run", "bad.toml"],
        ["run", "reads.toml", "--data", "data"],
    ],
)
def test_a_message_about_bad_input_does_not_act_on_the_terminal(
    arguments, tmp_path, lyceum, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    quoted = json.dumps(ESCAPES)
    bad = TINY.replace('model = "gemma3-tiny"', f"{quoted} = {quoted}\nmodel = 1")
    (tmp_path / "bad.toml").write_text(bad, encoding="utf-8")
    (tmp_path / "reads.toml").write_text(READS, encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{ESCAPES.replace('/', '')}.jsonl").touch()
    printed = lyceum(*arguments, code=2)
    assert printed.out == ""
    assert_harmless(printed.err)


def test_json_on_standard_output_is_ascii(tmp_path, lyceum):
    """C1 control characters and halves of characters are valid JSON text, but neither harmless nor
    always printable."""
    store, record = write_run(tmp_path / "store", stop_before="sft", failure=ESCAPES)
    path, listed = store.path(f"runs/{record.run_id}/run.json"), ["runs", "--store", store.uri]
    assert lyceum(*listed, "--json").out.isascii()
    forged = json.loads(path.read_text(encoding="utf-8")) | {"target": ESCAPES}
    path.write_text(json.dumps(forged), encoding="utf-8")
    second = lyceum(*listed, "--json")
    assert second.out.isascii()
    assert second.json["runs"][0]["target"] == ESCAPES
    assert_harmless(lyceum(*listed).out)
