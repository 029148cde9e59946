"""Counts of the audit of passing code (`tasks.verification.code_audit`) over a GRPO stage, with a
few examples.

Where some prompt of a rollout has tests, the curve's row has `audit_passes`, the responses that
pass their prompts' tests, and `audit_short` and `audit_suspicious`, those of them that the audit
flags. The stage's metrics have the same totals over all rollouts. `audit.jsonl` in the artifact has
the first flagged examples, if any.
"""

from collections import Counter
from typing import Any

from schemas.examples import parse_trace
from tasks.reinforcement.rollout import Rollout
from tasks.verification.code_audit import audit

COUNTED = ("audit_passes", "audit_short", "audit_suspicious")
_EXAMPLES = 5


class PassingCode:
    """Running counts. `examples`: the rows of `audit.jsonl`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[dict[str, Any]] = []

    def add(self, rollout: Rollout, step: int, *, again: bool) -> dict[str, float]:
        """Count a rollout's passing responses. Returns its counts, for the curve.

        Args:
            step: the first update that trains on it.
            again: it was counted before; a stage that resumes in the middle of a rollout needs its
                counts for the curve alone.
        """
        if all(prompt.check != "tests" for prompt in rollout.prompts):
            return {}
        counts = Counter(dict.fromkeys(COUNTED, 0))
        for prompt, one, right in zip(
            rollout.prompts, rollout.completions, rollout.correct.reshape(-1), strict=True
        ):
            tested = prompt.check == "tests" and right
            trace = parse_trace(one.text, prompt.channels) if tested else None
            if trace is None:
                continue
            found = audit(prompt, trace.answer)
            counts.update(
                audit_passes=1, audit_short=found.short, audit_suspicious=bool(found.found)
            )
            if found.problems and len(self.examples) < _EXAMPLES and not again:
                self.examples.append(
                    {
                        "step": step,
                        "id": prompt.id,
                        "code": trace.answer,
                        "problems": list(found.problems),
                    }
                )
        for name in COUNTED:
            self.counts[name] += 0 if again else counts[name]
        return {name: float(counts[name]) for name in COUNTED}

    def metrics(self) -> dict[str, int]:
        """Totals, for the stage's metrics; empty where no prompt had tests."""
        return {name: self.counts[name] for name in COUNTED if name in self.counts}

    def warning(self) -> str:
        """A line for the log where something was flagged, else ""."""
        if not self.examples:
            return ""
        passes, short, suspicious = (self.counts[name] for name in COUNTED)
        return (
            f"of {passes} responses that passed their tests {short} are shorter than a plausible"
            f" solution and {suspicious} touch what no solution needs: look at audit.jsonl before"
            " you trust the reward"
        )

    def state(self) -> dict[str, Any]:
        """The state, for the checkpoint."""
        return {"counts": dict(self.counts), "examples": self.examples}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.counts, self.examples = Counter(state["counts"]), state["examples"]
