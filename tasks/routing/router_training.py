"""The router's training data: prompts that we wrote, in `prompts/<domain>.templates`, one template
a line.

    «a|b»     one of these; a template gives as many prompts as its longest choice has alternatives,
              and each is used in one at least
    §n §x §m  a whole number, a decimal number, a person's name
    §NAME     a text of `prompts/texts.templates`
    ⏎         a line break; a line that starts with # is a comment

No data set is in it: what the router is measured on, it has never read
(`tests/end_to_end/tasks/routing/test_router.py` looks for shared n-grams).
"""

import itertools
import random
import re
from pathlib import Path

from schemas.examples import Domain

HERE = Path(__file__).parent / "prompts"

_CHOICE = re.compile("«([^«»]*)»")
_TEXT = re.compile("§([A-Z]+[0-9]?)")
_NAMES = (
    "Alice", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jamal", "Kim",
    "Lena", "Marco", "Nadia", "Oscar", "Priya",
)  # fmt: skip
_FEWEST = 2
"""Prompts of a template without a choice: its numbers and names differ."""


def training_prompts() -> list[tuple[str, Domain]]:
    """(prompt, domain) of every prompt of every template, each prompt once: the same list on every
    machine."""
    texts = dict(line.split(": ", 1) for line in _lines(HERE / "texts.templates"))
    found: dict[str, Domain] = {}
    for domain in Domain:
        for line in _lines(HERE / f"{domain.value}.templates"):
            for prompt in _prompts(line, texts):
                found.setdefault(prompt, domain)
    return list(found.items())


def _lines(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _prompts(template: str, texts: dict[str, str]) -> list[str]:
    longest = max((choice.count("|") + 1 for choice in _CHOICE.findall(template)), default=_FEWEST)
    return [_filled(template, number, texts) for number in range(longest)]


def _filled(template: str, number: int, texts: dict[str, str]) -> str:
    """The `number`th prompt: of its choice at place p the alternative `number` + p, counted
    round."""
    rng, places = random.Random(f"{template}/{number}"), itertools.count()
    while _CHOICE.search(template) or _TEXT.search(template):
        template = _CHOICE.sub(
            lambda match: (options := match[1].split("|"))[(number + next(places)) % len(options)],
            template,
        )
        template = _TEXT.sub(lambda match: texts[match[1]], template)
    template = re.sub("§n", lambda _: str(rng.randint(2, 99)), template)
    template = re.sub("§x", lambda _: f"{rng.uniform(0.1, 20):.{rng.randint(1, 3)}f}", template)
    return re.sub("§m", lambda _: rng.choice(_NAMES), template).replace("⏎", "\n")
