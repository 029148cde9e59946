"""Planted leaks and near-duplicates in GSM8K: what `tasks.cleaning.clean` finds of them with its
defaults.

1,000 rows of GSM8K's training set; among them 500 copies of its test questions in five disguises,
and 500 copies of training rows with five kinds of light edits (100 each). A leak is found if its
row is dropped as contaminated by the very item; a near-duplicate if it or its original is dropped
for the other. False positives are rows that were not touched and whose copy, if they have one,
stays.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.examples import Domain, Example, prompt_id
from tasks.cleaning.clean import Cleaned, clean
from tasks.cleaning.rules import CAUSES, Contamination, EvaluationItems, NearDuplicates, Rules

EACH = 100

Disguise = Callable[[str, random.Random], str]


def _respell(text: str, rng: random.Random) -> str:
    """Case, punctuation, white space, and Unicode forms that look alike: full width, no-break
    space, curly quotes, zero-width space."""
    styles: list[Callable[[str], str]] = [
        str.upper,
        lambda part: part.replace("'", "’").replace(" ", "\u00a0"),
        lambda part: re.sub(r"[^\w\s$%]", "", part),
        lambda part: re.sub("[A-Za-z0-9]", lambda one: chr(ord(one[0]) + 0xFEE0), part),
        lambda part: part.replace(" ", "  ").replace(".", " ...") + " !!",
        lambda part: part.replace("e", "e\u200b"),
    ]
    return rng.choice(styles)(rng.choice(styles)(text))


def _embed(text: str, rng: random.Random) -> str:
    before = (
        "You are a patient tutor. Work through the following exercise from our weekly sheet,"
        " explain each step to the class, and write"
    )
    after = (
        "When you are done, think about how the solution changes if everything doubles, and invent"
        " a similar exercise about"
    )
    how = rng.choice(["clearly", "briefly", "in your own words"])
    things = ["gardening and weather", "trains in the mountains", "a small bakery"]
    thing = rng.choice([*things, "the school's library", "two friendly robots"])
    return f"{before} {how}.\n\n{text}\n\n{after} {thing}."


def _replace(text: str, rng: random.Random) -> str:
    """Two words replaced, or every number changed."""
    if rng.random() < 0.5 and re.search(r"\d", text):
        return re.sub(r"\d+", lambda match: str(int(match[0]) + rng.randint(1, 9)), text)
    words = text.split()
    for at in rng.sample(range(len(words)), min(2, len(words))):
        words[at] = rng.choice(["thing", "other", "blue", "seventy", "Alex", "slowly"])
    return " ".join(words)


def _rearrange(text: str, rng: random.Random) -> str:
    """Sentences in another order, or only half of the words."""
    parts = re.findall(r"[^.?!]+[.?!]*\s*", text)
    if len(parts) > 2 and rng.random() < 0.5:
        last = parts.pop()
        rng.shuffle(parts)
        return " ".join([last.strip(), *(part.strip() for part in parts)])
    words = text.split()
    half = (len(words) + 1) // 2
    return " ".join(words[:half] if rng.random() < 0.5 else words[-half:])


LEAKS: dict[str, Disguise] = {
    "exact": lambda text, rng: text,
    "respelled": _respell,
    "embedded": _embed,
    "words or numbers": _replace,
    "reordered or half": _rearrange,
}
"""Disguises of test questions."""


def _one_word(text: str, change: Callable[[str], list[str]], rng: random.Random) -> str:
    words = text.split()
    at = rng.choice([at for at, word in enumerate(words) if word.isalpha() and len(word) > 3])
    return " ".join([*words[:at], *change(words[at]), *words[at + 1 :]])


_ADDED = ["Solve this: {}", "{} Show your work.", "Question: {} Think first."]
EDITS: dict[str, Disguise] = {
    "respelled": lambda text, rng: _respell(text, rng) + " -- ok",
    "sentence added": lambda text, rng: rng.choice(_ADDED).format(text),
    "word replaced": lambda text, rng: _one_word(
        text, lambda _: [rng.choice(["other", "really", "seventeen"])], rng
    ),
    "typing error": lambda text, rng: _one_word(
        text, lambda word: [word[0] + word[2] + word[1] + word[3:] + "x"], rng
    ),
    "word left out": lambda text, rng: _one_word(text, lambda _: [], rng),
}
"""Light edits of training questions."""


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    leaks, edits: how many of the `EACH` planted ones were found, by disguise.
    wrong_leaks, wrong_duplicates: untouched rows dropped as contaminated, as near duplicates;
        `untouched` is how many there are."""

    leaks: dict[str, int]
    edits: dict[str, int]
    wrong_leaks: int
    wrong_duplicates: int
    untouched: int


def plant(data: Path, scratch: Path) -> Outcome:
    """Plant, clean, count."""
    train, test = (
        [json.loads(line)["question"] for line in (data / "gsm8k" / name).open(encoding="utf-8")]
        for name in ("train_first1000.jsonl", "test.jsonl")
    )
    rng = random.Random(0)
    planted: list[tuple[str, str, int, str]] = [
        ("train", "", at, text) for at, text in enumerate(train)
    ]
    for name, disguise in LEAKS.items():
        planted += [
            ("leak", name, at, disguise(test[at], rng)) for at in rng.sample(range(len(test)), EACH)
        ]
    edited = rng.sample(range(len(train)), EACH * len(EDITS))
    for number, (name, disguise) in enumerate(EDITS.items()):
        planted += [
            ("edit", name, at, disguise(train[at], rng))
            for at in edited[number * EACH : (number + 1) * EACH]
        ]
    rng.shuffle(planted)
    rows = scratch / "rows.jsonl"
    with rows.open("w", encoding="utf-8") as out:
        for kind, name, at, text in planted:
            place = {"family": kind, "source": name or kind, "line": at, "domain": Domain.MATH}
            solved = {"reasoning": "r", "answer": "1"}
            example = Example(id=prompt_id(text), prompt=text, **place, **solved)
            out.write(example.model_dump_json() + "\n")
    items = EvaluationItems("gsm8k", [(str(at), text) for at, text in enumerate(test)])
    rules = Rules(NearDuplicates(), Contamination(heldout=False), 0.0, 0.0, 0, ())
    return _count(planted, clean([rows], [items], rules, scratch=scratch / "state"))


def _count(planted: list[tuple[str, str, int, str]], cleaned: Cleaned) -> Outcome:
    duplicates = ("duplicate_prompt", "near_duplicate")
    leaks, edits = dict.fromkeys(LEAKS, 0), dict.fromkeys(EDITS, 0)
    copy_of = {at: row for row, (kind, _, at, _) in enumerate(planted) if kind == "edit"}
    original = {at: row for row, (kind, _, at, _) in enumerate(planted) if kind == "train"}
    wrong_leaks = wrong_duplicates = 0
    for row, (kind, name, at, _) in enumerate(planted):
        cause, match = CAUSES[cleaned.cause[row]], int(cleaned.match[row])
        if kind == "leak":
            leaks[name] += cause == "contaminated" and cleaned.items[match][1] == str(at)
        elif kind == "edit":
            pair = {row, original[at]}
            fell = [one for one in pair if CAUSES[cleaned.cause[one]] in duplicates]
            edits[name] += any(int(cleaned.match[one]) in pair for one in fell)
        else:
            wrong_leaks += cause == "contaminated"
            wrong_duplicates += cause in duplicates and match != copy_of.get(at)
    return Outcome(leaks, edits, wrong_leaks, wrong_duplicates, len(original))
