"""Protection of a judge from the response that it reads, and rules that apply before a judge is
asked.

For every response, whatever the judge:

- *Data.* A response is shown as strings of one JSON object on one line, between two lines with a
  mark. The mark is a digest of the question and of this response, so no response can contain its
  own. Invisible characters are removed, and any `<` or `[` that could open a turn, a tag or a
  special token of a chat template is written as JSON's escape. So nothing in a response is a line,
  a delimiter or a role of the question (`as_data`).
- *Rules before judges.* A response that is no trace, has no substance (":" or "Thought process:",
  One Token to Fool LLM-as-a-Judge, 2507.08794) or repeats the question or the criteria earns 0 and
  is not judged (`worthless`).
- *Strict rulings.* Only a reply with the question's mark and exactly its fields counts
  (`tasks.judging.rulings`), so a verdict inside a response does not.

A response that addresses the judge in a way that `tasks.judging.address` knows is judged twice,
with and without those sentences, and the lower value counts. Words that no pattern matches are only
measured, by the attacks among the anchors (`tasks.judging.calibration`).
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from schemas.examples import Trace
from tasks.judging.address import fold, without_invisible

Material = Mapping[str, str]
"""The parts that are shown to a judge, by name: the task, a reference answer, the reasoning, the
answer."""

_OPENS_SOMETHING = re.compile(r"<(?![\s\d=])|\[(?=/?[A-Z_]{3,}\])")
"""`<|im_start|>`, `<start_of_turn>`, `</answer>`, `[INST]`; not `a < b`, `x <= 3`, `[1, 2]`."""

_OPENERS = re.compile(
    r"(?:(?:my )?(?:thought|thinking|reasoning) process|let(?:'s| us|s)? (?:solve|think(?:"
    r" about)?|work through|approach|break down)"
    r"(?: this| the| it)?(?: problem| question| task| down)?(?: out)?(?: (?:carefully|step by"
    r" step))*|step by step|solution|answer|"
    r"final answer|reasoning|response|okay|ok|sure|certainly|here is (?:the|my)"
    r" (?:solution|answer)|respuesta|solucion|losung|antwort|"
    r"reponse|解|解答|答案|かいせつ|解説|정답)"
)
"""Phrases that stand before an answer and are none, folded: the paper's master keys and their
kind."""

_WORD = re.compile(r"\w+")
_LEAST_COPIED_WORDS = 8
_COPIED = 0.8


def as_data(material: Material, longest: int) -> str:
    """One line of JSON with the material; the middle of longer values is cut out, to `longest`
    characters."""
    shown: dict[str, str | int] = {}
    for name, text in material.items():
        seen = without_invisible(text)
        shown[name] = seen
        if len(seen) > longest:
            head = longest // 2
            shown[name] = f"{seen[:head]} [...] {seen[len(seen) - (longest - head) :]}"
            shown[f"{name}_characters_left_out"] = len(seen) - longest
    line = json.dumps(shown, ensure_ascii=False)
    # lines to some readers
    line = re.sub("[\x85\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", line)
    return opens_nothing(line)


def opens_nothing(text: str) -> str:
    """`text` with JSON's escape for anything that could open a turn, a tag or a special token."""
    return _OPENS_SOMETHING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def worthless(
    trace: Trace | None, question: str, criteria: Iterable[str] = (), reference: str = ""
) -> str | None:
    """Why a response earns 0 before any judge is asked, or None: it has to be judged.

    `malformed`: it is no trace (None), or was truncated. `empty`: its answer or its reasoning has
    no letter and no digit beside openers. `copied`: its answer is the question, or nothing but
    criteria.
    """
    if trace is None:
        return "malformed"
    is_reference = bool(reference.strip()) and trace.answer.strip() == reference.strip()
    if not (_substance(trace.reasoning) and (is_reference or _substance(trace.answer))):
        return "empty"
    answer = _words(trace.answer)
    if len(answer) >= _LEAST_COPIED_WORDS:
        asked = _words(question)
        if min(_share(answer, asked), _share(asked, answer)) >= _COPIED:
            return "copied"
        if _share(answer, [word for text in criteria for word in _words(text)]) >= _COPIED:
            return "copied"
    return None


def _substance(text: str) -> bool:
    """Whether a text says something beside openers: a letter or a digit of any script."""
    folded = " ".join(re.sub(r"[^\w\s']|_", " ", fold(text)).split())
    place = 0
    # to the first that is: there is no need to look for openers in all of a long text
    while place < len(folded):
        if opener := _OPENERS.match(folded, place):
            place = opener.end()
        elif unicodedata.category(folded[place])[0] in "LN":
            return True
        else:
            place += 1
    return False


def _words(text: str) -> list[str]:
    return _WORD.findall(fold(text))


def _share(words: Sequence[str], others: Sequence[str]) -> float:
    """The fraction of one text's word pairs that another one has."""
    pairs, theirs = set(pairwise(words)), set(pairwise(others))
    return len(pairs & theirs) / len(pairs) if pairs else 0.0
