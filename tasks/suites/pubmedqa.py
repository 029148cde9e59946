"""PubMedQA (Jin et al., 1909.06146): questions about real abstracts, `ori_pqal.json` (MIT), some of
them asked of a wrong abstract.

answerable     the article's own question: yes, no or maybe, as its authors concluded.
unanswerable   the next article's question: a medical one that this abstract does not answer.
out_of_domain  an everyday question (`questions`, a file in MT-bench's form): no abstract answers
               it.

An article's place in the file alone decides its question, so that the shares hold after any number
of articles.

Recipes that train on this file (`dipg_safety`, `medical`) have the same prompts: such a recipe
evaluates the rows that its own rebalance stage held out instead of this suite.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from schemas.examples import Grounding
from tasks.contract.suite import Suite
from tasks.data.sources import DataPath
from tasks.evaluation.articles import ARTICLES, article_prompts
from tasks.evaluation.suite_prompts import FileSuite, suite_digests, suite_records, text_in


class Config(FileSuite):
    """The shares of questions without an answer in their context.

    Attributes:
        unanswerable, out_of_domain: shares of the articles that get such a question.
        questions: the file of everyday questions, in its column `turns`.
    """

    name: Literal["pubmedqa"] = "pubmedqa"
    path: DataPath = "pubmedqa/ori_pqal.json"
    unanswerable: float = Field(default=0.4, ge=0, le=1)
    out_of_domain: float = Field(default=0.1, ge=0, le=1)
    questions: DataPath = "mtbench/vicuna_question.jsonl"

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.unanswerable + self.out_of_domain > 1:
            raise ValueError(
                "unanswerable and out_of_domain are shares of the same articles; together they are"
                " 1 at most"
            )
        return self

    @property
    def everyday(self) -> FileSuite:
        """The file of everyday questions."""
        return FileSuite(name=self.name, label=self.label, path=self.questions)


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    """One prompt for each article. Raises InputError: a row that is no article, or no everyday
    questions."""
    records = suite_records(config.everyday, data) if config.out_of_domain else []
    everyday = [text_in(config, record, "turns.0") for record in records]
    if config.out_of_domain and not everyday:
        raise InputError(
            f"suite {config.suite}: {config.questions} holds no question. Name a file that does, or"
            " set out_of_domain = 0."
        )
    return article_prompts(config, data, _groundings(config), everyday)


def _groundings(config: Config) -> Iterator[Grounding]:
    """The grounding of each article's question: always the one that lags most behind its share."""
    shares: dict[Grounding, float] = {
        "unanswerable": config.unanswerable,
        "out_of_domain": config.out_of_domain,
        "answerable": 1 - config.unanswerable - config.out_of_domain,
    }
    so_far: Counter[Grounding] = Counter()
    while True:
        number = so_far.total() + 1
        grounding = max(shares, key=lambda one: round(shares[one] * number - so_far[one], 9))
        so_far[grounding] += 1
        yield grounding


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """The digests of the files that are read."""
    everyday = suite_digests(config.everyday, data) if config.out_of_domain else {}
    return suite_digests(config, data) | everyday


SUITE = Suite(
    version=1,
    config=Config,
    prompts=prompts,
    dependencies=dependencies,
    expected=lambda config: ARTICLES,
    asked_by="safety_eval",
)
