"""Faithful summaries, without a judge: the text that an answer summarises (`Prompt.context`, else
the prompt) must contain its content.

numbers   every number of the answer occurs in the source.
names     every name (a capitalised word inside a sentence, an acronym, a word with a digit or an
          inner capital) occurs in the source, up to its ending (Bayes, Bayesian), or abbreviates
          words that follow each other there.
coverage  at least `_LEAST_COVERAGE` of the answer's content words occur in the source, plainly
          stemmed (coverage of Grusky et al. 2018, Newsroom, 1804.11283, over content words instead
          of all).
length    at most `_MOST_OF_SOURCE` of the source's words, at least `_FEWEST_WORDS`,
          `_FEWEST_CONTENT` of them content words.
copying   sum of |f|^2 over the fragments shared with the source, over |answer|^2, at most
          `_MOST_COPIED`: Newsroom's density divided by the answer's length. 1 is one copied span.
          Of the answer's words at most `_MOST_IN_SPANS` stand in copied spans of `_SPAN` words or
          more, so that two copied sentences are no summary either.
repeating at least `_LEAST_DISTINCT` of its words are distinct.

The thresholds were chosen on the even half of 350 SciTLDR abstracts with the TLDRs that their
authors and readers wrote, and are measured on the odd half
(tests/end_to_end/tasks/checks/test_faithful.py says with which result). It is a filter, no proof: a
summary may be wrong in the source's own words ("does not" for "does"), and a free one in other
words is rejected. It ignores order: words of the source in any order pass, so as a reward it needs
a judge beside it. It cannot separate words in scripts without spaces.
"""

import re

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome

_LEAST_COVERAGE = 0.45
_MOST_OF_SOURCE = 0.5
_FEWEST_WORDS = 5
_FEWEST_CONTENT = 3
_MOST_COPIED = 0.8
_MOST_IN_SPANS = 0.8
# words: of the real summaries that pass the other rules 0.7 % have more in such spans, of pairs of
# copied sentences 95 %
_SPAN = 8
_LEAST_DISTINCT = 0.5  # of real summaries of 24 words and more the least is 0.63

_WORD = re.compile(r"[^\W_]+(?:['’.\-/][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
_SENTENCE_START = re.compile(r"(?:\A|[.!?:;][\"'”)]*\s+|\n\s*(?:[-*•]\s*)?)[\"'“(]*$")
_NO_CONTENT = """
    a about above after again all also am an and any are as at be because been before being between
    both but by can could did do does doing down during each few for from further had has have
    having he her here his how i if in into is it its itself more most my no nor not now of off on
    once only or other our out over own same she should so some such than that the their them then
    there these they this those through to too under until up very was we were what when where which
    while who whom why will with would you your us via approach article author authors based
    considers demonstrate demonstrates describe describes discusses explore explores framework idea
    introduce introduces introduced investigate investigates method methods new novel paper passage
    present presents presented problem propose proposes proposed provide provides show shows studies
    study technique text use used uses using work
"""
_STOP = frozenset(_NO_CONTENT.split())
"""Words of grammar, and those that summaries use about their source."""
_NUMERALS = "one two three four five six seven eight nine ten"
_COUNTED = {word: str(number) for number, word in enumerate(_NUMERALS.split(), 1)}
_LONG = "ational ization isation ations ation ingly ments ment ness ions ing ies ion ive ers"
_SHORT = "ed es er ly al s y"
_ENDINGS = [(one, 4) for one in _LONG.split()] + [(one, 3) for one in _SHORT.split()]
"""Endings, with the letters that a word keeps at least."""
_PREFIX = 5  # letters: `depends` and `dependent` are one content word


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer is faithful to the prompt's context, or to the prompt where it has
    none."""
    problem = unfaithful(answer, prompt.context or prompt.prompt)
    return Outcome(not problem, problem)


def unfaithful(summary: str, source: str) -> str:
    """The first rule that a summary breaks and how, for a person; empty where it breaks none."""
    given, said = _words(source), _words(summary)
    if len(said) < _FEWEST_WORDS:
        return f"{len(said)} words, fewer than {_FEWEST_WORDS}"
    if len(set(said)) < _LEAST_DISTINCT * len(said):
        return f"{len(set(said))} distinct words of {len(said)}, fewer than {_LEAST_DISTINCT:.0%}"
    if len(said) > _MOST_OF_SOURCE * len(given):
        return f"{len(said)} words, more than {_MOST_OF_SOURCE:.0%} of the source's {len(given)}"
    parts = [part for word in given for part in _PART.findall(word)]
    known = {_stem(word) for word in (*given, *parts)}
    counted = [_COUNTED[word] for word in parts if word in _COUNTED]
    numbers = {number_of(number) for number in (*NUMBER.findall(source), *counted)}
    for number in NUMBER.findall(summary):
        if number_of(number) not in numbers:
            return f"the number {number} is not in the source"
    initials = "".join(part[0] for part in parts)
    for name in names_in(summary):
        stands = _stands_in(name, known) or _begins(name.casefold(), known)
        if not stands and not _abbreviates(name, initials):
            return f"the name {name!r} is not in the source"
    beginnings = {word[:_PREFIX] for word in known if len(word) >= _PREFIX}
    content = [word for word in said if word not in _STOP and not word.isdigit()]
    if len(content) < _FEWEST_CONTENT:
        return f"{len(content)} content words, fewer than {_FEWEST_CONTENT}"
    missing = [
        word for word in content if word[:_PREFIX] not in beginnings and not _stands_in(word, known)
    ]
    covered = 1 - len(missing) / len(content)
    if covered < _LEAST_COVERAGE:
        return (
            f"{covered:.0%} of its content words are in the source, fewer than"
            f" {_LEAST_COVERAGE:.0%}; not {', '.join(missing[:5])}"
        )
    lengths = fragments(said, given)
    if (copied := sum(length**2 for length in lengths) / len(said) ** 2) > _MOST_COPIED:
        return f"copied: {copied:.2f} of at most {_MOST_COPIED}"
    if (spans := sum(length for length in lengths if length >= _SPAN) / len(said)) > _MOST_IN_SPANS:
        return (
            f"copied: {spans:.0%} of its words stand in spans of {_SPAN} words or more, of at most"
            f" {_MOST_IN_SPANS:.0%}"
        )
    return ""


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def number_of(number: str) -> float:
    return float(number.replace(",", ""))


def _stem(word: str) -> str:
    """A word without its commonest English endings: model, models, modelled, modelling and modeling
    have one stem."""
    word = word.casefold().removesuffix("'s").removesuffix("’s")
    for ending, least in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            word = word.removesuffix(ending)
            break
    word = word.removesuffix("e")
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def _stands_in(word: str, known: set[str]) -> bool:
    """Whether a word, or each part of one with hyphens, is among the stems of the source."""
    return _stem(word) in known or all(_stem(part) in known for part in _PART.findall(word))


def _abbreviates(name: str, initials: str) -> bool:
    """Whether a name is an acronym (RL, CNNs) of words that follow each other in the source."""
    letters = name.removesuffix("s")
    is_acronym = letters.isalpha() and letters.isupper() and len(letters) >= 2
    return is_acronym and letters.casefold() in initials


def _begins(name: str, known: set[str]) -> bool:
    """Whether a name and a word of the source are the same up to an ending: Bayes, Bayesian."""
    return len(name) >= _PREFIX and any(
        word.startswith(name) or (len(word) >= _PREFIX and name.startswith(word)) for word in known
    )


def names_in(text: str) -> list[str]:
    """Words that name something: capitals inside a sentence, acronyms, inner capitals, letters with
    digits."""
    found = []
    for match in _WORD.finditer(text):
        word = match[0]
        inner = any(char.isupper() for char in word[1:]) or (
            any(char.isdigit() for char in word) and any(char.isalpha() for char in word)
        )
        begins = _SENTENCE_START.search(text[max(0, match.start() - 8) : match.start()])
        if inner or (word[0].isupper() and len(word) > 1 and not begins):
            found.append(word)
    return found


def fragments(summary: list[str], source: list[str]) -> list[int]:
    """Lengths, in words, of the spans that a summary shares with its source, greedily from left to
    right (Newsroom's F(A, S))."""
    places: dict[str, list[int]] = {}
    for index, word in enumerate(source):
        places.setdefault(word, []).append(index)
    lengths, at = [], 0
    while at < len(summary):
        best = 0
        for start in places.get(summary[at], ()):
            most, length = min(len(summary) - at, len(source) - start), 1
            while length < most and summary[at + length] == source[start + length]:
                length += 1
            best = max(best, length)
        if best:
            lengths.append(best)
        at += max(1, best)
    return lengths


CHECK = Check(version=2, agrees=agrees, by_reference=False)
