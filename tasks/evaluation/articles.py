"""Questions about the articles of PubMedQA's `ori_pqal.json`, their own or others, as grounded
prompts (`tasks.suites.pubmedqa`)."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from schemas.evaluation import EvalPrompt
from schemas.examples import GROUNDED_REFUSAL, Domain, Grounding
from tasks.evaluation.suite_prompts import FileSuite, SuiteRecord, bad_row, suite_records, text_in

ARTICLES = 1000
"""Of the published file."""

_DECISIONS = ("yes", "no", "maybe")


def article_prompts(
    suite: FileSuite,
    data: Path | None,
    groundings: Iterable[Grounding],
    everyday: Sequence[str] = (),
) -> list[EvalPrompt]:
    """One prompt for each article of the suite's file: its own question, that of the next article
    (unanswerable), or one of `everyday` (out of domain).

    Raises:
        InputError: a row is no article.
    """
    articles, found = list(suite_records(suite, data)), []
    for number, (record, grounding) in enumerate(zip(articles, groundings, strict=False)):
        question, answer = text_in(suite, record, "QUESTION"), GROUNDED_REFUSAL
        if grounding == "answerable":
            answer = text_in(suite, record, "final_decision")
            if answer not in _DECISIONS:
                valid = ", ".join(_DECISIONS)
                raise bad_row(suite, record, f"final_decision is {answer!r}; valid: {valid}")
        elif grounding == "unanswerable":
            following = text_in(suite, articles[(number + 1) % len(articles)], "QUESTION")
            if following == question:
                same = "the next article's question is its own, which its context answers"
                raise bad_row(suite, record, same, "Leave one of the two out.")
            question = following
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


def _paragraphs(suite: FileSuite, record: SuiteRecord) -> list[str]:
    found = record.row.get("CONTEXTS")
    paragraphs = found if isinstance(found, list) else []
    if not paragraphs or not all(isinstance(one, str) and one.strip() for one in paragraphs):
        raise bad_row(suite, record, "CONTEXTS is no list of paragraphs")
    return paragraphs
