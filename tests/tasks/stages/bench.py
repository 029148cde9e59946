"""Small configurations of every kind that computes, on the one-layer model of the fixture
`one_layer` (conftest.py), and a bench that runs them, ends them where a test says so, and compares.

Compiling is what these tests cost, and processes share what they compiled: a test that runs a stage
takes its table from here where it can, and changes only what no program depends on.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.examples import Domain, Example, Grounding, prompt_id
from schemas.job import Progress
from tasks.contract.job import Job, write_jsonl
from tasks.contract.journal import Journal
from tasks.devices.hosts import make_mesh
from tasks.models import decoder
from tasks.models.loading import LoadedModel, base_model, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise
from tasks.planning.programs import abstract_model
from tasks.stages import (
    dpo,
    grpo,
    on_policy_distill,
    orpo,
    reasoning_eval,
    rebalance,
    reward_model,
    safety_eval,
    sft,
    simpo,
)
from tasks.training import loop as training
from tasks.training.checkpoints import Checkpoints
from tasks.training.trainer import Trainer
from tests.tasks.reward_models import step_traces

LORA = {"rank": 2, "alpha": 4.0}
ADAMW = {"learning_rate": 1e-3}
SFT: dict[str, Any] = {
    "model": "gemma3-tiny",
    "steps": 6,
    "batch_size": 4,
    "sequence_length": 64,
    "log_every": 2,
    "validation_every": 3,
    "micro_batch_size": 2,
    "remat": "layer",
    "optimizer": {"learning_rate": 1e-3, "muon_learning_rate": 0.02},
}
SFT_LORA = {**SFT, "micro_batch_size": None, "lora": LORA, "optimizer": ADAMW}
PREFERENCES: dict[str, Any] = {
    "steps": 6, "batch_size": 4, "prompts": 6, "samples_per_prompt": 2, "min_pairs": 4,
    "prompt_length": 19, "response_length": 18, "sampling_batch_size": 8, "log_every": 4,
    "micro_batch_size": 2, "optimizer": {"learning_rate": 3e-3},
}  # fmt: skip
"""What is planned is a full row for each response, and prompts and responses fill theirs."""
DPO: dict[str, Any] = {**PREFERENCES, "lora": LORA, "optimizer": {"learning_rate": 3e-2}}
GRPO: dict[str, Any] = {
    "steps": 6,
    "batch_size": 16,
    "group_size": 8,
    "micro_batch_size": 8,
    "rewards": [{"name": "format"}, {"name": "exact_answer"}],
    "audit": {"allow": {"too_long": "references of 20 tokens would make these programs longer"}},
    "beta": 0.01,
    "temperature": 0.9,
    "prompt_length": 24,
    "response_length": 16,
    "log_every": 4,
    "optimizer": {"learning_rate": 1e-2},
    "lora": LORA,
}
PASSES = {"steps": 0, "epochs": 0.3, "num_iterations": 2, "top_k": 50, "top_p": 0.95}
"""6 of the 20 prompts, 2 in a rollout that is used twice: 6 updates."""
DISTILL: dict[str, Any] = {
    "model": "gemma3-tiny", "steps": 6, "batch_size": 16, "micro_batch_size": 8,
    "num_iterations": 2, "prompt_length": 24, "response_length": 40,
    "optimizer": {"learning_rate": 1e-2},
}  # fmt: skip
GKD = {"name": "gkd", "beta": 0.5, "on_policy_fraction": 0.5}
REWARD_MODEL: dict[str, Any] = {
    "model": "gemma3-tiny", "steps": 6, "batch_size": 8, "micro_batch_size": 4, "lora": LORA,
    "damaged": 60, "prompts": 4, "samples_per_prompt": 2, "sampling_batch_size": 8, "min_pairs": 8,
    "min_accuracy": 0.0, "optimizer": ADAMW, "log_every": 1, **step_traces.LENGTHS,
}  # fmt: skip
EVAL = {
    "model": "gemma3-tiny",
    "batch_size": 4,
    "prompt_length": 20,
    "response_length": 8,
    "min_items": 1,
}
"""What is planned is the widest shape that an evaluation can need, and so long are the prompts."""


def example(number: int, grounding: Grounding | None = None) -> Example:
    prompt = f"What is {number} + 1?"
    context = f"{number} + 1 = {number + 1}" if grounding else None
    fields = {
        "prompt": prompt,
        "domain": Domain.MATH,
        "answer": str(number + 1),
        "reasoning": f"{number} + 1 = {number + 1}",
    }
    return Example(id=prompt_id(prompt), context=context, grounding=grounding, **fields)


STUDENT = replace(decoder.SIZES["gemma3-tiny"], num_layers=1, hidden_dim=128)
TEACHER = replace(STUDENT, hidden_dim=96, embed_dim=64)
"""What `one_layer` makes `gemma3-tiny`, and a teacher of another size."""


def model(config: decoder.GemmaConfig, seed: int) -> LoadedModel:
    weights = initialise(config, seed)
    return LoadedModel("gemma3-tiny", config, weights, tiny_tokenizer(), make_mesh())


Point = tuple[str, int, str]
"""Where an attempt ends: a function of WATCHED, its call in this attempt (from 1), and whether
before or after it."""

Kills = list[tuple[Point, int]]
"""Where the attempts at one stage end, one after the other, and how many steps each of them
takes; one more then goes to the end."""

TWICE: Kills = [(("seal", 2, "before"), 4), (("step", 4, "before"), 3)]
EVERYWHERE: Kills = [
    (("step", 2, "before"), 1),  # between what makes a batch and the update; nothing is saved yet
    (("seal", 1, "before"), 2),  # inside the first checkpoint, which is written and not sealed
    (("save", 1, "after"), 2),  # right after a checkpoint
    (("step", 4, "before"), 3),  # goes on at 2, saves at 4, ends between 5 and 6
    (("model", 1, "before"), 2),  # goes on at 4, ends after the last step
]
SAMPLED: Kills = [(("put", 1, "before"), 0), (("save", 1, "after"), 2), (("step", 3, "before"), 2)]


@dataclass(frozen=True)
class Case:
    """A kind, a table of its config, where it is killed, and the inputs that are not the usual
    ones."""

    kind: ModuleType
    table: dict[str, Any]
    kills: Kills
    inputs: Mapping[str, str] = field(default_factory=dict)


CASES = {
    "sft": Case(sft, SFT, EVERYWHERE, {"policy": ""}),
    "sft-lora": Case(sft, SFT_LORA, TWICE, {"policy": ""}),
    "simpo": Case(simpo, PREFERENCES, SAMPLED),
    "dpo": Case(dpo, DPO, SAMPLED),
    "orpo": Case(orpo, PREFERENCES, TWICE),
    "grpo": Case(grpo, GRPO, TWICE),
    "grpo-epochs": Case(grpo, {**GRPO, **PASSES}, TWICE),
    "policy-gradient": Case(on_policy_distill, DISTILL, TWICE, {"policy": ""}),
    "gkd": Case(on_policy_distill, {**DISTILL, "loss": GKD}, TWICE, {"policy": ""}),
    "reward_model": Case(
        reward_model,
        REWARD_MODEL,
        [*SAMPLED, (("model", 1, "after"), 2)],
        {"policy": "", "prompts": "traces"},
    ),
    "reasoning_eval": Case(reasoning_eval, EVAL, [(("put", 2, "after"), 0)]),
    "safety_eval": Case(safety_eval, EVAL, [(("put", 2, "after"), 0)]),
}
UPSTREAM = rebalance.Config.parse(
    {
        "quotas": {"math": {"train": 20, "validation": 7, "heldout": 11}},
        "grounding_quotas": {"answerable": {"heldout": 9}},
    }
)


def write_inputs(root: Path) -> dict[str, Path]:
    """Name -> directory of what stages read."""
    found = {name: root / name for name in ("rows", "traces", "policy", "teacher")}
    for directory in found.values():
        directory.mkdir()
    examples = [example(number) for number in range(20)]
    grounded = [example(30 + number, "answerable") for number in range(9)]
    for name, train in (("rows", examples), ("traces", step_traces.EXAMPLES)):
        written = {
            "train": train,
            "prompts": [row.as_prompt() for row in train],
            "pairs": [],
            "validation": examples[:7],
            "heldout": [*examples[:11], *grounded],
        }
        for file, rows in written.items():
            write_jsonl(found[name] / f"{file}.jsonl", rows)
        (found[name] / "config.json").write_text(json.dumps(UPSTREAM.model_dump(mode="json")))
    save_model(base_model("gemma3-tiny", 0), found["policy"])
    save_model(model(TEACHER, 1), found["teacher"])
    return found | {"examples": found["rows"], "prompts": found["rows"]}


class Killed(BaseException):
    """Ends an attempt where a test says so."""


WATCHED: dict[str, tuple[Any, str]] = {
    "step": (Trainer, "step"),
    "save": (Checkpoints, "save"),
    "seal": (Workspace, "save_tree"),
    "put": (Journal, "put"),
    "model": (training, "save_model"),
}


class Bench:
    """Runs attempts of one stage in this process. Counts what they call, and ends them where it is
    told to."""

    def __init__(self, root: Path, inputs: Mapping[str, Path], patch: pytest.MonkeyPatch) -> None:
        self.root, self.inputs, self.attempts = root, inputs, 0
        self.store = open_store(root / "store")
        self.calls: Counter[str] = Counter()
        self.trace: list[str] = []
        self.progress: list[Progress] = []
        self.point: Point | None = None
        for name, (owner, attribute) in WATCHED.items():
            patch.setattr(owner, attribute, self.watched(name, getattr(owner, attribute)))

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            number = self.calls[name] + 1
            if self.point == (name, number, "before"):
                raise Killed
            self.trace.append(name)
            result = function(*arguments, **named)
            self.calls[name] = number
            if self.point == (name, number, "after"):
                raise Killed
            return result

        return call

    def attempt(self, kind, config, key, point=None, every=2, inputs=None) -> Path:
        """Run one attempt; returns its output directory, which also has the metrics as
        `metrics.json` if it was not killed. `inputs`: other directories of `self.inputs`, or "" for
        none."""
        self.attempts += 1
        self.calls.clear()
        self.trace.clear()
        self.progress.clear()
        self.point = point
        out = self.root / f"out{self.attempts}"
        out.mkdir()
        names = {name: name for name in kind.KIND.inputs} | dict(inputs or {})
        job = Job(
            config=kind.Config.parse(config),
            inputs={name: self.inputs[one] for name, one in names.items() if one in self.inputs},
            out=out,
            work=Workspace(self.store, key, str(self.attempts)),
            checkpoint_steps=every,
            report=self.progress.append,
        )
        if point is None:
            metrics = kind.KIND.run(job)
            (out / "metrics.json").write_text(json.dumps(metrics, indent=1))
        else:
            with pytest.raises(Killed):
                kind.KIND.run(job)
        return out

    def checkpoints(self, key: str) -> list[Path]:
        directory = self.store.path(f"work/{key}/kept/checkpoints")
        return sorted(directory.iterdir()) if directory.exists() else []


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def planned(case: Case) -> dict[str, str]:
    """Program name -> its text, as `lyceum plan` lowers it."""
    mesh, found = make_mesh({"devices": 1}), {}
    student = abstract_model("gemma3-tiny", decoder.SIZES["gemma3-tiny"], mesh)
    upstream = dict.fromkeys(case.kind.KIND.inputs, UPSTREAM)
    if case.kind is on_policy_distill:
        upstream["teacher"] = abstract_model("gemma3-tiny", TEACHER, mesh)
    config = case.kind.Config.parse(case.table)
    for program in case.kind.KIND.programs(config, student, upstream):
        with jax.set_mesh(mesh):
            found[program.name] = program.function.lower(*program.args).as_text()
    return found


@contextmanager
def lowered(names: Mapping[str, str]) -> Iterator[dict[str, set[str]]]:
    """Program name -> its texts, of the programs of these names that are called meanwhile."""
    ran: dict[str, dict[str, str]] = {}
    found: dict[str, set[str]] = {}
    jit = jax.jit

    def watched(function: Any, **options: Any) -> Any:
        compiled, name = jit(function, **options), function.__name__.lstrip("_")
        if name not in names:
            return compiled

        class Watched:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(compiled, attribute)

            def __call__(self, *args: Any) -> Any:
                leaves = jax.tree.leaves(args)
                forms = [(jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves]
                texts = ran.setdefault(name, {})
                if str(forms) not in texts:
                    texts[str(forms)] = compiled.lower(*args).as_text()
                return compiled(*args)

        return Watched()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", watched)
        yield found
    found.update({name: set(texts.values()) for name, texts in ran.items()})


def keeps_the_laws(name: str, bench: Bench) -> None:
    """A run compiles each program that `lyceum plan` compiles, to the same text and once; attempts
    that are killed take up where the last one was and end with the bytes of an undisturbed one."""
    case = CASES[name]
    texts = planned(case)
    with lowered(texts) as ran:
        undisturbed = bench.attempt(case.kind, case.table, "undisturbed", inputs=case.inputs)
    assert ran == {program: {text} for program, text in texts.items()}
    entries, put = bench.calls["put"], 0
    for point, steps in case.kills:
        bench.attempt(case.kind, case.table, "killed", point, inputs=case.inputs)
        assert bench.calls["step"] == steps, point
        put += bench.calls["put"]
    out = bench.attempt(case.kind, case.table, "killed", inputs=case.inputs)
    put += bench.calls["put"]
    assert put == entries, "nothing that is in the journal is computed again"
    if trained := case.table.get("steps"):
        assert bench.calls["step"] <= 2
        done = [one.done for one in bench.progress if one.unit == "steps"]
        assert done == list(range(trained - bench.calls["step"], trained + 1))
    assert content(out) == content(undisturbed)
