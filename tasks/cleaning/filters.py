"""Filters of rows: too long for a model's fixed shapes, in another language, or with personal data.

A filter is a picklable callable on a row (a parsed line of `examples.jsonl` or
`unsolved.jsonl`); it returns None, or `(cause, detail)` of why the row is dropped. So
`tasks.cleaning.clean` can run it in any process, on this machine or another.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from schemas.examples import Trace
from tasks.data.dropped import CleaningCause
from tasks.data.tokens import Tokenizer, prompt_tokens, response_tokens

Row = Mapping[str, Any]
Cause = CleaningCause | Literal["too_long"]
Filter = Callable[[Row], tuple[Cause, str] | None]


def response_of(row: Row) -> str | None:
    """A row's trace as the model must write it; None for an unsolved prompt."""
    if "reasoning" not in row:
        return None
    parts = {name: row[name] for name in Trace.model_fields if name in row}
    return Trace.model_validate(parts).render()


def texts_of(row: Row) -> Iterator[str]:
    """The texts of a row: its prompt, reasoning, proof and answer."""
    return (row[key] for key in ("prompt", "reasoning", "proof", "answer") if row.get(key))


@dataclass(frozen=True)
class Length:
    """Drops rows whose prompt or response has more tokens than its fixed shape.

    A token covers at least one byte of the text: Gemma's SentencePiece models keep text as it is
    and fall back to bytes. So a text with no more bytes than the limit is not tokenised.

    Attributes:
        tokenizer: the model's own, as a serialised SentencePiece model.
        prompt, response: the most tokens, with the turns around the prompt and the terminator of
            the response; None for any number.
    """

    tokenizer: bytes = field(repr=False)
    prompt: int | None = None
    response: int | None = None

    def __call__(self, row: Row) -> tuple[Cause, str] | None:
        tokenizer = _tokenizer(self.tokenizer)
        for part, text, limit, count in (
            ("prompt", row["prompt"], self.prompt, prompt_tokens),
            ("response", response_of(row), self.response, response_tokens),
        ):
            if text is None or limit is None:
                continue
            if len(text.encode()) + len(count(tokenizer, "")) <= limit:
                continue
            if (found := len(count(tokenizer, text))) > limit:
                return "too_long", f"the {part} has {found} tokens, more than {limit}"
        return None


_tokenizer = cache(Tokenizer)
"""One for each process."""


CERTAIN = 0.5
"""A language is believed from this probability on: it is more likely than all the others together.
So py3langid takes none of 1,000 GSM8K rows, 350 SciTLDR abstracts, 692 SciBench problems and 164
HumanEval prompts for anything but English (tests/end_to_end/tasks/cleaning/test_filters.py)."""

ENOUGH = 20
"""Texts with fewer bytes of letters are not judged: `x = 3` is in no language, and three words are
in several. (A Chinese letter says more than a Latin one, and has more bytes.)"""

_JUDGED_CHARACTERS = 400
_NO_LETTER = re.compile(r"[\W\d_]+")


def language_of(text: str) -> str | None:
    """The ISO 639 code of a text's language; None where it is too short to tell, none is likely, or
    it is not in a language (tables, code)."""
    start = text[:_JUDGED_CHARACTERS]
    if len(_NO_LETTER.sub("", start).encode(errors="replace")) < ENOUGH:
        return None
    code, probability = _identifier().classify(start)
    return str(code) if probability >= CERTAIN and code != "zxx" else None


def languages() -> list[str]:
    """The codes that `language_of` may return."""
    return sorted({str(code) for code in _identifier().labels} - {"zxx"})


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@dataclass(frozen=True)
class Languages:
    """Drops rows whose prompt or response is in none of these languages. Answers that are code are
    not checked."""

    codes: tuple[str, ...]

    def __call__(self, row: Row) -> tuple[Cause, str] | None:
        response = [row.get("reasoning", ""), "" if row["domain"] == "coding" else row["answer"]]
        for part, text in (("prompt", row["prompt"]), ("response", "\n".join(response))):
            found = language_of(text)
            if found is not None and found not in self.codes:
                asked = ", ".join(self.codes)
                return "language", f"the {part} is in language {found!r}, not in {asked}"
        return None


PiiKind = Literal["email", "phone", "ip", "card", "iban", "ssn"]

_PII: dict[PiiKind, re.Pattern[str]] = {
    "email": re.compile(
        r"[A-Za-z0-9][\w.+-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,24}(?![\w-])"
    ),
    # international with +, or North American with a separate area code: a mere run of digits
    # is no telephone number
    "phone": re.compile(
        r"(?:\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,4}\)?){2,5}|(?:\([2-9]\d{2}\)"
        r" ?|[2-9]\d{2}[.-])[2-9]\d{2}[.-]\d{4})(?![\w-]|\.\d)"
    ),
    "ip": re.compile(
        r"(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
        r"|[23][0-9A-Fa-f]{3}:(?:[0-9A-Fa-f]{0,4}:){2,6}[0-9A-Fa-f]{1,4}(?![\w:])"
    ),
    "card": re.compile(r"[3-6]\d{3}(?:[ -]?\d){9,15}(?![\w-]|\.\d)"),
    "iban": re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?!\w)"),
    "ssn": re.compile(r"(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])"),
}
"""Each begins where it begins: `_BEFORE` is looked at afterwards, for a look-behind would be tried
at every character."""

_BEFORE = re.compile(r"(?:[\w.+:-]|\bEC |\b[Vv]ersion )$")
"""Characters that must not come before: the number goes on to the left, or it is an enzyme's or a
program's."""

_MARKS: dict[PiiKind, str] = {"email": "@", "phone": "+(-.", "ip": ".:", "ssn": "-"}
"""Kind -> characters of which a text must have one: no pattern is tried on others."""

_EXAMPLE_DOMAINS = re.compile(
    r"@(?:[\w-]+\.)*(?:example(?:\.(?:com|org|net))?|test|invalid|localhost)$", re.IGNORECASE
)


def pii_of(text: str, kinds: Sequence[PiiKind]) -> tuple[PiiKind, str] | None:
    """The first piece of personal data in a text, with its kind.

    Numbers count only with correct checksums: cards (Luhn, ISO/IEC 7812-1) and IBANs (ISO 7064 mod
    97-10). Addresses that are reserved for examples or belong to no one person do not count (RFC
    2606, RFC 6761; private, loopback and other special networks).
    """
    for kind in kinds:
        if kind in _MARKS and not any(mark in text for mark in _MARKS[kind]):
            continue
        for match in _PII[kind].finditer(text):
            before = text[max(0, match.start() - 9) : match.start()]
            if not _BEFORE.search(before) and _is_personal(kind, match[0]):
                return kind, match[0]
    return None


def _is_personal(kind: PiiKind, found: str) -> bool:
    if kind == "email":
        return _EXAMPLE_DOMAINS.search(found) is None
    if kind == "phone":
        return 8 <= len(re.sub(r"\D", "", found)) <= 15  # E.164
    if kind == "ip":
        return _is_global_address(found)
    if kind not in ("card", "iban"):
        return True
    # a card's date, or words in capitals, may follow a number that is written in groups
    starts = (found[: end.start()] for end in re.finditer(r"[ -]|$", found))
    return any(map(_is_card if kind == "card" else _mod_97, starts))


def _is_global_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _is_card(text: str) -> bool:
    """13 to 19 digits with Luhn's checksum: double every second digit from the right, add the
    digits of the results; the sum must be a multiple of ten."""
    digits = re.sub(r"\D", "", text)
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _mod_97(iban: str) -> bool:
    """Move the first four characters to the end, write letters as 10 to 35; the number modulo 97
    must be 1."""
    compact = iban.replace(" ", "")
    digits = "".join(str(int(character, 36)) for character in compact[4:] + compact[:4])
    return 15 <= len(compact) <= 34 and int(digits) % 97 == 1


@dataclass(frozen=True)
class Pii:
    """Drops rows with personal data of these kinds in their prompt, reasoning or answer."""

    kinds: tuple[PiiKind, ...]

    def __call__(self, row: Row) -> tuple[Cause, str] | None:
        for text in texts_of(row):
            if found := pii_of(text, self.kinds):
                kind, data = found
                # do not repeat the data in full: dropped.jsonl is part of the artifact
                return "pii", f"{kind}: {data[:2]}… ({len(data)} characters)"
        return None
