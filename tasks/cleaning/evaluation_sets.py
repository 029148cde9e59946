"""Evaluation sets that training rows must not give away: their files, and the prompt's column in
them."""

from pathlib import Path

from pydantic import Field

from schemas.base import InputError, StrictModel
from tasks.cleaning.rules import EvaluationItems
from tasks.data.data_files import data_digests, data_files
from tasks.data.mapping import Columns, Text, text_of
from tasks.data.readers import read_records
from tasks.data.records import Unreadable
from tasks.data.sources import DataPath

_READER = "evaluations"


class EvaluationSet(StrictModel):
    """An evaluation set.

    ```toml
    evaluations = [{ name = "gsm8k", path = "gsm8k/test.jsonl", prompt = "question" }]
    ```

    Attributes:
        name: its name in reports.
        path: a file in the data directory, or a URL; `*` allowed.
        prompt: the column, or the template of columns, that a model is asked
            (`tasks.data.mapping`).
    """

    name: str = Field(min_length=1)
    path: DataPath
    prompt: Text

    def dependencies(self, data: Path | None) -> dict[str, str | int]:
        """The digest of every file. Raises InputError for one that is missing or, if it is on this
        machine, lacks the column."""
        for name, file in () if "://" in self.path else data_files(data, self.path, _READER):
            records = read_records(name, file)
            self._columns(name).require_in(
                record.row for record in records if not isinstance(record, Unreadable)
            )
        return data_digests(data, self.path, _READER)

    def _columns(self, name: str) -> Columns:
        return Columns(name, [("prompt", [pick.columns() for pick in self.prompt])])

    def read(self, data: Path | None) -> EvaluationItems:
        """Its items, by `<file>:<line>`.

        Raises:
            InputError: a file is missing or lacks the column, a record cannot be read, or no record
                has a prompt. Nothing is skipped, since rows could not be compared with what is not
                read.
        """
        texts = []
        for name, file in data_files(data, self.path, _READER):
            columns = self._columns(name)
            for record in read_records(name, file):
                if isinstance(record, Unreadable):
                    raise InputError(
                        f"evaluation set {self.name}: {name}, line {record.line}: {record.cause}:"
                        f" {record.detail}. Correct the file."
                    )
                columns.see(record.row)
                if text := text_of(self.prompt, record.row):
                    texts.append((f"{Path(name).name}:{record.line}", text))
            columns.require_all()
        if not texts:
            raise InputError(
                f"evaluation set {self.name}: {self.path} holds no prompt. Fetch it again, or leave"
                " the set out."
            )
        return EvaluationItems(self.name, texts)
