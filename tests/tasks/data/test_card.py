"""The data card: counted from the files, the hub's form, the same bytes again, and no row that can
break it."""

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from schemas.examples import Domain, Example, Prompt, prompt_id
from tasks.cleaning.rules import SPLITS
from tasks.contract.job import read_jsonl, write_jsonl
from tasks.data import card
from tasks.data.data_files import data_files
from tasks.data.row_counts import SAMPLES, licences, quantile
from tasks.stages import rebalance
from tests.tasks.stages.test_rebalance import distilled, job, prose

ATTACK = """# Title
| a | b |
---
```
</pre></td><script>alert(1)</script><img src=x onerror=alert(1)>
![x](http://evil.example/x.png) [link](javascript:alert(1)) <http://evil.example> www.evil.example https://evil.example
````text
~~~
*bold* __bold__ $x$ \\
- item\r\u2028* item
"""

PAGE = MarkdownIt("commonmark", {"html": True}).enable("table")
SECOND = {"path": "b.jsonl", "family": "second", "licence": "cc-by-4.0"}
LENDER = {"name": "dataset", "sources": [{"path": "a/*.jsonl", "family": "", "licence": "MIT"}]}
TEACHERS = [
    {"name": "openai_compatible", "model": "gpt-oss-120b", "prompts": [LENDER]},
    {"name": "dataset", "sources": [SECOND, {"path": "b.jsonl", "family": "third"}]},
]


def row(number: int, text: str = "", **more: Any) -> Example:
    prompt = prose(number) + text
    about: dict[str, Any] = {"domain": Domain.MATH, "difficulty": 1 + number % 5, "answer": "1"}
    about |= {"family": "a", "source": "a/1.jsonl", "line": number + 1} | more
    return Example(id=prompt_id(prompt), prompt=prompt, reasoning=f"It is {number}.", **about)


def rows() -> list[Example]:
    made = [row(number) for number in range(200)]
    made += [row(number, " again", family="second", source="b.jsonl") for number in range(20)]
    third = {"domain": Domain.CODING, "family": "third", "source": "b.jsonl"}
    made += [row(number, **third) for number in range(300, 400)]
    evil = {"family": f"x{ATTACK}", "source": "y|<b>*.jsonl", "domain": Domain.CREATIVE}
    made += [row(number, f" {ATTACK}", **evil) for number in range(500, 540)]
    context = "Ada has a boat. " * 30
    grounded = {"domain": Domain.GENERAL, "grounding": "answerable", "context": context}
    told = [row(number, **grounded) for number in range(600, 640)]
    return made + [one.model_copy(update={"prompt": f"{context} {one.prompt}"}) for one in told]


FEW = {"coding": {"train": 50}, "creative": {"train": 20}}
CONFIG: dict[str, Any] = {
    "quotas": {"math": {"train": 80, "validation": 4, "heldout": 8}, **FEW},
    "grounding_quotas": {"answerable": {"train": 20}},
    "max_prompt_tokens": 2000,
    "model": "gemma3-tiny",
    "contamination": {"heldout": False},
    "evaluations": [{"name": "exam|", "path": "exam.jsonl", "prompt": "question"}],
    "top_up": 0,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    tmp_path = tmp_path_factory.mktemp("card")
    write_jsonl(tmp_path / "exam.jsonl", [{"question": prose(number)} for number in range(5)])
    solved = [row(number).model_dump(exclude={"reasoning"}) for number in range(700, 720)]
    unsolved = [Prompt(**one) for one in solved]
    source = distilled(tmp_path / "in", rows(), unsolved=unsolved, teachers=TEACHERS)
    stage = job(tmp_path, source, data=tmp_path, **CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        # these teachers exist on paper only
        patch.setattr("tasks.teaching.topping_up.teachers_of", lambda tables: [])
        return stage.out, rebalance.run(stage)


@pytest.fixture(scope="module")
def text(made: tuple[Path, dict[str, Any]]) -> str:
    return (made[0] / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(text: str) -> str:
    """As a page that lets raw HTML through would show it."""
    return PAGE.render(text.split("---\n", 2)[2])


def test_the_front_matter_is_what_the_hub_reads(text: str) -> None:
    about = DatasetCard(text).data.to_dict()
    assert about == yaml.safe_load(text.split("---\n")[1])
    assert about["license"] == ["cc-by-4.0", "mit", "unknown"]
    assert about["language"] == ["en"]
    assert about["size_categories"] == ["n<1K"]
    assert about["task_categories"] == ["text-generation", "question-answering"]
    default, prompts = about["configs"]
    files = [one["path"] for one in default["data_files"]]
    assert files == ["train.jsonl", "validation.jsonl", "heldout.jsonl"]
    assert prompts == {"config_name": "prompts", "data_files": "prompts.jsonl"}


def test_licences_and_counts_are_those_of_the_files(made, text):
    out, metrics = made
    kept = [one for split in SPLITS for one in read_jsonl(out / f"{split}.jsonl", Example)]
    families = Counter(one.family for one in kept)
    stated = {"MIT": families["a"], "cc-by-4.0": families["second"]}
    assert metrics["licences"] == stated | {"not stated": len(kept) - sum(stated.values())}
    assert f"| a | a/1.jsonl | MIT | {families['a']} |" in text
    math = Counter(one.difficulty for one in kept if one.domain == Domain.MATH)
    assert f"| math | {' | '.join(str(math[level]) for level in range(1, 6))} | 92 |" in text
    lengths = sorted(len(one.prompt) for one in kept)
    middle = lengths[(len(lengths) + 1) // 2 - 1]
    assert f"| prompt, characters | {len(kept)} | {lengths[0]} | {middle:,} |" in text
    assert re.search(r"\| response, tokens \| 170 \|", text)


@pytest.mark.parametrize(
    ("pattern", "found", "others"),
    [
        ("a/*.jsonl", ["a/1.jsonl", "a/[1].jsonl"], ["a/b/1.jsonl", "x/a/1.jsonl"]),
        ("[1]?.jsonl", ["[1]?.jsonl"], ["1a.jsonl"]),
        ("**/a*.csv", ["a.csv", "x/a1.csv", "x/y/a.csv"], ["x/b/y.csv", "xa.csv"]),
        ("a/**/b/*.csv", ["a/b/1.csv", "a/x/y/b/1.csv"], ["a/b/x/1.csv"]),
    ],
)
def test_a_licence_is_that_of_the_files_that_its_path_finds(tmp_path, pattern, found, others):
    for name in (*found, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    licence = licences([{"sources": [{"path": pattern, "licence": "MIT"}]}])
    names = {name for name, _ in data_files(tmp_path, pattern, "a test")}
    assert names == set(found) == {one for one in (*found, *others) if licence("", one) == "MIT"}


def test_what_was_dropped_stands_beside_what_it_matches(made, text):
    assert made[1]["dropped"]["near_duplicate"] >= 15
    of_exam = {"exam|": 10}
    assert made[1]["contaminated_by"] == of_exam, "its prompts, and those that begin with one"
    part = text.split("## Near duplicates")[1].split("##")[0]
    near = [line for line in part.splitlines() if line.startswith("| ")]
    assert len(near) == 2 + card.MATCHES
    cells = [cell.strip() for cell in near[-1].split("|")[1:-1]]
    assert cells[0].removesuffix(" again") == cells[1].removesuffix(" again") != ""
    exam = text.split("## Contamination")[1].split("##")[0]
    assert "exam&#124; 10" in exam
    first = [line.split("|")[1:3] for line in exam.splitlines() if line.startswith("| The")]
    assert all(dropped.strip().removesuffix(" again") == item.strip() for dropped, item in first), (
        "each beside its own item"
    )


def test_twenty_samples_go_round_the_domains(text: str) -> None:
    heads = re.findall(r"^### \d+\. (\w+)", text, re.MULTILINE)
    assert len(heads) == SAMPLES
    assert heads[:5] == ["math", "coding", "creative", "answerable", "math"]


def test_no_row_can_break_the_card(html: str) -> None:
    tags = Counter(re.findall(r"<(\w+)", html))
    harmless = "h1 h2 h3 p table thead tbody tr th td img pre code br"
    assert set(tags) <= set(harmless.split())
    images = [f"card/{name}.svg" for name in ("cells", "lengths", "dropped")]
    assert re.findall(r'<img src="([^"]*)"', html) == images
    assert [tags[one] for one in ("img", "h1", "h2", "pre")] == [3, 1, 7, 2 * SAMPLES]
    assert "alert(1)&lt;/script&gt;" in html, "the attack is shown as text"


def test_equal_rows_give_equal_bytes(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, metrics = made
    (tmp_path / "examples.jsonl").write_bytes((out / "train.jsonl").read_bytes())
    written = []
    counted = {"domains": {"math": 3}, "groundings": {}, "dropped": metrics["dropped"]}
    for _ in range(2):
        card.of_distill(tmp_path, TEACHERS, counted)
        files = [tmp_path / "README.md", *sorted((tmp_path / "card").iterdir())]
        written.append([path.read_bytes() for path in files])
        shutil.rmtree(tmp_path / "card")
    assert len(written[0]) == 4
    assert written[0] == written[1]
    assert b"<dc:date>" not in (out / "card" / "cells.svg").read_bytes()


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ({"dropped": {}}, "0 rows: 0 train."),
        (
            {"dropped": {"duplicate_prompt": 3}, "conflicts": 2},
            "2 of the duplicates have another answer",
        ),
    ],
)
def test_an_artifact_without_rows_has_a_card(tmp_path: Path, dropped, said) -> None:
    (tmp_path / "examples.jsonl").touch()
    nothing = {"domains": {}, "groundings": {}, **dropped}
    card.of_distill(tmp_path, [{"name": "procedural"}], nothing)
    assert said in (tmp_path / "README.md").read_text()


@given(st.text())
def test_escaped_text_is_one_paragraph_of_text(text: str) -> None:
    shown = PAGE.render(f"A {card.escape(text)} Z")
    assert shown.startswith("<p>A ")
    assert shown.rstrip().endswith(" Z</p>")
    assert set(re.findall(r"<(\w+)", shown)) <= {"p", "br"}


@given(st.text(alphabet="`~\n a"))
def test_fenced_text_is_one_code_block(text: str) -> None:
    shown = PAGE.render(card.fenced(text) + "\n\nafter")
    assert shown.count("<pre>") == 1
    assert shown.endswith("<p>after</p>\n")


def test_quantiles_are_lengths_that_so_many_rows_do_not_exceed() -> None:
    lengths = Counter({1: 1, 5: 8, 9: 1})
    shares = (0.0, 0.1, 0.5, 0.9, 0.91, 1.0)
    assert [quantile(lengths, share) for share in shares] == [1, 1, 5, 5, 9, 9]
    assert quantile(Counter(), 0.5) == 0
