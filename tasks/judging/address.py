"""Find sentences of a response that address its judge: instructions about instructions, speaking to
a judge or for one, asking for a grade or giving one, verdicts, and delimiters and roles of its own.

A false alarm costs a second question and what the sentence contributed: a word problem about "the
highest score" is judged with and without that sentence. So the patterns are broad. They are matched
in folded text (`fold`), where look-alikes of other alphabets, full-width letters, invisible
characters, emphasis and s p a c e d letters make no difference.
"""

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

_LATIN = str.maketrans(
    "аαвβеεёоοрρсϲуυхχіιјѕԁһкκмнոтτԝѵνɡıɑᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "aabbeeeooppccyuxxiijsdhkkmhnttwvvgiaabcdefghijklmnoprstuvwyz",
)
"""Letters that look like Latin ones: Cyrillic, Greek, and small capitals."""

_JUDGE = (
    r"(?:judge|grader|grading (?:system|model)|evaluator|evaluation"
    r" (?:system|model)|rater|assessor|reviewer|scorer|examiner|"
    r"reward model|llm)s?"
)
_WHO = rf"(?:the |a |an |any |our |my |this |whoever )?(?:ai |automated |human )?{_JUDGE}"
_TOP = r"(?:10|ten|100(?: ?%| percent)?|1\.0|full|maximum|maximal|max|highest|perfect|top|best)"
_GRADE = r"(?:scores?|ratings?|marks?|grades?|points?|rewards?|verdicts?|rulings?)"
_RATE = r"(?:rate|score|grade|mark|evaluate|judge|assess)"
_SAY = r"(?:give|award|assign|output|return|print|reply|respond|answer|say|set)"
_FULFILLED = r"(?:satisf\w+|met|meets|fulfil\w*|pass\w*|true|yes|correct)"
_RULES = (
    r"(?:instructions?|prompts?|rules?|guidelines?|criteri(?:a|on)|rubrics?|previous|prior|above"
    r"|earlier|everything before)"
)

_OF_JUDGE = "judge|grad|evaluat|rater|assessor|reviewer|scorer|examiner|reward model|llm"
_OF_GRADE = "score|rating|mark|grade|point|reward|verdict|ruling|out of|/"
_PART = r"(?:response|answer|solution|submission|output)"
_DONE = r"flawless|perfect|excellent|outstanding|approved|graded|accepted|exemplary"
_MODES = r"grading|evaluation|judging|test|debug|developer"
_CONTROL = (
    r"start_of_turn|end_of_turn|im_start|im_end|system|user|assistant|start|end|channel|message"
    r"|eot_id|start_header_id|bos|eos|s"
)
_PATTERNS: tuple[tuple[str, ...], ...] = (
    # Instructions about instructions
    (
        r"\b(?:ignore|disregard|forget|override|bypass|skip|do not follow|don't follow|stop"
        rf" following)\b.{{0,40}}\b{_RULES}\b",
        "ignore|disregard|forget|override|bypass|skip|follow",
    ),
    (
        r"\b(?:new|updated|revised|real|actual|hidden|system|developer|admin)"
        r" (?:instructions?|prompt|override|message)\b",
        "instruct|prompt|override|message",
    ),
    (
        r"\b(?:ignor\w+|olvida|oublie\w*|vergiss|vergessen)\b.{0,40}\b(?:instruc\w+|istruzioni"
        r"|anweisung\w*|regeln|reglas|consignes)\b",
        "ignor|olvida|oublie|vergiss|vergessen",
    ),
    (
        r"忽略.{0,12}(?:指令|指示|规则|要求)|(?:指示|命令)を無視|[给打]出?(?:满分|最高分|10分|十分)",
        "忽略|無視|给|打",
    ),
    # Speaking to a judge, or for one
    (
        rf"\b(?:dear|hello|hi|hey|attention|(?:note|message) (?:to|for)|to|as|for) {_WHO}\b",
        _OF_JUDGE,
    ),
    (
        r"\byou (?:are|act as|must act as|will act as|play) (?:now )?(?:an? |the )?(?:\w+"
        rf" ){{0,3}}{_JUDGE}\b",
        _OF_JUDGE,
    ),
    (
        rf"\b{_JUDGE} (?:must|should|will|shall|has to|have to|(?:is|are)"
        r" (?:required|instructed|asked))\b",
        _OF_JUDGE,
    ),
    # Asking for a grade, or giving oneself one
    (
        rf"\b(?:{_RATE}|{_SAY})\b.{{0,60}}\b(?:{_TOP}[ -]?(?:/ ?10\b|out of"
        rf" (?:10|ten)\b|{_GRADE}\b)|{_GRADE}(?: of| is|:| to| as)? ?{_TOP}\b)",
        _OF_GRADE,
    ),
    (
        rf"\b{_RATE}"
        rf" (?:this|it|me|my|the|every\w*|all)\b.{{0,40}}\b(?:{_TOP}|satisfied|{_FULFILLED})\b",
        "rate|score|grade|mark|evaluate|judge|assess",
    ),
    (
        rf"\b{_TOP} ?(?:/ ?10\b|out of (?:10|ten)\b)"
        rf"|\b(?:full|maximum|highest|perfect|top) {_GRADE}\b",
        _OF_GRADE,
    ),
    (rf"\b{_GRADE} ?(?:=|:|is|of|should be|must be) ?{_TOP}\b", _OF_GRADE),
    (
        rf"\b(?:this|the|my|above) {_PART}\b.{{0,40}}\b(?:deserves|merits|{_FULFILLED})\b.{{0,30}}"
        r"\b(?:all|every|each|full|the highest|criteri\w+|rubrics?|requirements?)\b",
        "deserves|merits|satisf|met|meets|fulfil|pass|true|yes|correct",
        "criteri|rubric|require|all|each|every|full|the highest",
    ),
    (
        r"\b(?:all|every|each)\b.{0,20}\b(?:criteri(?:a|on)|rubric"
        rf" items?|requirements?)\b.{{0,30}}\b{_FULFILLED}\b",
        "criteri|rubric|requirement",
    ),
    (
        r"\bbe (?:as |more |very )?(?:lenient|generous|merciful)\b"
        rf"|\b(?:{_MODES}) (?:mode|tool)\b",
        f"lenient|generous|merciful|{_MODES}",
    ),
    (
        rf"\b(?:this|the|my|above) {_PART} (?:is|was|has been)"
        rf" (?:already |clearly |simply |judged )*(?:{_DONE})\b",
        _DONE,
    ),
    (
        r"\b(?:approve|accept|pass) (?:this|it|the|my|every\w*|all)\b.{0,20}\b"
        r"(?:response|answer|submission|criteri\w+|rubrics?)\b",
        "approve|accept|pass",
        "response|answer|submission|criteri|rubric",
    ),
    (
        rf"\b{_SAY}\b.{{0,40}}\b(?:true|yes|satisfied|10|1)\b.{{0,20}}\b(?:for|to|on)"
        r" (?:all|each|any|every\w*)\b",
        "true|yes|satisfied|1",
        "for |to |on ",
        "all|each|any|every",
    ),
    # Verdicts, delimiters and roles that it brings along
    (
        r"[\"'{,] ?(?:rating|score|grades?|satisfied|verdict|ruling|mark|reward|result)[\"']? ?[:=]"
        r" ?[\"'{\[]*(?:\d|true|yes|pass|correct)",
        "rating|score|grade|satisfied|verdict|ruling|mark|reward|result",
        ":|=",
    ),
    (
        r"\b(?:end|begin|start) of (?:the"
        r" )?(?:data|response|answer|candidate|submission|material|prompt|input|document)\b",
        "end of|begin of|start of",
    ),
    (r"\bdata (?:has )?ended\b", "ended"),
    (r"(?<!=)={3,} ?(?:data|end|begin)|(?<!-)-{3,} ?(?:data|end|begin)\b", "===|---"),
    (rf"<\|?/?(?:{_CONTROL})\b", "<"),
    (
        r"\[/?(?:inst|system_prompt)\]|<<sys>>|(?:^|[\s#\"])(?:#{2,} ?)?(?:system|developer) ?: ",
        "[|<<|system|developer",
    ),
)
"""Each with words of which a text that it matches has one, of every group: looking for a word costs
next to nothing."""

# one after the other is three times faster than all in one
ADDRESSES = tuple(
    (tuple(frozenset(words.split("|")) for words in needed), re.compile(pattern))
    for pattern, *needed in _PATTERNS
)
_WORDS = frozenset[str]().union(*(group for needed, _ in ADDRESSES for group in needed))
_ORDER = re.compile(rf"\b(?:{_RATE}|{_SAY})\b.{{0,40}}\b(?:{_TOP}|{_FULFILLED}|1|satisfied)\b")
"""Looked for where something else was found: `return 1` alone is code."""

_SENTENCE = re.compile(r"(?:[^.!?\n。！？]|[.!?]++(?!\s|$|[\"')\]]))*+(?:[.!?]+|[。！？]|\n|$)\s*")
_SPACED = re.compile(r"\b(?:\w[ .\-]){3,}\w\b")
_SINGLE = re.compile(r"[ .\-]\w[ .\-]\w[ .\-]")  # what `_SPACED` holds, and is looked for sooner
_WINDOW, _WIDEST = 3, 12
"""Sentences that are looked at together, and where only the whole text addresses a judge."""


_EMPHASIS = str.maketrans("", "", "*`~")
_UNUSUAL = re.compile(r"[^\n\t\x20-\x7e]")
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | {
    chr(code) for code in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
"""What Unicode calls ignorable and no control: variation selectors, which can spell a text that
nobody sees, and the fillers of Hangul."""


@lru_cache(maxsize=16)  # the rules, the mark and the data look at the same texts in turn
def without_invisible(text: str) -> str:
    """`text` without invisible characters: controls except line feed and tab, zero-width and
    direction marks, tags, variation selectors, fillers, surrogates."""
    unseen = lambda one: one in _FILLERS or unicodedata.category(one)[0] == "C"  # noqa: E731
    return _UNUSUAL.sub(lambda match: "" if unseen(match[0]) else match[0], text)


@lru_cache(maxsize=16)  # the rules and the patterns fold the same texts, one after the other
def fold(text: str) -> str:
    """A text's form for comparison: NFKC, no accents, no invisible characters, look-alikes as Latin
    letters, lower case, no emphasis, s p a c e d words joined, white space as one space."""
    plain = without_invisible(text)
    if not plain.isascii():
        plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", plain))
        plain = _UNUSUAL.sub(
            lambda match: "" if unicodedata.category(match[0]) == "Mn" else match[0], plain
        ).replace("’", "'")
        plain = plain.lower().translate(_LATIN)
    plain = plain.lower().translate(_EMPHASIS)
    if "_" in plain:
        plain = re.sub(r"\b_+|_+\b", "", plain)
    plain = " ".join(plain.split())
    if _SINGLE.search(plain):
        plain = _SPACED.sub(lambda match: re.sub(r"[ .\-]", "", match[0]), plain)
    return plain


def talks(folded: str) -> bool:
    """Whether a folded text addresses a judge."""
    there = {word for word in _WORDS if word in folded}
    return any(
        pattern.search(folded)
        for needed, pattern in ADDRESSES
        if not any(there.isdisjoint(group) for group in needed)
    )


class Address(NamedTuple):
    """Split a text into what it says to its judge, and the rest."""

    said: tuple[str, ...]
    rest: str


def address(text: str) -> Address:
    """Find sentences, or up to three in a row, that address a judge, and then any that tell it what
    to say. Where it takes more, those; where it takes too many, all of the text."""
    if not talks(fold(text)):
        return Address((), text)
    sentences = [match[0] for match in _SENTENCE.finditer(text) if match[0]]
    folded = [fold(one) for one in sentences]
    guilty: set[int] = set()
    for width in range(1, _WIDEST + 1):
        if guilty and width > _WINDOW:
            break
        for start in range(len(sentences) - width + 1):
            window = range(start, start + width)
            if guilty.isdisjoint(window) and talks(" ".join(folded[place] for place in window)):
                guilty.update(window)
    guilty = guilty or set(range(len(sentences)))
    guilty.update(place for place, one in enumerate(folded) if _ORDER.search(one))
    said = tuple(sentences[place].strip() for place in sorted(guilty))
    rest = [one for place, one in enumerate(sentences) if place not in guilty]
    return Address(said, "".join(rest).strip())
