"""What a stand-in says in place of a model behind an API: by rule, in the form that the request
asks for.

teacher     the row's own reasoning and answer, between the tags and under the headings that the
            instructions name. Where several samples are asked, one of four is wrong, so that pairs
            and unsolved prompts occur.
judge       grades by likeness: of the answer with the reference answer that the question holds, or,
            without one, with the task. 1 where they agree, down to 0.
rubrics     criteria of the reference answer and of any good answer.
router      the domain that the classifier says.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from schemas.examples import Example, Prompt, tags_of
from tasks.judging.address import without_invisible
from tasks.rehearsal.first_rows import Asked, FirstRows
from tasks.routing import router
from tasks.verification.text import split_sentences

VERSION = 4
"""Raise it when replies change: it is part of the model's name under which they are kept."""

Role = Literal["teacher", "judge", "rubrics", "router"]

_SHEET = re.compile(
    r"=== data (?P<mark>\w{16}) ===\n(?P<data>.*)\n=== end of data (?P=mark) ===\n(?P<sheet>.*)",
    re.DOTALL,
)
_GRADES = re.compile(r'(?P<keys>"\d+"(?:, "\d+")*): (?P<kind>true if|a whole number)')
_REQUEST = re.compile(r"<request>\n(.*)\n</request>", re.DOTALL)
_RUBRICS = re.compile(r"You write rubrics by which responses.*?\n\n(\{.*?\})\n\n", re.DOTALL)
_COUNT = re.compile(r"Write (\d+) to (\d+) criteria")
_TAG = re.compile(r"<(\w+)>[^<]*</\1>")
_HEADING = re.compile(r"^([A-Z]\w+): \S", re.MULTILINE)
_WORD = re.compile(r"\w{3,}|\d+")
_ON_THE_TASK = 0.5
"""Without a reference an answer is fully alike if this share of its phrases is the task's."""
_SHOWN = 300
_SECTION = 120


def role_of(text: str) -> Role:
    """Who a request takes its model for."""
    if _SHEET.search(text):
        return "judge"
    if text.startswith("You write rubrics"):
        return "rubrics"
    return "router" if text.startswith("Which domain does the request") else "teacher"


class Script:
    """Replies by rule, of rows that are known."""

    def __init__(self, rows: FirstRows) -> None:
        self._asked = {one.prompt.prompt: one for one in rows.asked}
        self._examples = {one.prompt: one for one in rows.examples}

    def reply(self, body: Mapping[str, Any]) -> str:
        """The text that answers a chat request's body."""
        text = str(body["messages"][-1]["content"])
        role = role_of(text)
        if role == "judge":
            return _ruling(text)
        if role == "rubrics":
            return _rubric(text)
        if role == "router":
            return _domain(text)
        return self._trace(text, body.get("seed"))

    def _trace(self, text: str, seed: Any) -> str:
        instructions, asked = self._find(text)
        if asked is None:
            return written(instructions, "The task is the one above.", "It is not known.")
        wrong = asked.samples > 1 and isinstance(seed, int) and seed % 4 == 0
        return reference(asked, self._examples.get(asked.prompt.prompt), wrong=wrong)

    def _find(self, text: str) -> tuple[str, Asked | None]:
        """A request's instructions, and the prompt that stands behind them."""
        starts = [0, *(match.end() for match in re.finditer("\n\n", text))]
        for start in starts:
            if (asked := self._asked.get(text[start:])) is not None:
                return text[:start], asked
        return text, None


def reference(asked: Asked, example: Example | None = None, *, wrong: bool = False) -> str:
    """What a teacher says to a prompt: its reference, or something else than that."""
    prompt = asked.prompt
    answer = _other(prompt) if wrong else (prompt.answer or _free(prompt))
    reasoning = example.reasoning if example else _worked(prompt, answer)
    return written(asked.instructions, reasoning, answer, prompt.context or "")


def written(instructions: str, reasoning: str, answer: str, context: str = "") -> str:
    """Reasoning and answer in the form that instructions ask for: between their tags, in their
    order, the last of them around the answer; without tags the answer alone."""
    tags = list(dict.fromkeys(_TAG.findall(instructions)))
    if not tags:
        return f"{reasoning}\n\n{answer}"
    headings = list(dict.fromkeys(_HEADING.findall(instructions)))
    if len(headings) > 1:
        first = split_sentences(reasoning)[0][:_SECTION]
        sections = [reasoning, *(f"{first} So it goes on." for _ in headings[1:])]
        pairs = zip(headings, sections, strict=True)
        reasoning = "\n".join(f"{heading}: {section}" for heading, section in pairs)
    parts = dict.fromkeys(tags, reasoning) | {tags[-1]: answer}
    if "proof" in parts and tags[-1] != "proof":
        parts["proof"] = f'"{context.split(". ")[0][:_SHOWN]}"'
    return "\n".join(f"<{tag}>{parts[tag]}</{tag}>" for tag in tags)


def _worked(prompt: Prompt, answer: str) -> str:
    task = _plain(prompt.prompt)[:_SHOWN]
    result = _plain(answer)[:_SHOWN]
    return f"The task says: {task} From what it says follows step by step: {result}."


def _free(prompt: Prompt) -> str:
    """An answer to a prompt that has none: its own first words, of a short one not all, which
    judging rewards call copied and pay nothing for."""
    words = _plain(prompt.prompt).split()
    return "A response to this: " + " ".join(words[: min(40, 3 * len(words) // 4)])


def _other(prompt: Prompt) -> str:
    numbers = re.sub(r"\d+", lambda match: str(int(match[0]) + 7), prompt.answer)
    return numbers if numbers != prompt.answer else "Something else."


def _plain(text: str) -> str:
    for tag in tags_of("trace"):
        text = text.replace(tag, "")
    return " ".join(text.split())


def _ruling(text: str) -> str:
    found = _SHEET.search(text)
    assert found is not None
    material = json.loads(found["data"])
    likeness = likeness_of(material)
    grades: dict[str, bool | int] = {}
    for keys, kind in _GRADES.findall(found["sheet"]):
        for key in re.findall(r"\d+", keys):
            grades[key] = likeness >= 0.5 if kind == "true if" else 1 + round(9 * likeness)
    reason = f"By rule: the likeness with the reference is {likeness:.2f}."
    return json.dumps({"mark": found["mark"], "reason": reason, "grades": grades})


def likeness_of(material: Mapping[str, Any]) -> float:
    """How much an answer is like the reference, or like the task where there is none: 0 to 1."""
    answer, wanted = str(material["answer"]), str(material.get("reference_answer", ""))
    if wanted:
        if _folded(answer) == _folded(wanted):
            return 1.0
        ours, theirs = _words(answer), _words(wanted)
        if not (ours and theirs and len(wanted.split()) > 3):
            return 0.0
        return (2 * len(ours & theirs) / (len(ours) + len(theirs))) ** 0.5  # the F1, spread
    said, task = _phrases(answer), _phrases(str(material["task"]))
    return min(1.0, len(said & task) / len(said) / _ON_THE_TASK) if len(said) > 3 else 0.0


def _folded(text: str) -> str | float:
    """A number as such, other text without case and end."""
    plain = without_invisible(text).strip().rstrip(".").casefold()
    try:
        return float(plain.replace(",", ""))
    except ValueError:
        return " ".join(plain.split())


def _words(text: str) -> set[str]:
    return set(_WORD.findall(without_invisible(text).lower()))


def _phrases(text: str) -> set[tuple[str, ...]]:
    """Three words in a row: a list of keywords has few of the task's."""
    words = re.findall(r"\w+", without_invisible(text).lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def _rubric(text: str) -> str:
    found, count = _RUBRICS.search(text), _COUNT.search(text)
    material = json.loads(found[1]) if found else {}
    least = int(count[1]) if count else 7
    wanted = _plain(str(material.get("reference_answer", "")))[:_SHOWN]
    first = f"States this as its answer: {wanted}." if wanted else "Does what the task asks for."
    texts = [first, *_ANY]
    texts += [f"Point {number} of the task is dealt with." for number in range(len(texts), least)]
    criteria = [
        {
            "title": f"Point {number}",
            "text": one,
            "importance": "essential" if number == 1 else "important",
            "satisfied_by": "good",
        }
        for number, one in enumerate(texts[: max(least, 1)], 1)
    ]
    return json.dumps({"criteria": criteria})


_ANY: Sequence[str] = (
    "Each step of the reasoning follows from the ones before it.",
    "The answer follows from the reasoning.",
    "Every part of the task is dealt with.",
    "The reasoning is easy to follow.",
    "Repeats nothing without need.",
    "Uses the facts that the task gives.",
)


def _domain(text: str) -> str:
    found = _REQUEST.search(text)
    (route,) = router.route([found[1] if found else text])
    return json.dumps({"domain": route.domain.value})
