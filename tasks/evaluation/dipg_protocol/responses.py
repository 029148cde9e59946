"""How each version of the gym takes a response apart: analysis, proof and final answer.

All look for `<|channel|>name<|message|>...<|end|>`, for JSON, else for elements by their aliases;
they differ in how they look.
"""

import json
import re
from typing import Any, NamedTuple
from xml.etree import ElementTree


class Read(NamedTuple):
    """A response taken apart; what is missing is empty. `format_error`: version 4 found no answer,
    or only guessed one (`final`)."""

    analysis: str
    proof: str
    final: str
    format_error: bool = False


class Unreadable(ValueError):
    """A response that version 3 cannot take apart."""


_CHANNEL = re.compile(r"<\|channel\|>(\w+)<\|message\|>(.*?)<\|end\|>", re.DOTALL)
_KEYS_V3 = (
    ("reasoning", "thought", "thoughts", "explanation", "analysis"),
    ("evidence", "quote", "reference", "source", "proof"),
    ("answer", "conclusion", "result", "final_answer", "final"),
)
_KEYS_V4 = (
    ("reasoning", "thought", "explanation", "analysis", "think"),
    ("evidence", "quote", "reference", "proof", "trace", "source"),
    ("answer", "conclusion", "result", "final", "final_answer"),
)


def read_v3_strict(response: str) -> Read:
    """Version 3 of 15 December 2025. Raises Unreadable."""
    text = _not_empty(response)
    if _looks_like_json_v3(text):
        return _json_v3(text)
    if text.startswith("<") and ">" in text and "<|channel|>" not in text:
        return _well_formed(text)
    return _channels(text)


def read_v3(response: str) -> Read:
    """Version 3 of 24 December 2025. Raises Unreadable."""
    text = _not_empty(response)
    if "<|channel|>" in text:
        return _channels(text)
    if _looks_like_json_v3(text):
        return _json_v3(text)
    if ">" in text and ("</" in text or text.startswith("<")):
        return Read(
            _elements(text, "analysis", "think", "reasoning", "thought"),
            _elements(text, "proof", "evidence", "quote"),
            _elements(text, "final", "answer", "conclusion", "final_answer"),
        )
    return _channels(text)


def _not_empty(response: str) -> str:
    text = response.strip()
    if not text:
        raise Unreadable("empty")
    return text


def _channels(text: str) -> Read:
    found = {match[1]: match[2].strip() for match in _CHANNEL.finditer(text)}
    return Read(found.get("analysis", ""), found.get("proof", ""), found.get("final", ""))


def _looks_like_json_v3(text: str) -> bool:
    return (
        text.startswith("{")
        or "```json" in text.lower()
        or (text.startswith("```") and "{" in text)
    )


def _json_v3(text: str) -> Read:
    first, last = text.find("```"), text.rfind("```")
    inner = re.sub(r"^\w*\s*", "", text[first + 3 : last]).strip() if first < last else text
    found = _by_keys(inner, _KEYS_V3)
    if not all(isinstance(value, str) for value in found):
        raise Unreadable("a value is no text")
    return Read(*(value.strip() for value in found))


def _by_keys(text: str, keys: tuple[tuple[str, ...], ...]) -> list[Any]:
    """The values of the first key of each alias that an object has; "" where it has none. Raises
    Unreadable: it is no JSON object."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable("no JSON") from error
    if not isinstance(data, dict):
        raise Unreadable("no JSON object")
    return [next((data[key] for key in aliases if key in data), "") for aliases in keys]


def _well_formed(text: str) -> Read:
    try:
        root = _parse(text)
    except (ElementTree.ParseError, UnicodeEncodeError) as error:  # the latter: a lone surrogate
        raise Unreadable("no XML") from error

    def texts(*tags: str) -> str:
        found = [root.text or ""] if root.tag in tags else []
        return "\n".join(
            filter(None, [*found, *(child.text or "" for child in root if child.tag in tags)])
        ).strip()

    return Read(
        texts("analysis", "think", "reasoning"),
        texts("proof", "evidence"),
        texts("final", "answer", "conclusion"),
    )


def _parse(text: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return ElementTree.fromstring(f"<root>{text}</root>")


def _elements(text: str, *tags: str) -> str:
    for tag in tags:
        found = re.findall(rf"<{tag}(?:\s+[^>]*)?>(.*?)</{tag}>", text, re.IGNORECASE | re.DOTALL)
        if found:
            return "\n".join(one.strip() for one in found if one.strip())
    return ""


_ALIASES = {
    "analysis": ("think", "analysis", "reasoning", "thought"),
    "proof": ("proof", "trace", "evidence", "quote"),
    "final": ("answer", "final", "conclusion", "result", "final_answer"),
}
_ANY_TAG = "|".join(tag for tags in _ALIASES.values() for tag in tags)


def _elements_until(end: str) -> dict[str, re.Pattern[str]]:
    """What finds each part behind an opening tag in angle or square brackets, up to `end`."""
    opening = r"(?:<|\[)(?:{tags})(?:\s+[^\]>]*?)?(?:>|\])(.*?)"
    names = {part: "|".join(tags) for part, tags in _ALIASES.items()}
    return {
        part: re.compile((opening + end).format(tags=tags), re.DOTALL | re.IGNORECASE)
        for part, tags in names.items()
    }


_CLOSED = _elements_until(r"(?:<|\[)/(?:{tags})(?:>|\])")
_UNCLOSED = _elements_until(rf"(?=(?:<|\[)(?:{_ANY_TAG})|$)")
_HEADED_BY = (r"(?:Final\s+)?Answer", "Conclusion", "Result")
_HEADINGS = tuple(
    re.compile(heading, re.IGNORECASE)
    for heading in (
        *(rf"^(?:###?\s+)?{name}:?[\s\n]*" for name in _HEADED_BY),
        r"^\*\*Answer:\*\*[\s\n]*",
    )
)
_BOXED = re.compile(r"\\boxed\{(.*?)\}", re.DOTALL)
_HEADED = re.compile(
    r"(?:\*\*|###)\s*(?:Final\s+)?Answer:?\s*(?:\*\*|:)?\s*(.*?)(?:\n\n|$)",
    re.IGNORECASE | re.DOTALL,
)
_CONCLUDED = re.compile(
    r".*(\b(?:conclusion|answer|therefore|thus|so|consequently|final"
    r" answer|result|summary)\b[\W\s]+.*?)$",
    re.IGNORECASE | re.DOTALL,
)
_SECOND_THOUGHTS = re.compile(
    r"(\n\s*(?:Hmm|Wait|Let me|I need to)\b.*)", re.IGNORECASE | re.DOTALL
)


def read_v4(response: str) -> Read:
    """Version 4: elements in angle or square brackets, closed or not, else whatever looks like an
    answer."""
    text = response.strip()
    if not text:
        return Read("", "", "", format_error=True)
    if "<|channel|>" in text:
        read = _channels(response)
        return read._replace(
            format_error="final" not in {match[1] for match in _CHANNEL.finditer(response)}
        )
    if text.startswith("{") or "```json" in text.lower():
        return _json_v4(text)
    return _loose_elements(response)


def _json_v4(text: str) -> Read:
    blocks = re.findall(r"```(?:json)?(.*?)```", text, re.DOTALL | re.IGNORECASE)
    try:
        found = _by_keys(blocks[0].strip() if blocks else text, _KEYS_V4)
    except Unreadable:
        found = [None, None, ""]
    analysis, proof, final = found
    if not final or not all(value is None or isinstance(value, str) for value in found):
        return Read("", "", "", format_error=True)
    return Read((analysis or "").strip(), (proof or "").strip(), final.strip())


def _loose_elements(text: str) -> Read:
    thought = _CLOSED["analysis"].search(text)
    if not thought and (started := _UNCLOSED["analysis"].search(text)) and started[1].strip():
        thought = started
    analysis = thought[1].strip() if thought else ""
    rest = text[: thought.start()] + text[thought.end() :] if thought else text
    proofs = [proof for proof in _parts("proof", _CLOSED, rest) if proof]
    proof = "\n".join(proofs or _parts("proof", _UNCLOSED, rest)[:1])
    finals = _parts("final", _CLOSED, rest) or _parts("final", _UNCLOSED, rest)[:1]
    if finals:
        return Read(analysis, proof, finals[-1])
    final, sure = _rescued(rest, analysis)
    return Read(analysis, proof, final, format_error=not sure)


def _parts(name: str, elements: dict[str, re.Pattern[str]], text: str) -> list[str]:
    return [found.strip() for found in elements[name].findall(text)]


def _rescued(rest: str, analysis: str) -> tuple[str, bool]:
    """An answer that stands in no element, and whether the gym takes it for one: the text outside
    all elements, else the analysis' own."""
    for closed in _CLOSED.values():
        rest = closed.sub("", rest)
    dangling = re.sub(r"<[^>]+>|\[[^\]]+\]", "", rest).strip()
    if len(dangling) > 5:
        bodies = (
            dangling[match.end() :].strip()
            for heading in _HEADINGS
            if (match := heading.search(dangling))
        )
        return next((body for body in bodies if len(body) > 3), dangling), True
    for pattern in (_BOXED, _HEADED):
        if (found := pattern.search(analysis)) and (answer := found[1].strip()):
            return answer, True
        if found:  # an empty strong match ends the search, as there
            return _last_sentence(analysis), False
    if (found := _CONCLUDED.search(analysis)) and (
        answer := _SECOND_THOUGHTS.sub("", found[1].strip()).strip()
    ):
        return answer, False
    return _last_sentence(analysis), False


def _last_sentence(analysis: str) -> str:
    sentences = [
        sentence.strip() for sentence in re.split(r"[\.\?\!\n]", analysis) if sentence.strip()
    ]
    return sentences[-1] if len(analysis) > 50 and sentences else ""
