"""Rules of the router: few, and each right nearly whenever it holds. What none of them says is the
classifier's."""

import re

from schemas.examples import Domain

_CODE = re.compile(
    r"```"
    r"|^[ \t]*(?:async )?def \w+\(.*\).*:[ \t]*$"
    r"|^[ \t]*class \w+(?:\(.*\))?:[ \t]*$"
    r"|^#include\s*[<\"]"
    r"|^(?:from [\w.]+ import [\w, *]+|import [\w.]+(?: as \w+)?)[ \t]*$"
    r"|^[ \t]*(?:public|private|protected) (?:static )?\w+(?:<\w+>)? \w+\(",
    re.MULTILINE,
)
_ASKS_FOR_SUMMARY = re.compile(
    r"(?i)(?:please |can you |could you )?(?:briefly )?(?:summari[sz]e|sum up|tl;?dr)\b"
)
_ENDS_IN_SUMMARY = re.compile(
    r"(?i)(?:\bsummari[sz]e(?: (?:it|this|the"
    r" (?:above|text|article|passage)))?|\btl;?dr|^summary)\s*[.:]?\s*\Z",
    re.MULTILINE,
)
_ROLE_PLAY = re.compile(
    r"(?i)(?:please |now |let(?:'|’)s )*"
    r"(?:pretend (?:to be|(?:that )?you(?:'re|’re| are)|yourself)|role-?play\b"
    r"|(?:take|play|assume|adopt|embody|step into)\b[^.\n]{0,30}\b(?:role|persona|character)\b)"
    r"|.*\bstay(?:ing)? in character\b"
)
_CHEMISTRY = re.compile(r"\bSMILES\b|\b(?:1|13)[HC] NMR\b|\bIUPAC\b")


def rule(prompt: str) -> Domain | None:
    """The domain that a rule gives to a prompt, or None.

    coding: it holds a fenced block, or a line that is program text. summarization: it begins or
    ends by asking for a summary. creative: it begins by giving out a role to play. science: it
    speaks of SMILES, NMR spectra or IUPAC names.
    """
    if _CODE.search(prompt):
        return Domain.CODING
    if _ASKS_FOR_SUMMARY.match(prompt) or _ENDS_IN_SUMMARY.search(prompt[-200:]):
        return Domain.SUMMARIZATION
    if _ROLE_PLAY.match(prompt):
        return Domain.CREATIVE
    if _CHEMISTRY.search(prompt):
        return Domain.SCIENCE
    return None
