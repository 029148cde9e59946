"""Which prompts a model has nearly seen: a training prompt differs from them in names and numbers
alone. A rate over the others says more of problems that are new."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from schemas.evaluation import EvalPrompt

_VALUE = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]\w*")


def skeleton(prompt: str) -> str:
    """A prompt with a dash for each number and each word in capitals. Names begin with one, and so
    do sentences: their first words do not tell two prompts apart."""
    return _VALUE.sub(_dash, prompt)


def marked(prompts: Sequence[EvalPrompt], rebalance: Path) -> list[EvalPrompt]:
    """Prompts that know whether they are `familiar`: one of the same skeleton is among the training
    prompts of a rebalance artifact."""
    with (rebalance / "prompts.jsonl").open(encoding="utf-8") as lines:
        seen = {skeleton(json.loads(line)["prompt"]) for line in lines}
    return [one.model_copy(update={"familiar": skeleton(one.prompt) in seen}) for one in prompts]


def _dash(match: re.Match[str]) -> str:
    first = match[0][0]
    return "-" if first.isdigit() or first.isupper() else match[0]
