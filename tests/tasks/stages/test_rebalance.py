"""Rebalance: exact stratified quotas after all cleaning, splits that never move a prompt, and
errors that say what is missing."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2

from schemas.base import InputError
from schemas.examples import Domain, Example, prompt_id
from tasks.cleaning.filters import Length
from tasks.cleaning.rules import SPLITS, split_of
from tasks.contract.job import Job, read_jsonl, write_jsonl
from tasks.stages import rebalance
from tests.tasks.jobs import job_at
from tests.tasks.models.small_model import write_small_model

PROCEDURAL = {"name": "procedural", "rows": {}, "grounded": {}}
NOUNS = (
    "amber basin cedar delta ember fjord grove heron inlet jetty knoll larch mango north olive"  # noqa: SIM905
    " pearl quartz river".split()
)
WORDS = [f"{one} {other}" for one in NOUNS for other in NOUNS]


def example(
    text: str, domain: str = "math", difficulty: int = 1, grounding: str | None = None, **more: Any
) -> Example:
    more |= {"grounding": grounding, "context": "Fact." if grounding else None, "reasoning": "r"}
    about = {"id": prompt_id(text), "domain": Domain(domain), "difficulty": difficulty}
    return Example(prompt=text, answer="1", **about, **more)


def prose(number: int) -> str:
    """A prompt that is like no other: words drawn by its number."""
    things = " and the ".join(random.Random(number).choices(WORDS, k=10))
    return f"The {things} are in the house of number {number}."


POOL = [example(f"math {n}", "math", 1 + n % 5) for n in range(1000)]
POOL += [example(f"coding {n}", "coding", 1 + n % 2) for n in range(400)]
POOL += [example(f"grounded {n}", "general", 3, "answerable") for n in range(300)]
AS_IT_IS = {"near_duplicates": False, "contamination": False, "top_up": 0}
"""For prompts that differ by a number only."""


def distilled(directory, examples, *, unsolved=None, pairs=None, teachers=None, spent=None) -> Path:
    """A distill artifact."""
    directory.mkdir(parents=True)
    files = {"examples": examples, "unsolved": unsolved, "pairs": pairs, "dropped": None}
    for name, rows in files.items():
        write_jsonl(directory / f"{name}.jsonl", rows or [])
    tables = teachers or [PROCEDURAL]
    spent = spent or [{"usd": 0.0, "tokens": 0} for _ in tables]
    about = {"teachers": tables, "seed": 0, "spent": spent}
    (directory / "teachers.json").write_text(json.dumps(about))
    return directory


def job(
    tmp_path: Path, source: Path, key: str = "key", data: Path | None = None, **config: Any
) -> Job[rebalance.Config]:
    parsed = rebalance.Config.parse(config)
    return job_at(tmp_path, parsed, {"examples": source}, key=key, data=data)


def run(
    tmp_path: Path, examples: list[Example], **config: Any
) -> tuple[dict[str, Any], dict[str, list[Example]]]:
    source = distilled(tmp_path / f"in{len(list(tmp_path.glob('in*')))}", examples)
    made = job(tmp_path, source, **config)
    metrics = rebalance.run(made)
    return metrics, {split: read_jsonl(made.out / f"{split}.jsonl", Example) for split in SPLITS}


QUOTAS: dict[str, Any] = {
    "quotas": {
        "math": {"train": 500, "validation": 20, "heldout": 101},
        "coding": {"train": 99, "heldout": 7},
    },
    "grounding_quotas": {"answerable": {"train": 50, "heldout": 20}},
    **AS_IT_IS,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> tuple[dict[str, Any], dict[str, list[Example]]]:
    return run(tmp_path_factory.mktemp("result"), POOL, **QUOTAS)


def test_every_quota_is_met_exactly_and_no_prompt_is_in_two_splits(result):
    metrics, splits = result
    assert {
        split: Counter(row.grounding or row.domain.value for row in rows)
        for split, rows in splits.items()
    } == {
        "train": {"math": 500, "coding": 99, "answerable": 50},
        "validation": {"math": 20},
        "heldout": {"math": 101, "coding": 7, "answerable": 20},
    }
    assert metrics["rows"] == {"train": 649, "validation": 20, "heldout": 128}
    assert len({row.id for rows in splits.values() for row in rows}) == 649 + 20 + 128
    heldout = metrics["domains"]["math"]["heldout"]
    assert (heldout["requested"], heldout["achieved"]) == (101, 101)
    assert sum(split["available"] for split in metrics["domains"]["math"].values()) == 1000
    assert metrics["groundings"]["answerable"]["train"]["achieved"] == 50
    assert metrics["read"] == 1700 == sum(metrics["rows"].values()) + metrics["unused"]


def test_difficulties_keep_their_share(result):
    metrics, splits = result
    train = Counter(row.difficulty for row in splits["train"] if row.domain == "math")
    training = [row for row in POOL if split_of(row.id, 0.05, 0.15) == "train"]
    available = Counter(row.difficulty for row in training if row.domain == "math")
    for difficulty, count in train.items():
        assert abs(count - 500 * available[difficulty] / available.total()) < 1
    assert metrics["domains"]["math"]["train"]["difficulty"] == {
        str(level): train[level] for level in range(1, 6)
    }


def test_a_domain_without_a_quota_gives_no_rows(tmp_path):
    _, splits = run(tmp_path, POOL, quotas={"coding": {"train": 10}}, **AS_IT_IS)
    assert {row.domain.value for rows in splits.values() for row in rows} == {"coding"}


def test_a_table_asks_for_exactly_so_many_of_each_difficulty(tmp_path):
    quotas = {"math": {"train": {"1": 3, "4": 60}, "heldout": 5}}
    metrics, splits = run(tmp_path, POOL, quotas=quotas, **AS_IT_IS)
    assert Counter(row.difficulty for row in splits["train"]) == {1: 3, 4: 60}
    cell = metrics["domains"]["math"]["train"]
    assert (cell["requested"], cell["requested_difficulty"]) == (63, {"1": 3, "4": 60})
    assert cell["available_difficulty"]["4"] >= 60


def test_another_seed_takes_other_rows_but_moves_none_between_splits(tmp_path, result):
    _, second = run(tmp_path, POOL, **QUOTAS, seed=1)
    ids = [
        {split: {row.id for row in rows} for split, rows in splits.items()}
        for splits in (result[1], second)
    ]
    assert ids[0]["train"] != ids[1]["train"]
    assert not ids[0]["train"] & ids[1]["heldout"]
    assert not ids[0]["heldout"] & ids[1]["train"]


def test_a_quota_that_cannot_be_filled_names_cell_what_there_is_and_what_is_missing(tmp_path):
    quotas = {
        "math": {"train": 900, "heldout": 10},
        "science": {"heldout": 5},
        "coding": {"train": {"2": 190, "5": 1}},
    }
    grounded = {"unanswerable": {"train": 1}}
    with pytest.raises(InputError) as error:
        run(tmp_path, POOL, quotas=quotas, grounding_quotas=grounded, **AS_IT_IS)
    has = Counter(split_of(row.id, 0.05, 0.15) for row in POOL if row.domain == "math")
    lines = [line.split() for line in str(error.value).splitlines()]
    assert lines[1] == ["cell", "requested", "available", "missing"]
    assert ["quotas.math.train", "900", f"{has['train']}", f"{900 - has['train']}"] in lines
    assert ["quotas.science.heldout", "5", "0", "5"] in lines
    assert ["quotas.coding.train.5", "1", "0", "1"] in lines
    assert ["grounding_quotas.unanswerable.train", "1", "0", "1"] in lines
    assert "quotas.math.heldout" not in str(error.value)
    assert (
        "math: 1000 examples and 0 unsolved prompts were read; dropped: none; 1000 examples are"
        f" left ({has['train']} train," in str(error.value)
    )
    assert "Lower the quota, let the teacher produce more rows" in str(error.value)


MATH = {"quotas": {"math": {"train": 1}}}
EXAM = {"evaluations": [{"name": "exam", "path": "exam.jsonl", "prompt": "question"}]}


def test_a_wrong_config_is_refused():
    for config, message in (
        ({"quotas": {"maths": {"train": 1}}}, "Input should be 'math'"),
        ({"quotas": {"math": {"train": -1}}}, "greater than or equal to 0"),
        ({"quotas": {"math": {"test": 1}}}, "Extra inputs"),
        ({**MATH, "validation_fraction": 0.5, "heldout_fraction": 0.5}, "leaves nothing to train"),
        ({}, "no quota is set"),
        (
            {"quotas": {"math": {"heldout": 1}}, "heldout_fraction": 0.0},
            "heldout_fraction is 0, and quotas.math asks for rows",
        ),
        ({**MATH, "max_prompt_tokens": 9}, "need a model"),
        ({**MATH, "near_duplicates": True}, "near_duplicates"),
        ({**MATH, "pii": ["name"]}, "Input should be 'email'"),
        ({**MATH, "contamination": False, **EXAM}, "leave one of the two out"),
    ):
        with pytest.raises(ValueError, match=message):
            rebalance.Config.parse(config)


def test_the_model_decides_only_where_tokens_are_counted():
    model = {**MATH, "model": "gemma3-1b-it"}
    assert rebalance.Config.parse(model).model is None
    assert rebalance.Config.parse({**model, "max_prompt_tokens": 99}).model == "gemma3-1b-it"


def test_tokens_are_counted_by_the_models_own_tokenizer(tmp_path):
    model = write_small_model(tmp_path / "model")
    own = (model / "tokenizer.model").read_bytes()
    (model / "sub").mkdir()
    (model / "sub" / "tokenizer.model").write_bytes(b"another")
    config = rebalance.Config.parse({**MATH, "max_response_tokens": 9, "model": str(model)})
    (length,) = rebalance.filters(config)
    assert length == Length(own, None, 9)
    before = rebalance.dependencies(config, None)
    changed = sentencepiece_model_pb2.ModelProto.FromString(own)
    changed.trainer_spec.model_prefix = "changed"
    (model / "tokenizer.model").write_bytes(changed.SerializeToString())
    assert rebalance.dependencies(config, None) != before
    (model / "tokenizer.model").unlink()
    (model / "sub" / "tokenizer.model").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer\.model, so its tokens cannot be"):
        rebalance.filters(config)


def test_the_checks_that_tell_answers_apart_are_in_the_key():
    """Duplicates whose answers differ are dropped, and a check says whether they do."""
    found = rebalance.dependencies(rebalance.Config.parse(MATH), None)
    checks = {"choice", "exact", "math", "numeric", "quantity"}
    assert {name for name in found if name.startswith("checks.")} == {f"checks.{x}" for x in checks}


def test_an_unknown_language_is_named_before_anything_runs(tmp_path):
    config = rebalance.Config.parse({**MATH, "languages": ["en", "english"]})
    with pytest.raises(InputError, match=r"languages: 'english' is unknown.*\ben\b"):
        rebalance.dependencies(config, None)
