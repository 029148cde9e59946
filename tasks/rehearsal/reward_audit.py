"""The reward audit: is what a recipe pays for what it wants? Asked before the first update.

The rewards of the stage, combined as it combines them, score the reference traces of some of its
prompts, and beside each of them controls: responses that take no understanding. GRPO moves a policy
towards whatever earns more than its neighbours in a group, so a control that earns more than the
reference is what it will learn. Rewards are looked at at the first update and, where a weight or a
penalty is annealed, at the last.

    dead:R          reward R abstains on every prompt, or is asked nothing at any update
    flat:R          R gives every response the same
    blind:R         R gives the references no more than its least paid control
    scale:R         what R can change of the total is more than 30 times what another reward can
    unreachable     more than a tenth of the references fail their own check
    too_long        more than a tenth of the references are longer than a response may be
    uninformative   on more than half of the prompts all responses earn the same
    control:C       control C earns more than the references do
    control:C@D     it does on the prompts of domain D

"More" is a mean difference over prompts that lies more than its standard error above zero: a judge
may be noisy. What a recipe allows (`audit.allow`) is shown and lets the stage go on.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

from infra.visible import aligned
from schemas.base import AuditFailed
from schemas.examples import Example
from tasks.contract.job import Job, read_jsonl
from tasks.contract.reward import Anneal, Response
from tasks.data.tokens import Tokenizer, response_tokens
from tasks.devices.hosts import agree
from tasks.rehearsal.audit_responses import REFERENCE, references_and_controls
from tasks.rehearsal.reward_findings import Finding, look, of_references
from tasks.reinforcement.grpo_config import RewardAudit
from tasks.reinforcement.rewarding import Scorer


def audit_rewards(
    job: Job[Any], config: RewardAudit, scorer: Scorer | None, tokenizer: Tokenizer
) -> None:
    """Audit the rewards of a GRPO job, write `reward_audit.json`, and end the stage when there is
    a finding that is not allowed.

    Args:
        scorer: None on hosts that score nothing.

    Raises:
        AuditFailed: with the table.
    """
    examples = audited(read_jsonl(job.inputs["prompts"] / "train.jsonl", Example), config.prompts)
    if not examples:
        job.log.warning("no prompt has a reference trace, so the rewards cannot be audited")
        return
    found: dict[str, Any] = {}
    if scorer:
        found = audit(
            config,
            examples,
            scorer,
            updates=config.last or job.config.steps,
            response_length=job.config.response_length,
            tokens=lambda text: len(response_tokens(tokenizer, text)),
        )
    found = agree(found)
    job.log.info("reward audit, %d prompts:\n%s", len(examples), "\n".join(text_table(found)))
    for one in found["findings"]:
        if one["allowed"]:
            job.log.warning("%s; allowed: %s", one["text"], one["allowed"])
    for name in found["not_found"]:
        job.log.warning("audit.allow names %s, which was not found", name)
    (job.out / "reward_audit.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    if config.ends:
        require_allowed(found)


def audited(examples: Iterable[Example], most: int) -> list[Example]:
    """At most `most` examples, in turn from every domain, check and grounding, by their ids."""
    groups: dict[tuple[Any, ...], list[Example]] = {}
    for example in sorted(examples, key=lambda one: one.id):
        groups.setdefault((example.domain, example.check, example.grounding), []).append(example)
    in_turn = chain.from_iterable(zip_longest(*(groups[name] for name in sorted(groups, key=str))))
    return [example for example in in_turn if example is not None][:most]


def audit(
    config: RewardAudit,
    examples: Sequence[Example],
    scorer: Scorer,
    *,
    updates: int,
    response_length: int,
    tokens: Callable[[str], int],
) -> dict[str, Any]:
    """Score references and controls.

    Args:
        examples: those to ask (`audited`).
        updates: how many the stage makes.
        response_length: tokens of a response at most.
        tokens: how many a text has, with its terminator.

    Returns:
        `reward_audit.json`: `prompts` (how many), `updates` (those looked at; each has `responses`:
        name -> mean of each reward and `total`, and by how much the reference earns more),
        `findings`.
    """
    responses = {
        name: [_response(text, tokens, response_length) for text in texts]
        for name, texts in references_and_controls(examples, response_length).items()
    }
    anneals = any(isinstance(value, Anneal) for one in scorer.configs for _, value in one)
    looks = {
        update: look(examples, responses, scorer, update)
        for update in ([1, updates] if anneals else [1])
    }
    found = {
        finding.name: finding
        for update, scores in looks.items()
        for finding in scores.findings(scorer.configs, update)
    }
    for one in scorer.configs:
        if not any(scores.asked[one.name].any() for scores in looks.values()):
            text = f"reward {one.name} is asked nothing, so it scores nothing"
            found[f"dead:{one.name}"] = Finding(f"dead:{one.name}", text)
    for finding in of_references(examples, responses[REFERENCE]):
        found[finding.name] = finding
    return {
        "prompts": len(examples),
        "updates": {str(update): scores.table() for update, scores in looks.items()},
        "findings": [
            {"name": one.name, "text": one.text, "allowed": config.allow.get(one.name)}
            for one in found.values()
        ],
        "not_found": sorted(config.allow.keys() - found.keys()),
    }


def require_allowed(found: dict[str, Any]) -> None:
    """Raises AuditFailed, with the table, when there is a finding that is not allowed."""
    bad = [one for one in found["findings"] if one["allowed"] is None]
    if not bad:
        return
    lines = [
        "the rewards of this stage do not pay for what its references do"
        f" ({found['prompts']} prompts; nothing was trained):",
        *(f"- {one['name']}: {one['text']}" for one in bad),
        *text_table(found),
        "Mend the rewards or the data, or write why it is meant so:"
        f' audit.allow = {{ "{bad[0]["name"]}" = "..." }}',
    ]
    raise AuditFailed("\n".join(lines))


def text_table(found: dict[str, Any]) -> list[str]:
    """The lines of a table of the last look: a response a line, a reward a column."""
    rows = list(found["updates"].values())[-1]
    names = [name for name in next(iter(rows.values())) if name not in ("total", "lead")]
    head = ["response", *names, "total", "reference is ahead by"]
    body = []
    for response, row in rows.items():
        numbers = [_number(row[name]) for name in (*names, "total")]
        body.append([response, *numbers, _lead(row["lead"])])
    return aligned([head, *body])


def _response(text: str, tokens: Callable[[str], int], most: int) -> Response:
    count = tokens(text)
    return Response(text, min(count, most), truncated=count > most)


def _number(value: float | None) -> str:
    return "abstains" if value is None else f"{value:.3g}"


def _lead(lead: dict[str, float] | None) -> str:
    return "" if lead is None else f"{lead['mean']:.3g} [{lead['low']:.3g}, {lead['high']:.3g}]"
