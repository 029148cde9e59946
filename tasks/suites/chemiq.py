"""ChemIQ: 816 questions about molecules in SMILES (Runcie et al. 2026,
doi:10.1021/acs.jcim.5c02145).

Counts and scores are numbers; a score from noisy data is right within the published range. SMILES
and atom mappings are compared as text, where ChemIQ compares molecules by RDKit, so our rate is a
lower bound. We cannot verify the 200 IUPAC names, which its authors translate back with OPSIN: they
count for format alone. `path` is `questions/chemiq.jsonl` of github.com/oxpig/ChemIQ.
"""

import re

from tasks.data.sources import PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, SuiteRecord, bad_row, file_suite, published

_CHECKS = {
    "integer": "numeric",
    "float": "numeric",
    "smiles": "exact",
    "list_of_tuples": "exact",
    "iupac": "none",
}
_FIELDS = {"domain": "science", "difficulty": 4, "prompt": "prompt", "answer": "answer"}
_MAPPINGS = {
    answer: PromptMapping.parse({**_FIELDS, "check": check}) for answer, check in _CHECKS.items()
}
_RANGE = re.compile(r"[(\[]\s*(-?[\d.]+)\s*,\s*(-?[\d.]+)\s*[)\]]")


def _mapping(config: FileSuite, record: SuiteRecord) -> PromptMapping:
    columns = ("answer_format", "answer", "answer_range")
    kind, answer, limits = (record.row.get(column) for column in columns)
    mapping = _MAPPINGS.get(str(kind))
    if mapping is None:
        unknown = f"answer_format = {kind!r} is none of {', '.join(_MAPPINGS)}"
        raise bad_row(config, record, unknown)
    if limits is None:
        return mapping
    found = _RANGE.fullmatch(str(limits).strip())
    low, high = map(float, found.groups()) if found else (0.0, 0.0)
    if not (isinstance(answer, int | float) and low < answer < high):
        no_range = f"answer_range = {limits!r} is no range around the answer {answer!r}"
        raise bad_row(config, record, no_range)
    return mapping.model_copy(update={"tolerance": (high - low) / 2 / abs(answer)})


SUITE = file_suite(
    version=1, config=published("chemiq", "chemiq/chemiq.jsonl"), mapping=_mapping, expected=816
)
