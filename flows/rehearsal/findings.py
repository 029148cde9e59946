"""What a rehearsal found: in settings, in the rows, in what became of them, in what rewards pay
for, and in what judges say. A finding has a name, by which the recipe may allow it
(`[rehearsal.allow]`). And what went into each stage, what came out, and which rows fell out."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from flows.rehearsal.cut import Rehearsed
from flows.rehearsal.setting_findings import of_settings, setting_notes
from flows.report.sections.data import causes_of, counted
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import headline
from schemas.base import clip
from schemas.evaluation import EvalPrompt
from schemas.examples import Domain, Example, Format, Prompt
from tasks.cleaning.rules import SPLITS
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing, stage_kind
from tasks.evaluation.eval_config import EvalConfig
from tasks.rehearsal.reward_findings import FEWEST, Finding
from tasks.rehearsal.row_findings import of_families, of_formats, of_leaks, of_quotas, of_references
from tasks.rehearsal.stand_in import ASKED, Tally

_RULINGS = 6
"""Rulings of a judge that say whether it tells responses apart."""

_EXAMPLES = 2
"""Rows that are shown of those that fell out for one cause."""

_FAMILIES, _CHARACTERS = 12, 1200
"""Families of which a taught example is shown, and characters of its prompt and its response."""


def findings_of(run: RunResults, ready: Rehearsed, tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """`findings` (name, text, allowed), `notes`, `audits` (stage -> reward_audit.json), `stages`
    and `endpoints`."""
    found: list[Finding] = []
    notes = [*ready.notes]
    for part, more in (of_references(ready.rows.references), of_quotas(*_groups(ready))):
        found += part
        notes += more
    found += of_formats(_formats_taught(run), _asked(ready) | _trained_on(run))
    found += _leaks(run, ready)
    unanswered = _unanswered(ready)
    notes += [
        f"{name} has tests and no answers, so that a stand-in solves none of its prompts: what"
        " becomes of them behind their teacher was not seen"
        for name in sorted(unanswered)
    ]
    found += _of_distill(run, unanswered)
    found += _of_rebalance(run)
    found += _of_families(run)
    found += _of_evaluations(run)
    found += of_settings(ready.whole.stages, ready.endpoints)
    notes += setting_notes(ready.resolved.stages, ready.whole.stages, ready.endpoints)
    found += _of_judges(tallies)
    audits = run.audits
    allow = dict(ready.whole.rehearsal.allow) if ready.whole.rehearsal else {}
    told = [{"name": one.name, "text": one.text, "allowed": allow.get(one.name)} for one in found]
    for stage, audit in audits.items():
        for one in audit["findings"]:
            name = f"{stage}/{one['name']}"
            told.append({**one, "name": name, "allowed": one["allowed"] or allow.get(name)})
    names = {one["name"] for one in told}
    notes += [
        f"rehearsal.allow names {name}, which was not found" for name in allow if name not in names
    ]
    return {
        "findings": told,
        "notes": notes,
        "audits": audits,
        "stages": [stage_json(run, stage) for stage in run.stages.values()],
        "endpoints": [_endpoint(ready, tallies, name) for name in ready.endpoints],
    }


def _taught(run: RunResults) -> list[Example]:
    return [
        example
        for stage in run.producing(Product.EXAMPLES)
        for example in stage.read("examples.jsonl", Example)
    ]


def _formats_taught(run: RunResults) -> list[Format]:
    """The formats of the rows that SFT reads or, where there is no SFT, of all worked traces."""
    trained = [
        row
        for stage in run.producing(Product.MODEL)
        if (source := stage.spec.inputs.get("examples"))
        for row in run.stages[source].read("train.jsonl", Example)
    ]
    return list(dict.fromkeys(row.channels for row in trained or _taught(run)))


def _trained_on(run: RunResults) -> dict[str, list[tuple[str, Format]]]:
    """Stage -> the prompts to which it samples and pays or pairs responses."""
    return {
        stage.name: [(row.prompt, row.channels) for row in rows]
        for stage in run.producing(Product.MODEL)
        if "policy" in stage.spec.inputs and (source := stage.spec.inputs.get("prompts"))
        if (rows := run.stages[source].read("prompts.jsonl", Prompt))
    }


def _groups(ready: Rehearsed) -> tuple[list[str], set[str], set[str]]:
    """Groups that quotas want, that were read, and that rows not read may have."""
    wanted = [
        name
        for stage in ready.resolved.stages
        if stage.kind in kinds_producing(Product.ROWS)
        for table in ("quotas", "grounding_quotas")
        for name, quota in getattr(stage.config, table).items()
        if quota.total("train")
    ]
    read = {str(one.grounding or one.domain) for one in ready.rows.prompts}
    may: set[str] = set()
    for stage in ready.resolved.stages:
        if stage.kind in kinds_producing(Product.EXAMPLES):
            for table in stage.config_json["teachers"]:
                may |= _may(table)
    return list(dict.fromkeys(map(str, wanted))), read, may


def _may(table: Mapping[str, Any]) -> set[str]:
    """The domains that a teacher's rows may have, where a column or the router says it, and the
    groups that it draws when they are missing."""
    found: set[str] = set()
    for source in table.get("sources") or ():
        if source.get("grounding") is not None:
            continue
        if source["domain"] == "router":
            found |= set(map(str, Domain))
        elif isinstance(source["domain"], dict):
            found |= set(source["domain"]["table"].values())
    for drawn in ("rows", "grounded"):
        found |= set(table.get(drawn) or ())
    for lender in table.get("prompts") or ():
        found |= _may(lender)
    if isinstance(first := table.get("first"), dict):
        found &= {name for name, many in first.items() if many}
    return found


def _asked(ready: Rehearsed) -> dict[str, list[tuple[str, Format]]]:
    """Suite -> what is put to trained models, and the format in which their answers are read."""
    found: dict[str, list[tuple[str, Format]]] = {}
    for stage in ready.resolved.stages:
        if isinstance(stage.config, EvalConfig) and "policy" in stage.inputs:
            heldout = ready.rows.prompts if "prompts" in stage.inputs else ()
            for one in [*ready.asked[stage.name], *map(EvalPrompt.of, heldout)]:
                said = stage.config.asked(one.prompt), one.channels
                found.setdefault(one.suite, []).append(said)
    return found


def _leaks(run: RunResults, ready: Rehearsed) -> list[Finding]:
    trained: list[Prompt] = []
    asked = {one.id: one for prompts in ready.asked.values() for one in prompts}
    for stage in run.producing(Product.ROWS):
        trained += stage.read("train.jsonl", Example)
        asked |= {one.id: EvalPrompt.of(one) for one in stage.read("heldout.jsonl", Example)}
    return of_leaks(trained, list(asked.values()))


def _unanswered(ready: Rehearsed) -> set[str]:
    """Families whose prompts are checked, and whose rows hold no answer to any of them."""
    checked = [one.prompt for one in ready.rows.asked if one.prompt.check != "none"]
    return {one.family for one in checked} - {one.family for one in checked if one.answer}


def _of_distill(run: RunResults, unanswered: set[str]) -> Iterator[Finding]:
    """Sources of which nothing is left, and teachers whose samples are no traces."""
    for stage in run.producing(Product.EXAMPLES):
        for source in stage.metrics.get("sources", ()):
            if source["family"] in unanswered and source["dropped"].keys() == {"unsolved"}:
                continue
            if source["read"] and not source["kept"]:
                why = ", ".join(f"{cause} {count}" for cause, count in source["dropped"].items())
                yield Finding(
                    f"empty:{source['family']}",
                    f"none of {source['read']} rows of {source['family']} became an example ({why})"
                    ": see the rows below",
                )
        for teacher in stage.metrics.get("teachers", ()):
            samples = counted(teacher, "samples.")
            if samples.get("malformed", 0) > sum(samples.values()) / 2:
                yield Finding(
                    f"malformed:{stage.name}",
                    f"{samples['malformed']} of {sum(samples.values())} samples are no"
                    " traces: the format that the teacher's instructions ask for is not"
                    " <reasoning>...</reasoning><answer>...</answer>",
                )


def _of_rebalance(run: RunResults) -> Iterator[Finding]:
    """Causes for which most rows fall out, and groups of which nothing is left to train on."""
    for stage in run.producing(Product.ROWS):
        read = stage.metrics.get("read", 0)
        for cause, count in stage.metrics.get("dropped", {}).items():
            if count > read / 2:
                yield Finding(
                    f"{cause}:{stage.name}",
                    f"{count} of {read} rows fall out of {stage.name} as {cause}: see the rows"
                    " below. Mend the data, or the setting that drops them",
                )
        for table in ("domains", "groundings"):
            for group, cells in stage.metrics.get(table, {}).items():
                train, left = cells["train"], sum(cell["available"] for cell in cells.values())
                if train["requested"] and not train["available"] and left >= FEWEST:
                    yield Finding(
                        f"untrained:{group}",
                        f"{stage.name} has {left} rows of {group}, and none of them to train on",
                    )


def _of_families(run: RunResults) -> Iterator[Finding]:
    """Families that a distill stage taught, and of which cleaning leaves nothing to train on."""
    given = Counter(one.family or one.source for one in _taught(run))
    for stage in run.producing(Product.ROWS):
        if stage.path("train.jsonl") is None:
            continue
        rows = stage.read("train.jsonl", Example)
        trained = Counter(one.family or one.source for one in rows)
        causes: dict[str, Counter[str]] = {}
        for row in stage.rows("dropped.jsonl"):
            causes.setdefault(row["source"], Counter())[row["cause"]] += 1
        yield from of_families(given, trained, causes)


def _of_evaluations(run: RunResults) -> Iterator[Finding]:
    for stage in run.producing(Product.ANSWERS):
        count = stage.metrics.get("n", 0)
        if count and stage.metrics.get("n_verifiable", count) == 0:
            yield Finding(
                f"unverified:{stage.name}",
                f"none of the {count} prompts that {stage.name} asks can be verified, so its"
                " headline rate counts nothing. Give their sources a check, or name a suite",
            )


def _of_judges(tallies: Mapping[str, Tally]) -> Iterator[Finding]:
    for name, tally in tallies.items():
        if len(tally.grades) >= _RULINGS and len(set(tally.grades.values())) == 1:
            grades = next(iter(tally.grades.values()))
            yield Finding(
                f"judge:{name}",
                f"the judge {name} gave all of {len(tally.grades)} responses the same grades"
                f" ({grades}): it tells nothing apart. Ask another one",
            )


def _endpoint(ready: Rehearsed, tallies: Mapping[str, Tally], name: str) -> dict[str, Any]:
    """Who answered in place of an endpoint."""
    tally, (provider, _, model) = tallies.get(name, Tally()), name.partition(":")
    asked, stood_in = tally.asked.total(), tally.stood_in.total()
    if provider == "gemma":
        why = f"a {model} is not loaded here"
    elif asked:
        why = f"{ASKED} requests at most go to a real endpoint"
    else:
        why = tally.why_not or "all of its answers were kept from an earlier rehearsal"
    return {
        "name": name,
        "stages": ready.endpoints[name],
        "roles": sorted({*tally.asked, *tally.stood_in}),
        "asked": asked,
        "stood_in": stood_in,
        "refused": dict(tally.refused),
        "why": why,
    }


def stage_json(run: RunResults, stage: StageOutput) -> dict[str, Any]:
    """A stage: `given` and `left` in words, `domains` (group -> counts by name), `dropped` (cause,
    rows, examples), and of taught examples the first of each family."""
    record = stage.record
    return {
        "name": stage.name,
        "kind": stage.spec.kind,
        "status": stage.status,
        "seconds": round(record.seconds, 1) if record else 0.0,
        "error": record.error if record else None,
        "given": "; ".join(_given(run, stage)),
        "left": _left(stage),
        "domains": _domains(stage),
        "shown": _shown(stage),
        "dropped": [
            {"cause": cause, "rows": rows, "examples": examples}
            for cause, rows, examples in causes_of(stage, _EXAMPLES)
        ],
    }


def _given(run: RunResults, stage: StageOutput) -> Iterator[str]:
    for slot, source in stage.spec.inputs.items():
        metrics, product = run.stages[source].metrics, stage_kind(run.stages[source].spec.kind)
        if product.produces is Product.ROWS:
            yield f"{source}: {_rows(metrics)}"
        elif product.produces is Product.EXAMPLES:
            yield f"{source}: {metrics.get('rows', 0)} examples"
        else:
            yield f"{slot} of {source}"
    if not stage.spec.inputs and "sources" in stage.metrics:
        yield f"{sum(one['read'] for one in stage.metrics['sources'])} rows read"


def _rows(metrics: dict[str, Any]) -> str:
    rows = metrics.get("rows", {})
    counts = ", ".join(f"{rows.get(split, 0)} {split}" for split in SPLITS)
    return f"{counts} rows, {metrics.get('prompts', 0)} prompts, {metrics.get('pairs', 0)} pairs"


def _left(stage: StageOutput) -> str:
    if stage.manifest is None:
        return "nothing"
    metrics, produces = stage.metrics, stage_kind(stage.spec.kind).produces
    if produces is Product.ROWS:
        return _rows(metrics)
    if produces is Product.EXAMPLES:
        pairs, unsolved = (sum(metrics[name].values()) for name in ("pairs", "unsolved"))
        return f"{metrics['rows']} examples, {pairs} pairs, {unsolved} unsolved prompts"
    if produces is Product.ANSWERS:
        checked = metrics.get("n_verifiable")
        verified = "" if checked is None else f", {checked} of them verified"
        return f"{metrics['n']} answers{verified}: {headline(metrics)}"
    counted = ("examples", "prompts", "prompts_too_long", "rubrics", "pairs")
    said = [
        f"{name.replace('_', ' ')} {metrics[name]}"
        for name in counted
        if isinstance(metrics.get(name), int)
    ]
    if isinstance(metrics.get("dropped"), dict):
        said.append(f"dropped {sum(metrics['dropped'].values())}")
    words = ", ".join([*said, headline(metrics)]).strip(", ").split(", ")
    return ", ".join(dict.fromkeys(words))


def _shown(stage: StageOutput) -> list[dict[str, str]]:
    """Of a stage that teaches: prompt and response of the first example of each family."""
    if stage_kind(stage.spec.kind).produces is not Product.EXAMPLES:
        return []
    first: dict[str, Example] = {}
    for one in stage.read("examples.jsonl", Example):
        first.setdefault(one.family or one.source, one)
    return [
        {
            "family": family,
            "prompt": clip(one.prompt, _CHARACTERS),
            "response": clip(one.response(), _CHARACTERS),
        }
        for family, one in islice(first.items(), _FAMILIES)
    ]


def _domains(stage: StageOutput) -> dict[str, dict[str, int]]:
    """Group -> what there is of it: of a distill stage its examples, of a rebalance stage its
    splits, of an evaluation its prompts."""
    found: dict[str, dict[str, int]] = {}
    for table in ("domains", "groundings", "grounding"):
        for group, cell in (stage.metrics.get(table) or {}).items():
            if isinstance(cell, int):
                found[group] = {"examples": cell}
            elif "n" in cell:
                found[group] = {"prompts": cell["n"]}
            elif "train" in cell:
                found[group] = {split: cell[split]["achieved"] for split in SPLITS}
    return found
