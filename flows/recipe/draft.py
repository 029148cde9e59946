"""Drafts a recipe for a file of rows: guesses its columns' meaning from the first rows, and writes
the recipe's text.

The chain is the smallest that shows whether training helped: distill, rebalance, an evaluation of
the base model, SFT, and the same evaluation again. The model itself answers rows without reasoning,
and learns from answers that verify (STaR, 2203.14465).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flows.recipe.recipe_toml import toml_value
from tasks.data.mapping import Pick, lookup

_NAMES = {
    "prompt": ("question", "prompt", "problem", "instruction", "query", "input", "task"),
    "reasoning": (
        *("reasoning", "rationale", "why", "explanation", "solution", "steps", "thought"),
        *("thinking", "reasoning_content"),
    ),
    "answer": ("answer", "final_answer", "output", "response", "label", "target", "result"),
}
"""Usual names of the column, the best first."""

MARKER = "####"
"""The mark of GSM8K and its like between the work and the answer in one column."""

_THOUGHTS = ("think", "thinking", "reasoning")
"""Tags around the thoughts before an answer in one column."""

_CHAT = {"role": "content", "from": "value"}
"""Keys of a turn, who speaks and what, in OpenAI's and ShareGPT's form."""

_SPEAKERS = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model"), "assistant"),
}
_EXCHANGES = ("user", "assistant"), ("system", "user", "assistant")

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_UNSEEN = re.compile(r"[^\S ]|[\x00-\x1f\x7f]")
"""Characters that a file's name may have and a comment may not."""

_UNNAMED = re.compile(r"^\s*$|[\ud800-\udfff]")
"""Names that nobody can write: of a spreadsheet's empty column, or with half of a character."""

_SHORT = 40
"""The most characters of an answer that can be compared exactly."""

_FITTING = 0.9
"""The least part of the answers that a check has to read."""

_TURNS = 3
"""Items of a list of objects whose columns are named, e.g. a system's text, a question and its
answer."""

CHECKS = ("numeric", "math", "exact", "quantity", "choice", "none")
"""How answers can be verified by one column, or by one and the list of its choices."""

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
        columns: `prompt`, `answer` and, of worked rows, `reasoning`, as a source maps them; where
            they have them, `choices`, the roles of turns in `only`, and how many may be bad.
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
        if _UNNAMED.search(name):
            continue
        inside = value
        if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            inside = {str(place): one for place, one in enumerate(value[:_TURNS])}
        if isinstance(inside, Mapping) and inside:
            yield from _paths(inside, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def propose(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Find the columns that hold prompt (an instruction with its input is both), reasoning and
    answer, by their names, the roles of a dialogue (`only` has them), a marker or tags."""
    columns = [
        path
        for path in columns_of(rows)
        if any(isinstance(lookup(row, path), str | int | float) for row in rows)
    ]
    found: dict[str, Any] = {}
    for part, names in _NAMES.items():
        named = [one for name in names for one in columns if name in _words(one)]
        free = [one for one in named if one not in found.values()]
        if free:
            found[part] = free[0]
    answer = found.get("answer")
    above, _, last = str(found.get("prompt")).rpartition("instruction")
    if not last and f"{above}input" in columns:  # Alpaca's: what the instruction is about
        found["prompt"] = {"template": f"{{{above}instruction}}[\n\n{{{above}input}}]"}
    if (not answer or "prompt" not in found) and (dialogue := _dialogue(rows)):
        found |= dialogue
        answer = dialogue["answer"]
    if answer and isinstance(found.get("prompt"), str):
        found["prompt"] = _with_letters(found["prompt"], answer, columns, rows)
    return found | (parted(answer, rows) if answer else {})


def _with_letters(
    prompt: str, answer: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Any:
    """The prompt, with the choices that lie in columns of their own (A, B or option_a, option_b)
    where the answers are their letters: without them nobody knows what B is."""
    found = {one: re.fullmatch(r"(?i:option|choice)?[ _]?([A-Za-z])", one) for one in columns}
    named = {match[1].upper(): one for one, match in found.items() if match}
    told = {str(value).strip() for row in rows if (value := lookup(row, answer)) is not None}
    if len(named) < 2 or not told or not told <= named.keys() or re.search(r"[\[\]{}]", prompt):
        return prompt
    listed = "".join(f"\n{letter}. {{{named[letter]}}}" for letter in sorted(named))
    asked = "Answer with the letter of the right choice."
    return {"template": f"{{{prompt}}}\n{listed}\n\n{asked}"}


def _words(path: str) -> set[str]:
    """The names of a column: `Question (text)` is `question`, `Working / rationale` two."""
    last = re.sub(r"\(.*?\)|\[.*?\]", "", path.rpartition(".")[2]).lower()
    return {"_".join(name.split()) for name in last.split("/")}


def _dialogue(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first question and answer of dialogues, which begin as most of these rows do; `only`
    leaves the others out."""
    paths = columns_of(rows)
    for role, said in _CHAT.items():
        first = f".0.{role}"
        for column in (one.removesuffix(first) for one in paths if one.endswith(first)):
            begins = Counter[tuple[str, ...]]()
            for row in rows:
                names = [str(lookup(row, f"{column}.{place}.{role}")) for place in range(_TURNS)]
                spoke = [_SPEAKERS.get(name.lower(), "") for name in names]
                begins += Counter(
                    tuple(names[: len(one)])
                    for one in _EXCHANGES
                    if tuple(spoke[: len(one)]) == one
                )
            if not begins:
                continue
            begin = begins.most_common(1)[0][0]
            *above, prompt, answer = (f"{column}.{place}.{said}" for place in range(len(begin)))
            asked = {"template": f"[{{{above[0]}}}\n\n]{{{prompt}}}"} if above else prompt
            roles = {f"{column}.{place}.{role}": [name] for place, name in enumerate(begin)}
            if any(isinstance(lookup(row, answer), str) for row in rows):
                return {"prompt": asked, "answer": answer, "only": roles}
    return {}


def parted(column: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reasoning and answer of a column that has both, with a marker between them or tags around the
    thoughts; else nothing."""
    pick = Pick(column=column)
    told = [text for row in rows if (text := pick.text(row))]
    if told and all(MARKER in one for one in told):
        before, after = {"before": MARKER}, {"after": MARKER}
        return {"reasoning": {"column": column, **before}, "answer": {"column": column, **after}}
    for tag in _THOUGHTS:
        end = f"</{tag}>"
        if sum(end in one for one in told) * 2 > len(told):
            tagged = sum("</answer>" in one for one in told) * 2 > len(told)
            after = {"after": "<answer>", "before": "</answer>"} if tagged else {"after": end}
            thoughts = {"before": end, "without": f"<{tag}>"}
            return {
                "reasoning": {"column": column, **thoughts},
                "answer": {"column": column, **after},
            }
    return {}


def propose_choices(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> str | None:
    """The column with the texts to choose from: lists of which the answers are one."""
    from tasks.data.conversion import NotAnExample, prompt_of
    from tasks.data.sources import PromptMapping

    for path in columns_of(rows):
        if not any(isinstance(lookup(row, path), list) for row in rows):
            continue
        known = {name: columns[name] for name in ("prompt", "answer", "only") if name in columns}
        fixed = {"domain": "general", "check": "choice", "choices": path}
        source, fits = PromptMapping.parse({**known, **fixed}), 0
        for line, row in enumerate(rows, 1):
            with suppress(NotAnExample):
                prompt_of(source, row, "", line, "")
                fits += 1
        if fits * 2 > len(rows):
            return path
    return None


def propose_check(answers: Sequence[str]) -> str:
    """The check that fits these answers, but for a few (not determined, n.a.); a row without one
    makes no example."""
    told = [answer.strip().strip("$%") for answer in answers if answer.strip()]
    for check, fits in (("numeric", _NUMBER.fullmatch), ("quantity", _is_quantity)):
        if told and sum(map(bool, map(fits, told))) >= _FITTING * len(told):
            return check
    return "exact" if told and all(len(answer) <= _SHORT for answer in told) else "none"


def _is_quantity(answer: str) -> bool:
    """Whether it is a number with a unit that is known."""
    if not _NUMBER.match(answer):
        return False
    from tasks.verification.quantities import parse_quantity

    return any(not one.bare and not one.things for one in parse_quantity(answer))


def propose_domain(prompts: Sequence[str]) -> str:
    """The domain to which the router assigns most of these prompts."""
    from tasks.routing.router import route

    return str(Counter(one.domain.value for one in route(prompts)).most_common(1)[0][0])


def text(draft: Draft) -> str:
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
