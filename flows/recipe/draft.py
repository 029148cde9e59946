"""Drafts a recipe for a file of rows: guesses its columns' meaning from the first rows, and writes
the recipe's text.

The chain is the smallest that shows whether training helped: distill, rebalance, an evaluation of
the base model, SFT, and the same evaluation again. The model itself answers rows without reasoning,
and learns from answers that verify (STaR, 2203.14465).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.recipe.recipe_toml import toml_value
from tasks.data.mapping import lookup

_NAMES = {
    "prompt": ("question", "prompt", "problem", "instruction", "query", "input", "task"),
    "reasoning": ("reasoning", "rationale", "why", "explanation", "solution", "steps", "thought"),
    "answer": ("answer", "final_answer", "output", "response", "label", "target", "result"),
}
"""Usual names of the column, the best first."""

MARKER = "####"
"""The mark of GSM8K and its like between the work and the answer in one column."""

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_UNSEEN = re.compile(r"[^\S ]|[\x00-\x1f\x7f]")
"""Characters that a file's name may have and a comment may not."""

_SHORT = 40
"""The most characters of an answer that can be compared exactly."""

_TURNS = 2
"""Items of a list of objects whose columns are named, e.g. a question and its answer."""

CHECKS = ("numeric", "math", "exact", "quantity", "none")
"""How answers can be verified by one column."""

_TINY = """
[tiny]
data = "procedural"                                  # gemma3-tiny solves no rows: problems of ours
"""
"""How `--tiny` runs where the model itself is the teacher: without its weights, as recipes of ours
do."""

_CHARACTERS, _EXTRA, _MOST = 3, 64, 4096
"""Characters of a token, at least, and tokens for turns and tags; the most tokens of a prompt or of
a response. Gemma's have about four characters."""


@dataclass(frozen=True)
class Draft:
    """The parts of a drafted recipe.

    Attributes:
        path: of the data in the source: below --data, or a URL.
        columns: `prompt`, `answer` and, of worked rows, `reasoning`, as a source maps them.
        rows: their number; for large files a lower bound.
        longest: characters of the longest prompt, and of the longest trace, among the rows read.
        commands: that plan and run the recipe.
    """

    name: str
    model: str
    path: str
    columns: Mapping[str, Any]
    check: str
    domain: str
    rows: int
    longest: tuple[int, int]
    commands: Sequence[str]

    def source(self) -> dict[str, Any]:
        """The source's table."""
        fixed = {"path": self.path, "domain": self.domain, "check": self.check}
        return {**fixed, **self.columns}

    def told(self) -> dict[str, Any]:
        """The JSON of `lyceum init --json`."""
        return {"source": self.source(), "rows": self.rows, "next": list(self.commands)}


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paths of the columns that any of these rows has, those of objects in objects last:
    `question`, `answer.text`, and of lists of objects the first turns, `messages.0.content`."""
    found = dict.fromkeys(path for row in rows for path in _paths(row))
    return sorted(found, key=lambda path: path.count("."))


def _paths(table: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in table.items():
        inside = value
        if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            inside = {str(place): one for place, one in enumerate(value[:_TURNS])}
        if isinstance(inside, Mapping) and inside:
            yield from _paths(inside, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def propose(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Find the columns that hold prompt (an instruction with its input is both), reasoning and
    answer, by their names or by a marker."""
    columns = [
        path
        for path in columns_of(rows)
        if any(isinstance(lookup(row, path), str | int | float) for row in rows)
    ]
    found: dict[str, Any] = {}
    for part, names in _NAMES.items():
        named = [one for name in names for one in columns if one.rpartition(".")[2].lower() == name]
        free = [one for one in named if one not in found.values()]
        if free:
            found[part] = free[0]
    answer = found.get("answer")
    above, _, last = str(found.get("prompt")).rpartition("instruction")
    if not last and f"{above}input" in columns:  # Alpaca's: what the instruction is about
        found["prompt"] = {"template": f"{{{above}instruction}}[\n\n{{{above}input}}]"}
    answered = [told for row in rows if answer and (told := lookup(row, answer))]
    if answered and all(MARKER in str(told) for told in answered):
        found["reasoning"] = {"column": answer, "before": MARKER}
        found["answer"] = {"column": answer, "after": MARKER}
    return found


def propose_check(answers: Sequence[str]) -> str:
    """The check that fits all of these answers; a row without one makes no example."""
    told = [answer.strip().strip("$%") for answer in answers if answer.strip()]
    if told and all(_NUMBER.fullmatch(answer) for answer in told):
        return "numeric"
    return "exact" if told and all(len(answer) <= _SHORT for answer in told) else "none"


def propose_domain(prompts: Sequence[str]) -> str:
    """The domain to which the router assigns most of these prompts."""
    from tasks.routing.router import route

    return str(Counter(one.domain.value for one in route(prompts)).most_common(1)[0][0])


def text(draft: Draft) -> str:
    """The recipe's file."""
    prompt, response = (_length(characters) for characters in draft.longest)
    heldout = max(1, min(1000, draft.rows // 4))
    train, validation = draft.rows * 7 // 10, min(64, draft.rows // 20)
    about = f"{draft.name}: {draft.model} learns from {draft.path}. Drafted by `lyceum init`."
    comments = [about, "", *(f"  {command}" for command in draft.commands)]
    head = "\n".join(f"# {_UNSEEN.sub('?', comment)}".rstrip() for comment in comments)
    source = "\n".join(f"{key} = {toml_value(value)}" for key, value in draft.source().items())
    return f"""\
{head}
name = {toml_value(draft.name)}
model = {toml_value(draft.model)}

[defaults.reasoning_eval]
prompt_length = {prompt}{" " * 34}# tokens
response_length = {response}
batch_size = 32
min_items = {max(1, min(100, heldout // 2))}

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
{_teacher(draft, prompt, response)}
{source}

[stages.rebalance]
kind = "rebalance"
inputs = {{ examples = "distill" }}
[stages.rebalance.config]
validation_fraction = 0.05
heldout_fraction = 0.25
max_prompt_tokens = {prompt}{" " * 30}# longer rows are left out and counted
max_response_tokens = {response}
exact = false                                        # a quota takes what there is
quotas.{draft.domain} = {{ train = {train}, validation = {validation}, heldout = {heldout} }}

[stages.base_eval]
kind = "reasoning_eval"
inputs = {{ prompts = "rebalance" }}

[stages.sft]
kind = "sft"
inputs = {{ examples = "rebalance" }}
[stages.sft.config]
epochs = 2
batch_size = 16
sequence_length = {prompt + response}
max_dropped_fraction = 0.05
lora = {{ rank = 16, alpha = 32.0 }}
optimizer = {{ learning_rate = 1e-4 }}

[stages.sft_eval]
kind = "reasoning_eval"
inputs = {{ prompts = "rebalance", policy = "sft", baseline = "base_eval" }}
{"" if "reasoning" in draft.columns else _TINY}"""


def _teacher(draft: Draft, prompt: int, response: int) -> str:
    """The teacher's table down to its source: the rows' own traces, or the model's."""
    table = "stages.distill.config.teachers"
    if "reasoning" in draft.columns:
        return f'name = "dataset"\n[[{table}.sources]]'
    return f"""\
name = "gemma"                                       # the model itself; what verifies is kept
model = {toml_value(draft.model)}
samples = 4
prompt_length = {prompt}
max_response_tokens = {response}
[[{table}.prompts]]
name = "dataset"
[[{table}.prompts.sources]]"""


def _length(characters: int) -> int:
    """The next power of two that holds so many characters, in tokens, up to half of what every
    Gemma reads: one very long row is left out, and decides nothing for the others."""
    return min(max(256, 1 << (characters // _CHARACTERS + _EXTRA - 1).bit_length()), _MOST)
