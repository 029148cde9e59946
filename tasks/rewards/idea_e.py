"""The IDEA-E scaffold: reasoning in five sections in order, each with some content. In [0, 1]; 0
for a malformed response.

    r = sum over the five sections of min(1, new words / `words`) / 5

A section is a line that begins with its heading, `Identify:` (`INSTRUCTIONS` has all; `**1.
Identify the facts:** ...` is one too), and the text up to the next heading. It counts when its
heading occurs once and in order. New words are distinct words of the section that are in no earlier
section, in no heading and, except for Identify, not in the prompt. So bare headings, one sentence
repeated five times, a prompt cut in five, or sections in another order earn little, and each
missing word costs a little.

Reported (Google's blog on google-tunix-hackathon, third place): "IDEA-E", an ethical reasoning
framework, distilled from a teacher into a 2B model. IDEA is Trillium Health Partners' Ethical
Decision-Making Framework: Identify the facts, Determine the relevant ethical principles, Explore
the options, Act. Not reported: the prompt, the headings, whether the scaffold was rewarded. Our
reading: the last E is Evaluate, and outside ethics the sections mean what `INSTRUCTIONS` says; a
recipe gives that text to its teacher, so that the reward matches what is taught.
"""

import re
from collections import Counter
from itertools import combinations
from typing import Literal

from pydantic import Field

from schemas.examples import Prompt, parse_trace
from tasks.contract.reward import Judged, Response, Reward, RewardConfig, each

SECTIONS = ("Identify", "Determine", "Explore", "Act", "Evaluate")
INSTRUCTIONS = """Reason in five sections, in this order, each on a new line that begins with its \
heading, with at least one full sentence each:
Identify: the facts that are given, and what is asked.
Determine: the principles, rules or formulas that apply here.
Explore: the ways to an answer, with what speaks for and against each.
Act: the way that is chosen, carried out step by step.
Evaluate: whether the result answers the question and agrees with the facts."""

_HEADING = re.compile(
    r"^[ \t]{0,8}[#*_>-]{0,6}[ \t]{0,8}(?:\(?[0-9]{1,2}[.):]["
    rf" \t]{{0,8}})?[*_]{{0,3}}(?P<name>{'|'.join(SECTIONS)})\b"
    r"(?P<rest>[^\n:.!?]{0,60}):",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"[^\W_]+")


class Config(RewardConfig):
    """`words`: new words of a section that earn its full share."""

    name: Literal["idea_e"] = "idea_e"
    words: int = Field(default=6, ge=1)


@each
def score(config: Config, prompt: Prompt, response: Response) -> float | Judged:
    """The formula above, with the new words of each section. Never abstains."""
    trace = parse_trace(response.text, prompt.channels)
    words = new_words(trace.reasoning, prompt.prompt) if trace else {}
    value = sum(min(1.0, count / config.words) for count in words.values()) / len(SECTIONS)
    return Judged(value, {"new_words": words}) if words else 0.0


def new_words(reasoning: str, prompt: str) -> dict[str, int]:
    """The number of new words in each section that counts, in order."""
    headings = list(_HEADING.finditer(reasoning))
    names = [match["name"].capitalize() for match in headings]
    ends = [match.start() for match in headings[1:]] + [len(reasoning)]
    times = Counter(names)
    texts = {
        name: reasoning[match.end() : end]
        for name, match, end in zip(names, headings, ends, strict=False)
        if times[name] == 1
    }
    own = (match[0] for name, match in zip(names, headings, strict=True) if name in texts)
    stale = _words(" ".join((*SECTIONS, *own)))
    counts: dict[str, int] = {}
    for name in _in_place(list(texts)):
        words = _words(texts[name]) - stale
        counts[name] = len(words if name == "Identify" else words - _words(prompt))
        stale |= words
    return counts


def _in_place(names: list[str]) -> tuple[str, ...]:
    """The most headings, of at most five, that are in order; of several such choices the first."""
    for size in range(len(names), 0, -1):
        for chosen in combinations(names, size):
            if list(chosen) == sorted(chosen, key=SECTIONS.index):
                return chosen
    return ()


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


REWARD = Reward(version=2, config=Config, score=score)
