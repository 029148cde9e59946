"""Questions about the articles of PubMedQA's `ori_pqal.json`, their own or others, as grounded
prompts (`tasks.suites.pubmedqa`)."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from schemas.base import InputError
from schemas.evaluation import EvalPrompt
from schemas.examples import GROUNDED_REFUSAL, Domain, Grounding
from tasks.data.records import Record
from tasks.evaluation.suite_prompts import FileSuite, suite_records

ARTICLES = 1000
"""Of the published file."""

_DECISIONS = ("yes", "no", "maybe")


def article_prompts(
    suite: FileSuite,
    data: Path | None,
    groundings: Iterable[Grounding],
    everyday: Sequence[str] = (),
) -> list[EvalPrompt]:
    """One prompt for each article.

    Args:
        suite: whose file is read.
        groundings: of each article, what it is asked: its own question, that of the next article,
            or one of `everyday`.

    Raises:
        InputError: a row that is no article.
    """
    articles, found = list(suite_records(suite, data)), []
    for number, (record, grounding) in enumerate(zip(articles, groundings, strict=False)):
        question, answer = _text(suite, record, "QUESTION"), GROUNDED_REFUSAL
        if grounding == "answerable":
            answer = _text(suite, record, "final_decision")
            if answer not in _DECISIONS:
                raise bad_article(
                    suite, record, f"final_decision is {answer!r}; valid: {', '.join(_DECISIONS)}"
                )
        elif grounding == "unanswerable":
            question = _text(suite, articles[(number + 1) % len(articles)], "QUESTION")
        else:
            question = everyday[number % len(everyday)]
        context = " ".join(_paragraphs(suite, record))
        found.append(
            EvalPrompt(
                id=f"{suite.suite}/{number}",
                suite=suite.suite,
                prompt=f"Context: {context}\nQuestion: {question}",
                context=context,
                grounding=grounding,
                answer=answer,
                domain=Domain.SCIENCE,
                difficulty=3,
                family=f"pubmedqa.{grounding}",
                source=suite.path,
                line=record.line,
            )
        )
    return found


def _paragraphs(suite: FileSuite, record: Record) -> list[str]:
    found = record.row.get("CONTEXTS")
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(one, str) and one.strip() for one in found)
    ):
        raise bad_article(suite, record, "CONTEXTS is no list of paragraphs")
    return found


def _text(suite: FileSuite, record: Record, column: str) -> str:
    value = record.row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise bad_article(suite, record, f"{column} is no text")
    return value.strip()


def bad_article(suite: FileSuite, record: Record, what: str) -> InputError:
    """What is raised for a row that is no article."""
    return InputError(
        f"suite {suite.suite}, line {record.line}: {what}. It reads PubMedQA's ori_pqal.json as it"
        " is published."
    )
