"""Flexible answers: a completion's answer wherever it stands, like `flexible-extract` of
lm-evaluation-harness.

A base model knows answers that it does not put into a trace. A stage that raises `exact_answer` but
not `flexible_answer` taught the format. The prompt's own check judges the answer in the first of
these that the completion has:

1. the last answer tag, of a trace that is well formed or not
2. what stands behind the last `####`
3. the last `\\boxed{...}`
4. what follows the last "answer is" or "answer:", up to the end of the line
5. all of it, or its last line where the check is `exact`.

A sentence around the answer is allowed if the check knows an answer's form: for `numeric`,
`quantity` and `math` a number (the first in 2, 3 and 4, the last in 1 and 5), for `choice` a letter
(at the beginning of 2, 3 and 4; else the last in parentheses, in bold, before a parenthesis or at
the head of a line). It judges one answer only, so a completion that tries several gains nothing.
"""

import re
from collections.abc import Sequence

from schemas.examples import ELEMENTS, Prompt, tags_of
from tasks.contract.check import CHECKS
from tasks.verification.choices import choices_of, chosen, letters
from tasks.verification.numbers import spelled

_TAGGED = r"{0}(.*?)(?:{1}|(?={0})|\Z)"
_TAG = {
    channels: re.compile(_TAGGED.format(*map(re.escape, parts["answer"])), re.DOTALL)
    for channels, parts in ELEMENTS.items()
}
_AHEAD = (
    re.compile(r"####\s*([^\n]+)"),
    re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"),
    re.compile(
        r"\banswer(?:\s+is\b(?!\s+not\b)|\s*:)(?:\s*:)?+[ \t]*(?=([^\n]{1,2000}))", re.IGNORECASE
    ),
)
_TAGS = {channels: re.compile("|".join(map(re.escape, tags_of(channels)))) for channels in ELEMENTS}


_NUMBER = re.compile(
    r"(?:\^\s?\{?|√\s?|\\sqrt\s?(?P<root>\{)?)?"
    r"(?:(?<!\d)-)?[$€£¥₹]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))"
    r"(?:[eE][-+]?\d{1,3}|\s?[x×*·]\s?10\^\{?[-+]?\d{1,3}\}?|(?: \d+)?/\d+"
    r"|(?:\s?\^\s?\{?|\*\*)[-+]?\d{1,3}\}?)?"
    r"(?: ?\\?%| (?:hundred|thousand|million|billion|trillion)s?\b| ?(?:π|\\?pi\b))?(?(root)\}?)"
)
"""A number with the signs beside it that make it another: a part of 10^3, √16 or 2π is none."""
_CUT = re.compile(r"(?<![\w.,/])[\w.,/]+\Z")
_CODE = re.compile(r"\b(?:def|class|import|lambda|return|yield)\b|=|```")
"""Keywords of a text that defines or returns something."""


def flexible_answer(prompt: Prompt, completion: str, *, truncated: bool = False) -> str:
    """The text that counts as the answer, as the module says; empty where there is none. The last
    word of a `truncated` completion counts for nothing: 12 may be the beginning of 120."""
    if prompt.check == "none":
        return ""
    completion = _CUT.sub("", completion) if truncated else completion
    tagged = _TAG[prompt.channels].findall(completion)
    if tags := [text.strip() for text in tagged if text.strip()]:
        return _plain(prompt, tags[-1], ahead=False)
    for pattern in _AHEAD:
        if found := [text.strip() for text in pattern.findall(completion) if text.strip()]:
            return _plain(prompt, found[-1], ahead=True)
    text = _TAGS[prompt.channels].sub(" ", completion).strip()
    if prompt.check == "tests" and not _CODE.search(text):
        return ""  # two sandboxes would find out the same
    if prompt.check == "exact" and text:
        return text.splitlines()[-1].strip()
    return _plain(prompt, text, ahead=False)


def _plain(prompt: Prompt, text: str, *, ahead: bool) -> str:
    """The part of a text that the prompt's check can read, or all of it. `ahead`: the answer comes
    first."""
    if reads := CHECKS[prompt.check].reads:
        return text if reads(text) else _number(text, ahead)
    if prompt.check == "choice":
        return _choice(choices_of(prompt), text, ahead)
    return text


def _number(text: str, ahead: bool) -> str:
    numbers = [match[0] for match in _NUMBER.finditer(spelled(text)) if match[0]]
    return numbers[0 if ahead else -1] if numbers else text


def _choice(choices: Sequence[str], text: str, ahead: bool) -> str:
    one = f"([{letters(choices)}])"
    alone = rf"\(?\b{one}\)|\*\*{one}\b|^[ \t]*{one}(?:\.(?=\s)|[ \t.]*$)"
    found = list(re.finditer(alone, text, re.MULTILINE))
    different = {match[match.lastindex or 0] for match in found}
    if chosen(text, choices) and (ahead or len(different) < 2):
        return text
    if ahead and (first := re.match(rf"[(*\s]*{one}\b(?!['’])", text)):
        return first[1]
    return text[found[-1].start() :].strip() if found else text
