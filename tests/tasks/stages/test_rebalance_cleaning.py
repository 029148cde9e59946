"""A rebalance stage that cleans: every drop is counted and traced, prompts and pairs are those of
the train split, and neither order nor sharding of the files change a byte."""

import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.examples import Example, PreferencePair, Prompt, prompt_id
from tasks.cleaning.rules import split_of
from tasks.contract.job import read_jsonl, write_jsonl
from tasks.data.dropped import Dropped
from tasks.stages import rebalance
from tests.tasks.stages.test_rebalance import EXAM, distilled, example, job, prose


def mixed() -> tuple[list[Example], list[Prompt], list[PreferencePair]]:
    """Rows with every reason to be dropped, and their pairs."""

    def made(family: str, numbers: range, text: str = "{}", **more: Any) -> list[Example]:
        about = {"family": family, "source": f"{family}.jsonl", **more}
        return [example(text.format(prose(n)), line=n, **about) for n in numbers]

    rows = [
        example(prose(n), difficulty=1 + n % 5, family="prose", source="prose.jsonl", line=n + 1)
        for n in range(160)
    ]
    rows += [
        example(prose(n).upper(), difficulty=2, family="again", source="again.jsonl", line=n)
        for n in range(10)
    ]
    rows += made("near", range(10, 20), "{} more")
    rows += made("mail", range(900, 905), "Write to ada@lyceum.school about {}")
    rows += [
        example(f"Wie viele Münzen hat Ada noch übrig, wenn sie {n} davon ausgibt?", family="de")
        for n in range(5)
    ]
    rows += [example(" ".join([prose(n)] * 20), family="long") for n in range(950, 955)]
    rows += made("leak", range(1000, 1006))
    unsolved = [
        Prompt(**example(prose(n)).model_dump(exclude={"reasoning"}) | {"pass_rate": 0.0})
        for n in [*range(300, 320), 5]
    ]
    why: dict[str, Any] = {"chosen_from": "teacher", "rejected_because": "wrong"}
    pairs = [
        PreferencePair(
            id=row.id, prompt=row.prompt, domain=row.domain, chosen="a", rejected=f"b{n}", **why
        )
        for n, row in enumerate([*rows[:120], *rows[170:180]])
    ]
    return rows, unsolved, pairs


CLEANED: dict[str, Any] = {
    "quotas": {"math": {"train": 60, "validation": 3, "heldout": 15}},
    "languages": ["en"],
    "pii": ["email"],
    "max_prompt_tokens": 1100,
    "model": "gemma3-tiny",
    **EXAM,
    "top_up": 0,
}


@pytest.fixture(scope="module")
def exam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    write_jsonl(data / "exam.jsonl", [{"question": prose(n)} for n in range(1000, 1010)])
    return data


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory, exam: Path) -> tuple[dict[str, Any], Path]:
    tmp_path = tmp_path_factory.mktemp("cleaned")
    rows, unsolved, pairs = mixed()
    source = distilled(tmp_path / "in", rows, unsolved=unsolved, pairs=pairs)
    made = job(tmp_path, source, data=exam, **CLEANED)
    return rebalance.run(made), made.out


def test_every_drop_is_counted_by_cause_and_traced_to_its_row(cleaned):
    metrics, out = cleaned
    dropped = read_jsonl(out / "dropped.jsonl", Dropped)
    causes = {
        "contaminated": 6, "duplicate_prompt": 11, "language": 5, "near_duplicate": 10, "pii": 5,
        "too_long": 5,
    }  # fmt: skip
    assert metrics["dropped"] == causes == Counter(row.cause for row in dropped)
    assert metrics["contaminated_by"] == {"exam": 6}
    by_family = {row.source: row.cause for row in dropped}
    expected = {"mail": "pii", "de": "language", "long": "too_long", "leak": "contaminated"}
    assert {name: by_family[name] for name in expected} == expected
    assert {(row.file, row.line) for row in dropped if row.source == "mail"} == {
        ("mail.jsonl", n) for n in range(900, 905)
    }
    left = metrics["rows"]["validation"] + metrics["rows"]["heldout"]
    left += metrics["prompts"] + metrics["unused"]
    assert metrics["read"] == sum(causes.values()) + left == 201 + 21


def test_prompts_and_pairs_are_those_of_the_train_split(cleaned):
    metrics, out = cleaned
    train = {row.id for row in read_jsonl(out / "train.jsonl", Example)}
    prompts = read_jsonl(out / "prompts.jsonl", Prompt)
    pairs = read_jsonl(out / "pairs.jsonl", PreferencePair)
    unsolved = {prompt_id(prose(n)) for n in range(300, 320)}
    extra = {row.id for row in prompts} - train
    assert train <= {row.id for row in prompts}
    assert extra == {one for one in unsolved if split_of(one, 0.05, 0.15) == "train"} != set()
    assert {row.pass_rate for row in prompts if row.id in extra} == {0.0}
    assert {pair.id for pair in pairs} <= train
    assert metrics["prompts"] == len(prompts)
    assert metrics["pairs"] == len(pairs) > 20


def digests(out: Path) -> dict[str, str]:
    """Of every file; dropped.jsonl is in the order of the files it is about, so of its lines in
    order."""
    paths = [path for path in out.rglob("*") if path.is_file()]
    files = {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}
    files["dropped.jsonl"] = b"".join(sorted(files["dropped.jsonl"].splitlines()))
    return {name: hashlib.sha256(text).hexdigest() for name, text in sorted(files.items())}


def test_order_and_sharding_of_the_files_change_no_byte(tmp_path, cleaned, exam, monkeypatch):
    rows, unsolved, pairs = mixed()
    for kind in (rows, unsolved, pairs):
        random.Random(3).shuffle(kind)
    whole = distilled(tmp_path / "whole", rows[:90], unsolved=unsolved[:5], pairs=pairs[:50])
    rest = distilled(tmp_path / "rest", rows[90:], unsolved=unsolved[5:], pairs=pairs[50:])
    monkeypatch.setattr(rebalance.Files, "named", lambda self, name: [rest / name, whole / name])
    made = job(tmp_path, whole, data=exam, **CLEANED)
    assert rebalance.run(made) == cleaned[0]
    assert digests(made.out) == digests(cleaned[1])
