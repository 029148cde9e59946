"""Recipes that `lyceum init` writes; one is rehearsed in tests/end_to_end/flows/test_init.py."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flows.cli import init
from flows.cli.init import Asking, draft_recipe
from flows.recipe.draft import columns_of, propose, propose_check, propose_domain
from flows.recipe.resolve import resolve
from schemas.base import InputError, Stopped
from tasks.contract.job import write_jsonl
from tasks.data.conversion import NotAnExample, example_of, prompt_of
from tasks.data.sources import Source


def rows(directory: Path, *lines: dict[str, Any], name: str = "mine.jsonl") -> Path:
    write_jsonl(directory / name, lines)
    return directory / name


WORKED = [
    {"id": place, "question": f"{place}+1?", "why": f"one more than {place}", "answer": place + 1}
    for place in range(8)
]


def told(**given: Any) -> Asking:
    """What options say, and nobody to ask; of a domain that needs no classifier."""
    return Asking({"domain": "math", **given}, None)


def person(lines: Iterable[str], **given: Any) -> Asking:
    left = iter(lines)
    return Asking({"domain": "math", **given}, lambda: next(left, ""))


def test_worked_rows_become_a_recipe_that_resolves(tmp_path: Path) -> None:
    file = rows(tmp_path, *WORKED)
    to = tmp_path / "mine.toml"
    draft, data = draft_recipe(to, told(data=str(file), target="v5e-8", usd=5.0))
    assert data == tmp_path
    resolved = resolve(str(to), (), data)
    kinds = " ".join(stage.kind for stage in resolved.stages)
    assert kinds == "distill rebalance reasoning_eval sft reasoning_eval"
    [teacher] = resolved.stages[0].config_json["teachers"]
    [source] = teacher["sources"]
    told_of = (teacher["name"], source["check"], source["path"])
    assert told_of == ("dataset", "numeric", "mine.jsonl")
    assert draft.columns == {"prompt": "question", "reasoning": "why", "answer": "answer"}
    assert draft.commands[1].endswith(f"mine.toml --usd 5 --data {tmp_path} --target v5e-8")
    quotas = resolved.stage("rebalance").config_json["quotas"]["math"]
    assert quotas == {"train": 5, "validation": 0, "heldout": 2}
    asked = resolved.stage("sft_eval").config_json
    assert asked["min_items"] <= quotas["heldout"]  # else the run would end after its training
    assert asked["prompt_length"] == resolved.stage("rebalance").config_json["max_prompt_tokens"]


def test_an_instruction_is_asked_with_its_input(tmp_path: Path) -> None:
    """As Alpaca has them; without the input a model would learn to guess."""
    line = {"instruction": "Add {both}.", "output": "3"}
    file = rows(tmp_path, {**line, "input": "1, 2"}, {**line, "input": ""})
    draft, _ = draft_recipe(tmp_path / "mine.toml", told(data=str(file)))
    prompt = {"template": "{instruction}[\n\n{input}]"}
    assert draft.columns == {"prompt": prompt, "answer": "output"}
    [teacher] = resolve(str(tmp_path / "mine.toml"), (), tmp_path).stages[0].config_json["teachers"]
    [source] = teacher["prompts"][0]["sources"]
    assert source["prompt"][0]["template"] == prompt["template"]


def test_one_very_long_row_does_not_stand_in_the_way(tmp_path: Path) -> None:
    """No Gemma reads it; the recipe leaves it out."""
    file = rows(tmp_path, *WORKED, {**WORKED[0], "question": "word " * 40_000})
    draft_recipe(tmp_path / "mine.toml", told(data=str(file)))
    recipe = resolve(str(tmp_path / "mine.toml"), (), tmp_path)
    assert recipe.stage("rebalance").config_json["max_prompt_tokens"] == 4096


def test_rows_without_reasoning_are_answered_by_the_model(tmp_path: Path) -> None:
    file = rows(tmp_path, *({"prompt": one["question"], "label": one["answer"]} for one in WORKED))
    draft_recipe(tmp_path / "mine.toml", told(data=str(file), model="gemma3-270m-it"))
    [teacher] = resolve(str(tmp_path / "mine.toml"), (), tmp_path).stages[0].config_json["teachers"]
    assert (teacher["name"], teacher["model"]) == ("gemma", "gemma3-270m-it")
    tiny = resolve(str(tmp_path / "mine.toml"), ("tiny",), tmp_path)  # no weights to download
    assert [one["name"] for one in tiny.stages[0].config_json["teachers"]] == ["procedural"]


def test_columns_are_those_of_any_row_and_lie_in_objects_and_first_turns(tmp_path: Path) -> None:
    """The first row of a file is often the odd one."""
    said = {"about": {"question": "1+1?"}, "turns": [{"role": "user", "content": "hi"}]}
    rows_ = [{"id": 1, **said}, {"id": 2, **said, "label": 2, "answer": {"text": None}}]
    assert columns_of(rows_) == [
        *("id", "label", "about.question", "answer.text", "turns.0.role", "turns.0.content")
    ]
    assert propose(rows_) == {"prompt": "about.question", "answer": "label"}

    lines = [{"id": 0}, *({**said, "label": 2, "answer": {"text": "two"}} for _ in range(4))]
    file = rows(tmp_path, *lines)
    given = {"data": str(file), "prompt": "turns.0.content", "answer": "answer.text"}
    draft, data = draft_recipe(tmp_path / "mine.toml", told(**given, check="exact"))
    mapped = {"prompt": "turns.0.content", "answer": "answer.text"}
    assert draft.columns == {**mapped, "max_bad_fraction": 0.22}  # the first row has neither
    assert resolve(str(tmp_path / "mine.toml"), (), data).stages
    with pytest.raises(InputError, match=r"--answer answer\.txet: .* Did you mean 'answer\.text'"):
        draft_recipe(tmp_path / "other.toml", told(**given | {"answer": "answer.txet"}))


def test_a_full_disk_leaves_no_half_of_a_recipe(tmp_path, monkeypatch):
    """It would be in the way of the next try, which overwrites nothing."""
    to, opened = tmp_path / "mine.toml", Path.open

    def full(path: Path, *how: Any, **more: Any) -> Any:
        file = opened(path, *how, **more)
        if path == to:
            file.write = refuse
        return file

    def refuse(text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = rows(tmp_path, *WORKED)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "open", full)
        with pytest.raises(InputError, match="No space left on device"):
            draft_recipe(to, told(data=str(file)))
    assert not to.exists()
    draft_recipe(to, told(data=str(file)))


def test_the_commands_to_copy_look_in_the_store_that_was_given(tmp_path, lyceum, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    where = ["--data", rows(tmp_path, *WORKED), "--domain=math", "--target=v5e-8", "--usd=5"]
    where += ["--store", "/a store", "--no-rehearsal", "--json"]
    said = lyceum("init", tmp_path / "mine.toml", *where).json
    at = f"--store '/a store' --data {tmp_path}"
    assert said["next"] == [
        f"lyceum rehearse {tmp_path}/mine.toml {at}",
        f"lyceum plan {tmp_path}/mine.toml --usd 5 {at} --target v5e-8",
        f"lyceum run {tmp_path}/mine.toml {at} --target v5e-8",
    ]
    assert f"#   {said['next'][2]}\n" in (tmp_path / "mine.toml").read_text(encoding="utf-8")


def test_a_path_begins_at_home(tmp_path, lyceum, monkeypatch):
    """A shell leaves the ~ of `--data=~/rows.jsonl` alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", None)
    rows(tmp_path, *WORKED)
    given = ["--data=~/mine.jsonl", "--domain=math", "--no-rehearsal", "--json"]
    said = lyceum("init", "~/mine.toml", *given).json
    here = f"{tmp_path}/mine.toml --data {tmp_path}"
    assert (said["next"][0], said["next"][2]) == (f"lyceum rehearse {here}", f"lyceum run {here}")
    assert said["rehearsal"] is None
    plan = lyceum("plan", "~/mine.toml", "--data=~", "--store=~/store", "--json").json
    assert plan["recipe"] == "mine"
    wrong = lyceum("plan", "~/mine.toml", "--data=~no-such-user/rows", code=2).err
    assert "argument --data: path '~no-such-user/rows': there is no such user" in wrong


def test_a_files_name_is_no_part_of_the_recipe(tmp_path: Path) -> None:
    file = rows(tmp_path, *WORKED, name="a\nseed = 7\r\t.jsonl")
    draft_recipe(tmp_path / "mine.toml", told(data=str(file)))
    assert resolve(str(tmp_path / "mine.toml"), (), tmp_path).recipe.seed == 0


def test_work_and_answer_in_one_column_are_parted_at_the_marker_and_prompts_have_a_domain() -> None:
    worked = {"question": "1+1?", "answer": "one and one\n#### 2"}
    found = propose([worked, {**worked, "answer": ""}])
    assert found["prompt"] == "question"
    assert found["reasoning"] == {"column": "answer", "before": "####"}
    assert found["answer"] == {"column": "answer", "after": "####"}
    prompts = ["What is 17 + 25?", "Compute the derivative of x^2.", "Solve 3x = 12 for x."]
    assert propose_domain(prompts) == "math"


SYSTEM = {"role": "system", "content": "Be brief."}


def dialogue(place: int, *more: dict[str, Any], system: bool = False) -> dict[str, Any]:
    asked = {"role": "user", "content": f"{place}+1?"}
    said = {"role": "assistant", "content": f"<think>one more</think>\n\n{place + 1}"}
    return {"messages": [*([SYSTEM] if system else []), asked, said, *more]}


@pytest.mark.parametrize("system", [False, True])
def test_a_dialogue_is_read_by_its_roles_and_thoughts_in_tags_are_the_reasoning(tmp_path, system):
    """As chat data sets have them; the tags would end a trace (`tag_in_trace`)."""
    again = {"role": "user", "content": "Sure?"}
    lines = [dialogue(place, again, system=system) for place in range(6)]
    odd = dialogue(9, system=not system)  # its turns lie elsewhere
    draft, data = draft_recipe(tmp_path / "mine.toml", told(data=str(rows(tmp_path, *lines, odd))))
    assert draft.check == "numeric"
    [teacher] = resolve(str(tmp_path / "mine.toml"), (), data).stages[0].config_json["teachers"]
    source = Source.parse(teacher["sources"][0])
    example = example_of(source, lines[3], "mine.jsonl", 1, "mine")
    assert example.prompt == ("Be brief.\n\n3+1?" if system else "3+1?")
    assert (example.reasoning, example.answer) == ("one more", "4")
    with pytest.raises(NotAnExample, match=r"messages\.0\.role") as error:
        example_of(source, odd, "mine.jsonl", 1, "mine")
    assert error.value.cause == "left_out"


def test_a_column_that_is_named_is_parted_too(tmp_path):
    """`--answer said` with `<reasoning>...</reasoning><answer>...</answer>` in it."""
    said = "<reasoning>one more</reasoning><answer>{}</answer>"
    lines = [{"question": f"{one}+1?", "said": said.format(one + 1)} for one in range(6)]
    given = told(data=str(rows(tmp_path, *lines)), answer="said")
    draft, _ = draft_recipe(tmp_path / "mine.toml", given)
    assert draft.columns["reasoning"]["before"] == "</reasoning>"
    assert draft.columns["answer"] == {"column": "said", "after": "<answer>", "before": "</answer>"}
    assert draft.check == "numeric"


def test_choices_are_part_of_the_question(tmp_path):
    """Without them nobody knows what B is."""
    lines = [
        {"question": f"{one}+1?", "choices": {"text": [str(one), str(one + 1)]}, "answerKey": "B"}
        for one in range(6)
    ]
    given = {"data": str(rows(tmp_path, *lines)), "answer": "answerKey"}
    draft, data = draft_recipe(tmp_path / "mine.toml", told(**given))
    assert (draft.check, draft.columns["choices"]) == ("choice", "choices.text")
    [teacher] = resolve(str(tmp_path / "mine.toml"), (), data).stages[0].config_json["teachers"]
    source = Source.parse(teacher["prompts"][0]["sources"][0])
    assert "\nB. 3\n" in prompt_of(source, lines[2], "mine.jsonl", 1, "mine").prompt


def test_rows_without_a_number_do_not_end_the_run(tmp_path, capsys, monkeypatch):
    """`n.d.` in 5 rows of 100, and no reasoning in 2: a source allows 1 % where it says nothing."""
    odd = [{"answer": "n.d."}] * 5 + [{"why": ""}] * 2
    lines = [{**WORKED[1], "question": f"{n}+1?"} for n in range(93)]
    lines += [{**WORKED[1], **one} for one in odd]
    read = Mock(side_effect=init.read_records)
    monkeypatch.setattr(init, "read_records", read)
    _, data = draft_recipe(tmp_path / "mine.toml", told(data=str(rows(tmp_path, *lines))))
    said = "7 of 100 rows make no example (5 not_numeric, 2 empty_reasoning): they are left out"
    assert said in capsys.readouterr().err
    read.assert_called_once()  # a URL's second answer could hold other rows
    [teacher] = resolve(str(tmp_path / "mine.toml"), (), data).stages[0].config_json["teachers"]
    assert teacher["sources"][0]["max_bad_fraction"] == 0.08
    fine = rows(tmp_path, *lines[:93], name="fine.jsonl")
    draft_recipe(tmp_path / "other.toml", told(data=str(fine)))
    assert "max_bad" not in (tmp_path / "other.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("answers", "check"),
    [
        (["1", "-2,000.5", "$3", "4%"], "numeric"),
        (["yes", "no"], "exact"),
        (["1", ""], "numeric"),  # an empty cell makes no example, and tells nothing of the others
        (["yes", " "], "exact"),
        (["", ""], "none"),
        ([*("215.44",) * 19, "n.d."], "numeric"),  # as laboratories have them
        (["18.02 g/mol", "5 kJ/mol", "27 °C"], "quantity"),
        (["3 apples", "4 apples"], "exact"),
        (["a story " * 20], "none"),
    ],
)
def test_answers_propose_how_they_are_verified(answers: list[str], check: str) -> None:
    assert propose_check(answers) == check


def test_a_person_is_asked_what_no_option_says_and_an_empty_line_takes_the_proposal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows(tmp_path, *({**one, "hint": "count"} for one in WORKED))
    lines = [f"{file}\n", "\n", "0\n", "\n", "\n", "\n", "hint\n", "exact\n"]
    draft, _ = draft_recipe(tmp_path / "mine.toml", person(lines))
    assert (draft.model, draft.check) == ("gemma3-1b-it", "exact")
    assert draft.columns == {"prompt": "question", "reasoning": "hint", "answer": "answer"}
    asked = capsys.readouterr().err
    assert "The column of the reasoning" in asked
    assert "[why]" in asked


def test_half_a_character_is_asked_for_again(tmp_path, capsys):
    half = UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "unexpected end of data")
    read = Mock(side_effect=[half, f"{tmp_path}/none.csv", ""])
    with pytest.raises(Stopped):
        draft_recipe(tmp_path / "mine.toml", Asking({}, read))
    assert "none.csv is not there" in capsys.readouterr().err


def test_a_person_whose_answer_is_refused_is_told_why_and_asked_again(tmp_path, capsys):
    file = rows(tmp_path, *WORKED)
    lines = ["none.csv", f"{file}", "v5e-9", "local", "much", "0", "gema3-1b", "gemma3-1b-it"]
    lines += ["questoin", "question", "question", "answer", "whi", "why", "sums", "exact"]
    given = Asking({}, iter([f"{one}\n" for one in [*lines, "maths", "math"]]).__next__)
    draft, _ = draft_recipe(tmp_path / "mine.toml", given)
    assert draft.columns == {"prompt": "question", "reasoning": "why", "answer": "answer"}
    assert (draft.model, draft.check, draft.domain) == ("gemma3-1b-it", "exact", "math")
    said = capsys.readouterr().err
    for told in (
        "none.csv is not there",
        "unknown target 'v5e-9'",
        "much: give an amount",
        "gema3-1b",
        "questoin: the data have no such column. Did you mean 'question'?",
        "whi: the data have no such column. Did you mean 'why'?",
        "question: that is the prompt; name another column.",
        "sums: there is no such check. Valid: choice, exact",
        "maths: there is no such domain. Did you mean 'math'?",
    ):
        assert told in said


def test_a_person_whose_columns_make_no_example_names_others(tmp_path, capsys):
    file = rows(tmp_path, *({**one, "id": ""} for one in WORKED))
    begin = [f"{file}", "", "", ""]
    lines = [*begin, "question", "id", "why", "exact", "question", "answer", "-", "none"]
    lines += ["question", "answer", "why", "numeric"]
    draft, _ = draft_recipe(tmp_path / "mine.toml", person(f"{one}\n" for one in lines))
    assert (draft.columns["answer"], draft.check) == ("answer", "numeric")
    said = capsys.readouterr().err
    assert "8 of the first 8 rows cannot be used so; row 1: empty_answer" in said
    assert "without a column of reasoning" in said


def test_a_person_who_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        draft_recipe(tmp_path / "mine.toml", person([f"{rows(tmp_path, *WORKED)}\n"]))
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"data": None}, "--data is missing: Your data, a file or a URL"),
        ({"data": "/nowhere/mine.csv"}, "--data /nowhere/mine.csv is not there."),
        (
            {"data": "/dev/null"},
            "--data /dev/null is a pipe or a device: write its rows to a file.",
        ),
        ({"data": "/"}, "--data / is a directory: name the file in it."),
        ({"prompt": "questoin"}, "--prompt questoin: the data have no such column. Did you mean"),
        ({"check": "sums"}, "--check sums: there is no such check. Valid: choice, exact"),
        ({"check": "tests"}, "--check tests: there is no such check."),
        ({"domain": "maths"}, "--domain maths: there is no such domain. Did you mean 'math'?"),
        ({"target": "v5e-9"}, "unknown target 'v5e-9'"),
        ({"usd": "-1"}, "--usd -1: give an amount in US dollars"),
        ({"model": "gema3-1b"}, "gema3-1b"),
        ({"answer": "why", "check": "numeric", "reasoning": "id"}, "rows cannot be used so;"),
        ({"answer": "question"}, "--answer question: that is the prompt; name another column."),
        ({"reasoning": "-", "check": "none"}, "without a column of reasoning"),
        ({"check": "choice"}, "--check choice: no column is a list of 2 to 26 texts"),
        *(({"to": to}, "give a file such as mine.toml") for to in ("Mine.toml", "mine", "1.toml")),
        ({"to": "mine.csv"}, "give a file such as mine.toml"),
        ({"to": "recipes/mine.toml", "data": None}, "recipes; make it first"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(given, why, tmp_path):
    words = [{**one, "question": "Why?", "id": ""} for one in WORKED]
    all_given = {"data": str(rows(tmp_path, *words)), "to": "mine.toml", **given}
    to = tmp_path / all_given.pop("to")
    with pytest.raises(InputError) as error:
        draft_recipe(to, told(**all_given))
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert not to.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"question,answer\ncaf\xe9?,1\n", "this row is not UTF-8; save it as UTF-8."),
        (b"question,answer\none?,1,2\n", "line 2: 3 fields, the header has 2."),
        (b"question,answer\n", "holds no rows that can be read."),
        (b"question,answer\none?,1\n", "holds one row: too few"),
        ("question,answer\none?,1\n".encode("utf-16"), "line 1: a byte of the header is not UTF-8"),
    ],
)
def test_a_file_without_a_readable_row_says_why(content: bytes, why: str, tmp_path: Path) -> None:
    """As spreadsheets of some systems write it."""
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(InputError) as error:
        draft_recipe(tmp_path / "mine.toml", told(data=str(tmp_path / "mine.csv")))
    assert why in str(error.value)


def test_a_file_whose_name_is_no_utf_8_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """As the command line hands on the byte 0xff."""
    file = rows(tmp_path, *WORKED, name="mine\udcff.jsonl")
    with pytest.raises(InputError, match=r"mine\\udcff.jsonl.* is not valid UTF-8 text"):
        draft_recipe(tmp_path / "mine.toml", told(data=str(file)))
    assert not (tmp_path / "mine.toml").exists()


def test_a_file_that_is_there_is_not_overwritten(tmp_path, lyceum):
    to = tmp_path / "mine.toml"
    to.write_text("mine", encoding="utf-8")
    said = lyceum("init", to, "--data", rows(tmp_path, *WORKED), "--no-rehearsal", code=2).err
    assert "is there already, and is not overwritten" in said
    assert to.read_text(encoding="utf-8") == "mine"
