"""MMLU: 14,042 questions with four choices in 57 subjects (Hendrycks et al. 2021, 2009.03300); and
other files of its form.

`path` is the files `<subject>_test.csv` of the published archive, which have no header line, or the
hub's `hf://datasets/cais/mmlu/all/test-*.parquet` with the columns question, subject, choices and
answer (a place from 0). A file of yours may have the latter columns, as JSONL or Parquet, with any
number of choices; where it has no `subject`, its name is the subject.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from schemas.base import nearest
from schemas.examples import Domain
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, SuiteRecord, file_suite, suite_records

_PUBLISHED = {
    "math": {
        "abstract_algebra": 100, "college_mathematics": 100, "elementary_mathematics": 378,
        "high_school_mathematics": 270, "high_school_statistics": 216,
    },
    "coding": {
        "college_computer_science": 100, "computer_security": 100,
        "high_school_computer_science": 100, "machine_learning": 112,
    },
    "science": {
        "anatomy": 135, "astronomy": 152, "clinical_knowledge": 265, "college_biology": 144,
        "college_chemistry": 100, "college_medicine": 173, "college_physics": 102,
        "conceptual_physics": 235, "electrical_engineering": 145, "high_school_biology": 310,
        "high_school_chemistry": 203, "high_school_physics": 151, "human_aging": 223,
        "medical_genetics": 100, "nutrition": 306, "professional_medicine": 272, "virology": 166,
    },
    "general": {
        "business_ethics": 100, "econometrics": 114, "formal_logic": 126, "global_facts": 100,
        "high_school_european_history": 165, "high_school_geography": 198,
        "high_school_government_and_politics": 193, "high_school_macroeconomics": 390,
        "high_school_microeconomics": 238, "high_school_psychology": 545,
        "high_school_us_history": 204, "high_school_world_history": 237, "human_sexuality": 131,
        "international_law": 121, "jurisprudence": 108, "logical_fallacies": 163,
        "management": 103, "marketing": 234, "miscellaneous": 783, "moral_disputes": 346,
        "moral_scenarios": 895, "philosophy": 311, "prehistory": 324,
        "professional_accounting": 282, "professional_law": 1534, "professional_psychology": 612,
        "public_relations": 110, "security_studies": 245, "sociology": 201,
        "us_foreign_policy": 100, "world_religions": 171,
    },
}  # fmt: skip
"""Domain -> subject -> questions of its test file."""

SUBJECTS = {name: count for each in _PUBLISHED.values() for name, count in each.items()}
_DOMAINS = {subject: domain for domain, subjects in _PUBLISHED.items() for subject in subjects}
_COLUMNS = ("question", "A", "B", "C", "D", "answer")

_FIELDS = {"difficulty": 4, "prompt": "question", "choices": "choices", "answer": "answer"}
_MAPPINGS = {
    domain.value: PromptMapping.parse({**_FIELDS, "domain": domain.value, "check": "choice"})
    for domain in Domain
}


class Config(FileSuite):
    """See the module.

    Attributes:
        subjects: ask these only; empty: all.
    """

    name: Literal["mmlu"]
    path: DataPath = "mmlu/test/*_test.csv"
    subjects: tuple[str, ...] = ()

    @field_validator("subjects")
    @classmethod
    def _are_subjects(cls, subjects: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [subject for subject in subjects if subject not in SUBJECTS]:
            raise ValueError(f"unknown subject {unknown[0]!r}.{nearest(unknown[0], SUBJECTS)}")
        return subjects


def _asked(config: Config, data: Path | None) -> Iterator[SuiteRecord]:
    """The records with their subject and a list of choices."""
    for record in suite_records(config, data, header=_COLUMNS):
        row = dict(record.row)
        row["subject"] = row.get("subject") or _subject(record.file)
        if "choices" not in row and "A" in row:
            row["choices"] = [row[letter] for letter in "ABCD"]
        if not config.subjects or row["subject"] in config.subjects:
            yield replace(record, row=row)


def _subject(file: str) -> str:
    return file.rpartition("/")[2].partition(".")[0].removesuffix("_test")


def expected(config: Config) -> int:
    of_file = {_subject(config.path)} & SUBJECTS.keys()
    return sum(SUBJECTS[subject] for subject in config.subjects or of_file or SUBJECTS)


SUITE = file_suite(
    version=1,
    config=Config,
    mapping=lambda config, record: _MAPPINGS[_DOMAINS.get(record.row["subject"], "general")],
    expected=expected,
    records=_asked,
)
