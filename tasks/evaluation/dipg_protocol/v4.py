"""What version 4 of the gym decides by words: abstention, quotation, support, and whether an answer
is right."""

import re
from difflib import SequenceMatcher

from tasks.evaluation.dipg_protocol.word_lists import ABSTENTIONS, BRIDGES, FILLER, REFUSALS

_SYMBOLS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r'["\'‘’“”]', ""),
        ("[\\-\u2011\u2013\u2014\u00ad]", "-"),
        ("\x13", "+/-"),
        (r"[\*\•\·]", " "),
        ("≥", ">="),
        ("≤", "<="),
        ("≠", "!="),
        ("≈", "~"),
        ("±", "+/-"),
        ("…", "..."),
        ("°", " degrees"),
        ("²", "2"),
        ("³", "3"),
        ("¹", "1"),
        (r"(\d)([a-z%])", r"\1 \2"),
        (r"[^\w\s'-]", ""),
    )
)
_NAME = re.compile(
    r"\b(?:NCT[0-9]+|[A-Za-z0-9][A-Za-z0-9\u03b1\u03b2\u03b3\u03b4\-_./]*[A-Za-z0-9])\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")
_WORD = re.compile(r"\b[a-zA-Z0-9]{4,}\b")
_AMOUNT = re.compile(r"\b\d+(?:\.\d+)?\s?(?:%|gy|mg|m2|cm3)?(?!\d)")
_QUOTATION = re.compile(r'["\u201c\u201d]([^"\u201c\u201d]+)["\u201c\u201d]')
_ELLIPSIS = re.compile(r"\[\.\.\.\]|\.\.\.|\(\.\.\.\)|\u2026")
_STOPWORDS = frozenset(
    (" the ", " and ", " that ", " with ", " for ", " was ", " were ", " this ", " from ")
)


def clean(text: str) -> str:
    """How texts are compared: lower case, no punctuation but hyphens, digits apart from units,
    white space as one space."""
    text = text.lower()
    for pattern, replacement in _SYMBOLS:
        text = pattern.sub(replacement, text)
    return " ".join(re.split(r"\s+", text)).strip()


_ABSTENTIONS, _REFUSALS = tuple(map(clean, ABSTENTIONS)), tuple(map(clean, REFUSALS))


def abstains(text: str) -> bool:
    """A keyword of abstention is somewhere in it."""
    return _has_any(_ABSTENTIONS, clean(text))


def denies(analysis: str) -> bool:
    """The analysis says somewhere that something is missing."""
    return _has_any(ABSTENTIONS, analysis.lower())


def refuses(final: str) -> bool:
    """A keyword of a refusal is somewhere in it."""
    return _has_any(_REFUSALS, clean(final))


def _has_any(phrases: tuple[str, ...], text: str) -> bool:
    return any(phrase in text for phrase in phrases)


def is_quoted(proof: str, context: str) -> bool:
    """Whether each piece of a proof (its quotations, else its lines) is in the context or something
    like it."""
    cleaned = clean(context)
    if len(cleaned) < 10:
        return clean(proof) in cleaned
    lines = (one for line in proof.split("\n") for one in _ELLIPSIS.split(line))
    pieces = [one.strip() for one in _QUOTATION.findall(proof) or lines if len(one.strip()) > 5]
    if not pieces:
        bare = clean(proof)
        return bare in cleaned or similarity(bare, cleaned) >= 0.80
    return all(_is_piece_quoted(piece, context, cleaned) for piece in pieces)


def _is_piece_quoted(piece: str, context: str, cleaned: str) -> bool:
    bare = clean(piece)
    if not bare or bare in cleaned:
        return True
    numbers = _NUMBER.findall(piece)
    if any(number not in cleaned for number in numbers):
        return False
    similar = similarity(bare, cleaned)
    names = [word for word in _WORD.findall(piece) if word.lower() not in FILLER]
    if similar >= 0.80:
        return True
    known = (_is_known(clean(name), cleaned) for name in names)
    if (names or numbers) and similar >= 0.1 and all(known):
        return True
    sentences = re.split(r"(?<=\.)\s+", piece)
    if len(sentences) > 1 and all(one and is_quoted(one, context) for one in sentences):
        return True
    return re.sub(r"[.,;:!?]$", "", bare).strip() in cleaned


def _is_known(name: str, cleaned: str) -> bool:
    return name in cleaned or similarity(name, cleaned) >= 0.65


def supports(proof: str, final: str, context: str) -> bool:
    """Whether the answer follows from the proof: no other percentage, no other outcome, no name
    that neither proof nor context has."""
    if not final:
        return True
    stated, answered = (_percentages(text) for text in (proof, final))
    if len(stated) == 1 and answered and not answered <= stated:
        return False
    of_proof, of_final = clean(proof), clean(final)
    if _turned(_OUTCOMES, _NEGATIONS, of_proof, of_final):
        return False
    known = _names(proof) | _names(context)
    new = {name for name in _names(final) - BRIDGES - known if len(name) >= 4}
    return all(_is_made_of(name, known) for name in new)


def _percentages(text: str) -> set[str]:
    return {amount.replace(" ", "") for amount in _AMOUNT.findall(text.lower()) if "%" in amount}


def _names(text: str) -> set[str]:
    return {name.lower() for name in _NAME.findall(text)}


def _is_made_of(name: str, known: set[str]) -> bool:
    if "-" not in name and "/" not in name:
        return False
    parts = [part for part in re.split(r"[-/]", name) if len(part) >= 3]
    return all(
        part in BRIDGES or part in known or re.match(r"^\d+(\.\d+)?$", part) for part in parts
    )


_OUTCOMES = ("partial response", "stable disease", "progressive disease", "meets criteria")
_NEGATIONS = "no|not|didnt|did not|failed to|cant|wont"


def _turned(outcomes: tuple[str, ...], negations: str, one: str, other: str) -> bool:
    """Both texts state some outcome, and only one of them negates it."""
    for outcome in outcomes:
        if outcome in one and outcome in other:
            negated = re.compile(rf"\b({negations})\b(?:\s+\w+){{0,10}}?\s+{re.escape(outcome)}")
            if bool(negated.search(one)) != bool(negated.search(other)):
                return True
    return False


def is_right(final: str, expected: str) -> bool:
    """Whether an answer says what is expected: the same text, or by numbers, names, a long word in
    common, or similarity."""
    inner = re.search(r"<answer>(.*?)</answer>", expected, re.DOTALL | re.IGNORECASE)
    expected = inner[1] if inner else expected
    answer, right = clean(final), clean(expected)
    if not right or not answer:
        return False
    negations = f"{_NEGATIONS}|rather than|instead of"
    if _turned((*_OUTCOMES, "achieve"), negations, right, answer):
        return False
    if answer == right:
        return True
    numbers = set(_NUMBER.findall(right))
    if numbers and not numbers & set(_NUMBER.findall(answer)):
        return False
    names, found = (_telling(text) for text in (expected, final))
    if names & found:
        return names <= found or found <= names or similarity(right, answer) >= 0.60
    if any(len(word) > 8 for word in set(right.split()) & set(answer.split())):
        return True
    return similarity(right, answer) >= 0.85


def _telling(text: str) -> set[str]:
    return {name for name in _names(text) if len(name) >= 4 and name not in FILLER}


def similarity(needle: str, haystack: str) -> float:
    """The part of `needle` that is in `haystack` in one piece, or, of less than 85 %, in
    pieces around the longest one."""
    if not needle:
        return 0.0
    blocks = sorted(
        SequenceMatcher(None, needle, haystack).get_matching_blocks(),
        key=lambda block: block.size,
        reverse=True,
    )
    telling = (
        one
        for one in blocks
        if one.size >= 4
        and f" {needle[one.a : one.a + one.size].lower().strip()} " not in _STOPWORDS
    )
    best = next(telling, blocks[0])
    if not best.size:
        return 0.0
    if best.size / len(needle) >= 0.85:
        return best.size / len(needle)
    place = haystack[max(0, best.b - len(needle)) : best.b + 2 * len(needle)]
    return sum(
        block.size for block in SequenceMatcher(None, needle, place).get_matching_blocks()
    ) / len(needle)
