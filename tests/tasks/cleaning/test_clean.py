"""Cleaning as a whole: every row is decided once, for a reason that can be followed, whatever the
order and sharding of the files."""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.examples import Prompt, prompt_id
from tasks.cleaning import survey
from tasks.cleaning.clean import Cleaned
from tasks.cleaning.near_duplicates import ranks
from tasks.cleaning.rules import (
    CAUSES,
    COLUMNS,
    GROUPS,
    SPLITS,
    STATE_BYTES,
    Contamination,
    split_of,
)
from tests.tasks.cleaning.cleaning_rows import TooLong, cleaned, corpus, row, text, write


def by_line(found: Cleaned) -> list[tuple[bytes, str]]:
    """What happened to each line, in an order that does not depend on where it was."""
    rows = range(len(found.id))
    return sorted(
        (line, CAUSES[found.cause[at]]) for at, line in zip(rows, found.lines(rows), strict=True)
    )


def made(
    rows: Sequence[Prompt], directory: Path, items: Sequence[tuple[str, str]] = (), **changes: Any
) -> Cleaned:
    """The rows of one file, cleaned."""
    return cleaned(write(rows, directory / "rows", 1), directory / "s", items, **changes)


def split(prompt: str) -> str:
    """Where a prompt goes."""
    return split_of(prompt_id(prompt), 0.1, 0.2)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([256, 1000, 2**22]))
def test_order_and_sharding_of_the_files_change_nothing(
    tmp_path_factory, monkeypatch, seed, shards, block
):
    tmp_path = tmp_path_factory.mktemp("cleaning")
    rows, items = corpus(seed % 7, distinct=60)
    long = (TooLong(300),)
    one = made(rows, tmp_path, items, filters=long)
    causes = {"kept", "duplicate_prompt", "near_duplicate", "contaminated", "too_long"}
    assert set(one.counts()) == causes
    shuffled = random.Random(seed).sample(rows, len(rows))
    monkeypatch.setattr(survey, "BLOCK_BYTES", block)
    files = write(shuffled, tmp_path / "other", shards)
    other = cleaned(files, tmp_path / "2", items[::-1], filters=long)
    assert by_line(other) == by_line(one)
    assert other.digest() == one.digest()


def test_a_verbatim_copy_of_a_grounded_item_is_found_however_short_its_question(tmp_path):
    """Without the context it has fewer words than an n-gram. Another question about that context is
    no copy."""
    context = text(random.Random(1))
    asked = [f"Context: {context}\nQuestion: {one}" for one in ("Is it so?", "Is it not?")]
    rows = [row(one).model_copy(update={"context": context}) for one in asked]
    found = made(rows, tmp_path, [("other", text(random.Random(2))), ("it", asked[0].upper())])
    assert found.counts() == {"kept": 1, "contaminated": 1}
    assert [one.detail for one in found.dropped()] == [
        "the same words as items item it, coverage 1.00"
    ]


def test_every_line_is_in_exactly_one_block(tmp_path):
    lines = [b"x" * length for length in (1, 9, 10, 11, 30, 1, 1, 1, 19)]
    for ending in (b"", b"\n"):
        file = tmp_path / "lines"
        file.write_bytes(b"\n".join(lines) + ending)
        size = file.stat().st_size
        for step in range(1, size + 2):
            parts = [
                survey.lines_of(survey.Block(0, 0, file, start, min(start + step, size)))
                for start in range(0, size, step)
            ]
            assert [line for _, part in parts for line in part] == lines
            for offset, part in parts:
                if part:
                    assert file.read_bytes()[offset : offset + len(part[0])] == part[0]


def test_of_one_prompt_the_solved_row_stays_and_of_those_one_by_content(tmp_path):
    prompt = "How many legs have seven spiders and two cats?"
    rows = [row(prompt, solved=False), row(prompt.upper(), reasoning="b")]
    rows += [row(prompt, reasoning="a"), row(f"  {prompt}", solved=False)]
    kept = set()
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        found = made([rows[at] for at in order], tmp_path / f"{order}")
        (line,) = found.lines(found.remaining)
        kept.add(line)
        assert found.counts() == {"kept": 1, "duplicate_prompt": 3}
        assert (found.match[found.cause > 0] == found.remaining[0]).all()
    assert len(kept) == 1
    assert "reasoning" in json.loads(kept.pop())


def test_a_duplicate_with_another_answer_is_named_with_both(tmp_path):
    """Where answers are compared: 1.0 is 1 as a number, and free text may differ."""
    asked, changes = ["numeric", "numeric", "exact", "none"], ["1.0", "2", "two", "2"]
    rows = []
    for at, (check, answer) in enumerate(zip(asked, changes, strict=True)):
        one = row(f"Question {at} of the quiz, about hens?").model_copy(update={"check": check})
        rows += [one, one.model_copy(update={"answer": answer})]
    found = made(rows, tmp_path, near_duplicates=None, contamination=None)
    assert found.counts() == {"kept": 4, "duplicate_prompt": 4}
    assert {at // 2 for at in found.conflicts} == {1, 2}
    details = [one.detail for one in found.dropped()]
    both = [{"1", "2"}, {"1", "two"}]
    assert [set(re.findall(r"'(\w+)'", one)) for one in details if "whose answer" in one] == both


def test_rows_that_fail_a_filter_lead_nobody(tmp_path):
    """The longer of two equal prompts is too long: the other stays, whichever the hash would have
    chosen."""
    prompt = text(random.Random(0), 20)
    rows = [row(" " * 300 + prompt), row(prompt)]
    found = made(rows, tmp_path, filters=(TooLong(300),))
    assert [CAUSES[cause] for cause in found.cause] == ["too_long", "kept"]


def test_a_drop_names_its_row_its_cause_and_its_match(tmp_path):
    rng = random.Random(5)
    base, item = text(rng, 60), text(rng, 20)
    prompts = [base, base.upper(), f"{base} more", f"so {item}", text(rng, 70)]
    rows = [row(one, source=f"source{at}.jsonl", line=10 + at) for at, one in enumerate(prompts)]
    limit = TooLong(len(prompts[3]) + 300)
    found = made(rows, tmp_path, [("item 3", item)], filters=(limit,), heldout_fraction=0.0)
    records = list(found.dropped())
    kept = {int(at) for at in found.remaining}
    assert sum(found.counts().values()) == len(rows) == len(records) + len(kept)
    told = {}
    for record in records:
        at = int(record.file[6])
        assert (record.line, record.id, record.source) == (10 + at, prompt_id(prompts[at]), "f")
        assert at not in kept
        told[record.cause] = record.detail
        if record.cause == "near_duplicate":
            other, score = int(found.match[at]), found.score[at]
            assert other in kept
            assert 0.7 <= score < 1
            like = f"estimated Jaccard similarity {score:.2f} to prompt {prompt_id(prompts[other])}"
    assert told == {
        "duplicate_prompt": f"the same as prompt {prompt_id(base)}",
        "near_duplicate": like,
        "contaminated": "shares n-grams with items item item 3, coverage 1.00",
        "too_long": f"{len(prompts[4])} characters",
    }


@pytest.mark.parametrize("solved", [range(4), [2]], ids=["all", "one"])
def test_of_near_duplicates_the_first_by_rank_stays_and_a_solved_one_before_others(
    tmp_path, solved
):
    base, endings = text(random.Random(2), 80), ("one", "two", "three", "four")
    rows = [row(f"{base} {end}", solved=at in solved) for at, end in enumerate(endings)]
    for seed in range(4):
        found = made(rows, tmp_path / f"{seed}", seed=seed, contamination=None)
        first = int(np.argmin(ranks(np.asarray(found.id), np.asarray(found.content), seed)))
        assert found.remaining.tolist() == [first]
        assert first in solved
        assert set(found.match[found.cause > 0].tolist()) == {first}


def test_rows_that_give_a_held_out_prompt_away_do_not_train(tmp_path):
    rng = random.Random(4)
    prompts = [text(rng, 30) for _ in range(40)]
    heldout = [one for one in prompts if split(one) == "heldout"]
    longer = [f"{text(rng, 90)} {one}" for one in heldout]
    leaks = [one for one in longer if split(one) != "heldout"]
    rows = [row(one) for one in (*prompts, *leaks)]
    assert leaks
    files = write(rows, tmp_path / "rows", 1)
    found = cleaned(files, tmp_path / "s", near_duplicates=None)
    for at, one in enumerate(rows):
        assert (found.cause[at] == CAUSES.index("contaminated")) == (at >= len(prompts))
        if at >= len(prompts):
            given_away = rows[found.match[at]]
            assert one.prompt.endswith(given_away.prompt)
            said = f"shares n-grams with held-out prompt {given_away.id}, cov"
            assert found.describe(at).startswith(said)
    apart = Contamination(heldout=False)
    found = cleaned(files, tmp_path / "t", near_duplicates=None, contamination=apart)
    assert found.counts() == {"kept": len(rows)}


def test_of_held_out_rows_that_match_alike_the_same_is_named_in_any_order(tmp_path):
    shared = text(random.Random(8), 20)
    endings = [" ".join(f"{letter}{number}" for letter in "abcdefghi") for number in range(60)]
    beginnings = [f"{shared} {ending}" for ending in endings]
    alike = [one for one in beginnings if split(one) == "heldout"][:5]
    leak = next(one for one in (f"{one} z" for one in beginnings) if split(one) == "train")
    named = set()
    for at in range(len(alike)):
        order = [*alike[at:], leak, *alike[:at]]
        found = made([row(one) for one in order], tmp_path / f"{at}", near_duplicates=None)
        named.add(order[found.match[order.index(leak)]])
    assert len(alike) == 5
    assert named == {min(alike, key=prompt_id)}


def test_questions_of_one_abstract_and_one_question_of_two_abstracts_all_stay(tmp_path):
    rng = random.Random(6)
    abstracts, questions = [text(rng, 90), text(rng, 90)], [text(rng, 14), text(rng, 14)]
    groundings = ["answerable", "unanswerable"]
    rows = []
    for abstract, grounding in zip(abstracts, groundings, strict=True):
        about = {"context": abstract, "grounding": grounding}
        asked = [row(f"{abstract} Question: {question}") for question in questions]
        rows += [one.model_copy(update=about) for one in asked]
    found = made(rows, tmp_path, heldout_fraction=0.0)
    assert found.counts() == {"kept": 4}
    assert [GROUPS[group] for group in found.group] == sorted(groundings * 2)


def test_splits_are_those_of_the_rule(tmp_path):
    rows = [row(text(random.Random(seed), 12)) for seed in range(300)]
    found = made(rows, tmp_path, near_duplicates=None, contamination=None)
    assert [SPLITS[one] for one in found.split] == [split_of(one.id, 0.1, 0.2) for one in rows]
    edges = np.array([0, 2**62 - 1, 2**62, 2**63 - 2**8, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    expected = [split_of(f"{edge:016x}", 0.25, 0.25) for edge in edges]
    assert [SPLITS[one] for one in survey.splits(edges, 0.25, 0.25)] == expected


def test_no_rows_are_nothing(tmp_path):
    found = made([], tmp_path, [("1", "what is it")])
    assert (found.counts(), list(found.dropped()), len(found.remaining)) == ({}, [], 0)
    found.remove()
    assert not (tmp_path / "s").exists()


def test_what_a_killed_attempt_left_is_not_used(tmp_path):
    rng = random.Random(7)
    many, few = ([row(text(rng, 20)) for _ in range(count)] for count in (50, 5))
    cleaned(write([*many, *many], tmp_path / "many", 1), tmp_path / "s")
    found = cleaned(write([*few, few[0]], tmp_path / "few", 1), tmp_path / "s")
    assert found.counts() == {"kept": 5, "duplicate_prompt": 1}


def test_a_line_that_is_not_json_is_a_bug_that_says_where(tmp_path):
    (file,) = write([row("What is it?")], tmp_path / "rows", 1)
    size = file.stat().st_size
    with file.open("a") as out:
        out.write("{broken\n")
    said = rf"0\.jsonl, byte {size}: a line that is not JSON.*broken"
    with pytest.raises(ValueError, match=said):
        cleaned([file], tmp_path / "s")


def test_the_state_of_a_row_is_as_small_as_promised(tmp_path):
    assert sum(np.dtype(kind).itemsize for kind in COLUMNS.values()) == STATE_BYTES
    rows = [row(text(random.Random(seed), 30)) for seed in range(50)]
    made(rows, tmp_path, contamination=None)
    bands = len(list((tmp_path / "s").glob("band-*")))
    size = sum(file.stat().st_size for file in (tmp_path / "s").iterdir())
    assert size == 50 * (STATE_BYTES + 8 * bands + 8 * 30)
