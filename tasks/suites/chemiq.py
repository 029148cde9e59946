"""ChemIQ: 816 questions about molecules in SMILES (Runcie et al. 2026,
doi:10.1021/acs.jcim.5c02145).

Counts and scores are numbers; a score from noisy data is right within the published range. SMILES
and atom mappings are compared as they are written, where ChemIQ itself compares molecules by RDKit:
what is counted is a lower bound. The 200 IUPAC names, which its authors translate back with OPSIN,
cannot be verified here: they count for format alone. `path` is `questions/chemiq.jsonl` of
github.com/oxpig/ChemIQ.
"""

import re
from typing import Literal

from schemas.base import InputError
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, SuiteRecord, file_suite

_MAPPINGS = {
    answer: PromptMapping.parse(
        {
            "domain": "science",
            "difficulty": 4,
            "prompt": "prompt",
            "answer": "answer",
            "check": check,
        }
    )
    for answer, check in {
        "integer": "numeric",
        "float": "numeric",
        "smiles": "exact",
        "list_of_tuples": "exact",
        "iupac": "none",
    }.items()
}
_RANGE = re.compile(r"[(\[]\s*(-?[\d.]+)\s*,\s*(-?[\d.]+)\s*[)\]]")


class Config(FileSuite):
    """See the module."""

    name: Literal["chemiq"]
    path: DataPath = "chemiq/chemiq.jsonl"


def _mapping(config: Config, record: SuiteRecord) -> PromptMapping:
    kind, answer, limits = (
        record.row.get(column) for column in ("answer_format", "answer", "answer_range")
    )
    where = f"suite {config.suite}: {record.file}, line {record.line}"
    mapping = _MAPPINGS.get(str(kind))
    if mapping is None:
        raise InputError(
            f"{where}: answer_format = {kind!r} is none of {', '.join(_MAPPINGS)}. Correct it."
        )
    if limits is None:
        return mapping
    found = _RANGE.fullmatch(str(limits).strip())
    if (
        found is None
        or not isinstance(answer, int | float)
        or not float(found[1]) < answer < float(found[2])
    ):
        raise InputError(
            f"{where}: answer_range = {limits!r} is no range around the answer {answer!r}."
            " Correct it."
        )
    return mapping.model_copy(
        update={"tolerance": (float(found[2]) - float(found[1])) / 2 / abs(answer)}
    )


SUITE = file_suite(version=1, config=Config, mapping=_mapping, expected=816)
