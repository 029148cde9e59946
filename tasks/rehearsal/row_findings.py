"""What is wrong with the rows that a recipe reads, and with what its evaluations ask beside them: a
defect that no loss shows. Pure functions of rows; `flows.rehearsal.findings` gathers them.

    refused:F     more than a tenth of the references of family F fail their own check
    wordy:F       answers of family F are compared word for word, and have many words
    unworked:F    the reasoning of family F is no more than a word or two
    echo:F        most answers of family F repeat their prompts
    quota:G       a quota asks for domain or grounding G, and no source has rows of it
    format:S      answers to suite S, or responses in stage S, are read in a format that SFT does
                  not teach, or suite S asks for tags that it does not teach
    leak:S        prompts of S (the held-out rows, or a suite) are among the training rows
    lost:F        cleaning leaves nothing of family F to train on
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from schemas.evaluation import HELDOUT, EvalPrompt
from schemas.examples import ELEMENTS, Example, Format, Prompt, normalise_prompt, tags_of
from tasks.rehearsal.reward_findings import FEWEST, SHARE, Finding
from tasks.verification.verify import verify_many

_WORDY = 15
_UNWORKED = 3
_SAME = 40
"""Characters of a question that another one does not contain by chance."""
_CHANNELS = ("think", "analysis", "reasoning", "proof", "answer", "final")
_ASKS = re.compile(rf"</({'|'.join(_CHANNELS)})>")


def of_references(examples: Sequence[Example]) -> tuple[list[Finding], list[str]]:
    """Findings about references, and a line for each that fails its own check."""
    found, notes = [], []
    verdicts = verify_many(examples, [one.response() for one in examples])
    refused = [
        (one, verdict.detail)
        for one, verdict in zip(examples, verdicts, strict=True)
        if one.check != "none" and not verdict.exact
    ]
    families: defaultdict[str, list[Example]] = defaultdict(list)
    for one in examples:
        families[one.family or one.source].append(one)
    for family, rows in families.items():
        judged = [one for one in rows if one.check != "none"]
        wrong = [(one, why) for one, why in refused if (one.family or one.source) == family]
        notes += [f"{_place(one)}: its own check refuses {one.answer[:80]!r}: {why}"
                  for one, why in wrong]  # fmt: skip
        if wrong and len(wrong) > SHARE * len(judged):
            text = (
                f"{len(wrong)} of {len(judged)} references of {family} fail their own check"
                f" ({judged[0].check}), the first at {_place(wrong[0][0])}: no answer earns what"
                " they should. Mend the column, or the check"
            )
            found.append(Finding(f"refused:{family}", text))
        found += _of_texts(family, rows)
    return found, notes


def _of_texts(family: str, rows: Sequence[Example]) -> list[Finding]:
    if len(rows) < FEWEST:
        return []
    found = []
    compared = [len(one.answer.split()) for one in rows if one.check == "exact"]
    if len(compared) >= FEWEST and median(compared) > _WORDY:
        text = (
            f"answers of {family} are compared word for word (check exact) and have"
            f" {median(compared):.0f} words in the median: nobody will write them so. Are answer"
            " and reasoning swapped?"
        )
        found.append(Finding(f"wordy:{family}", text))
    worked = median(len(one.reasoning.split()) for one in rows)
    shorter = sum(len(one.reasoning) <= len(one.answer) for one in rows)
    if worked < _UNWORKED and shorter > len(rows) / 2:
        text = (
            f"the reasoning of {family} has {worked:.0f} words in the median: SFT teaches to answer"
            " without any. Are answer and reasoning swapped?"
        )
        found.append(Finding(f"unworked:{family}", text))
    echoes = sum(
        len(one.answer) > _SAME and normalise_prompt(one.prompt) in normalise_prompt(one.answer)
        for one in rows
    )
    if echoes > len(rows) / 2:
        text = f"{echoes} of {len(rows)} answers of {family} hold their whole prompt"
        found.append(Finding(f"echo:{family}", text))
    return found


def of_quotas(
    wanted: Iterable[str], read: Collection[str], may: Collection[str]
) -> tuple[list[Finding], list[str]]:
    """Args:
    wanted: groups (domains, groundings) of which a quota asks for rows to train on.
    read: groups of the rows that were read.
    may: groups that further rows may have: a column or a router says it row by row.
    """
    missing = [group for group in wanted if group not in read]
    found = [
        Finding(
            f"quota:{group}",
            f"a quota asks for rows of {group}, and no source has any: a run would fail when all"
            " is distilled. Name a source of them, or leave the quota out",
        )
        for group in missing
        if group not in may
    ]
    late = ", ".join(group for group in missing if group in may)
    note = f"quotas ask for rows of {late}, and none is among the first ones: try more --rows"
    return found, [note] * bool(late)


def of_formats(
    taught: Collection[Format], asked: Mapping[str, Sequence[tuple[str, Format]]]
) -> list[Finding]:
    """Args:
    taught: the formats of the rows that SFT learns from; empty: nothing is known of it.
    asked: suite or stage -> the texts that are put to the model, each with the format in which a
        response is read.
    """
    if not taught:
        return []
    known = {name for one in taught for name in _ASKS.findall("".join(tags_of(one)))}
    every, found = " or ".join(map(_example, taught)), []
    for place, prompts in asked.items():
        read = Counter(channels for _, channels in prompts if channels not in taught)
        wanted = [set(_ASKS.findall(text)) for text, _ in prompts]
        strange = [tags for tags in wanted if tags - known]
        if read.total() > len(prompts) / 2:
            (channels, _), *_ = read.most_common(1)
            text = (
                f"responses of {place} are read as {_example(channels)} (channels = {channels!r}),"
                f" and SFT teaches {every}: what the trained model writes is no answer there. Set"
                " channels of the suite or of the rows to the format that is taught"
            )
        elif len(strange) > len(prompts) / 2:
            tags = "".join(f"<{name}>" for name in _CHANNELS if name in strange[0])
            text = (
                f"suite {place} asks for {tags}, and SFT teaches {every}: the trained"
                " model will not write what is asked for. Teach that format, or ask for the one"
                " that is taught"
            )
        else:
            continue
        found.append(Finding(f"format:{place}", text))
    return found


def _example(channels: Format) -> str:
    """The opening tags of a format."""
    return "".join(opening for opening, _ in ELEMENTS[channels].values())


def of_leaks(trained: Iterable[Prompt], asked: Sequence[EvalPrompt]) -> list[Finding]:
    """Args:
    trained: rows that are trained on.
    asked: what evaluations ask, held-out rows among them.
    """
    rows = {normalise_prompt(one.prompt): one for one in trained}
    whole = "\n".join(rows)
    leaks: defaultdict[str, list[tuple[EvalPrompt, Prompt]]] = defaultdict(list)
    for one in asked:
        text = normalise_prompt(one.prompt)
        row = rows.get(text)
        if row is None and len(text) >= _SAME and text in whole:
            row = next(rows[other] for other in rows if text in other)
        if row is not None:
            leaks[one.suite].append((one, row))
    found = []
    for suite, pairs in leaks.items():
        total = sum(one.suite == suite for one in asked)
        what = "held-out rows" if suite == HELDOUT else f"prompts of suite {suite}"
        first, row = pairs[0]
        text = (
            f"{len(pairs)} of {total} {what} are among the training rows, the first"
            f" ({_place(first)}) as {_place(row)}: its rate says nothing. Name the suite in the"
            " rebalance stage's suites, and leave contamination on"
        )
        found.append(Finding(f"leak:{suite}", text))
    return found


def _place(row: Prompt) -> str:
    return f"{row.source}:{row.line}" if row.line else (row.source or row.id)


def of_families(
    given: Counter[str], trained: Counter[str], dropped: Mapping[str, Counter[str]]
) -> list[Finding]:
    """Findings about families whose rows all fall out.

    Args:
        given: family -> rows that cleaning was given.
        trained: family -> rows that it left to train on.
        dropped: family -> cause -> rows.
    """
    found = []
    for family, count in given.items():
        causes = dropped.get(family, Counter())
        if count >= FEWEST and not trained[family] and causes.total() > count / 2:
            why = ", ".join(f"{cause} {rows}" for cause, rows in causes.most_common())
            text = (
                f"of {count} rows of {family} none is left to train on ({why}): see the rows below."
                " Mend the data, or the setting that drops them"
            )
            found.append(Finding(f"lost:{family}", text))
    return found
