"""Train tiny chains: what gains of SimPO and GRPO are predicted from, and what pairing is worth.

    python -m benchmarks.tiny_chains SCRATCH [--chains 100] [--part K/N]
    python -m benchmarks.tiny_chains SCRATCH --replicates 50
    python -m benchmarks.tiny_chains SCRATCH --fit 60

Chain i is a function of i: two domains of the procedural teacher, some more steps of SFT, an
evaluation of that model with samples, then SimPO and GRPO with an evaluation each. Five in a row
share their data, and each goes on from the SFT model of the one before it, so that pass rates go
from low to high. A line of SCRATCH/chains.jsonl is a chain, and the same command goes on after an
interruption; `--part 0/2` makes every second five. `--fit` fits predictions to the first chains and
tests them on the others. A replicate has a seed of its own: SFT, and from it SimPO at two rates.

Stages run by their own functions in this process and share compiled programs, so an optimizer looks
its rates up in a table in its state, batches of pairs have one shape, and nothing counts programs.
"""

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import paired
from flows.runs.wording import bounds
from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.evaluation import EvalItem
from tasks.contract.job import Job, read_jsonl
from tasks.contract.kinds import stage_kind
from tasks.data.packing import Shape
from tasks.planning import programs
from tasks.sampling import sampler, slot_programs
from tasks.statistics.intervals import wilson
from tasks.training import optimizers, packed_logps, pair_batches, trainer

SEED, IN_A_ROW, HELDOUT = 20261126, 5, 160
LENGTHS = {"prompt_length": 60, "response_length": 60}
MODEL = "gemma3-tiny"
MADE_OF = {"samples_per_prompt": 4, "pairs_per_prompt": 2, "min_pairs": 1, "beta": 1.0}
REWARDS = [{"name": "format", "weight": 0.2}, {"name": "exact_answer", "weight": 1.0}]
COMMON: dict[str, dict[str, Any]] = {
    "simpo": {**MADE_OF, "sft_weight": 2.0, "batch_size": 32, "sampling_batch_size": 128},
    "grpo": {"rewards": REWARDS, "batch_size": 192, "group_size": 8},
}
"""What all chains have in common with the quickstart."""
DOMAINS = ("math", "coding", "science", "creative", "summarization", "general")
REPLICATED = (3e-4, 1e-3)
"""The rates of SimPO in replicates."""
Table = dict[str, Any]


def settings(chain: int) -> Table:
    """What chain i is made of. The first of five begins from random weights."""
    five, place = divmod(chain, IN_A_ROW)
    shared, own = (np.random.default_rng([SEED, *of]) for of in ((five,), (five, place)))

    def between(low: float, high: float) -> float:
        return float(f"{np.exp(own.uniform(np.log(low), np.log(high))):.3g}")

    return {
        "chain": chain,
        "seed": 1000 + five,
        "domains": sorted(map(str, shared.choice(DOMAINS, 2, replace=False))),
        "rows": int(shared.integers(400, 2400)),
        "sft_steps": int(own.integers(150, 300) if place == 0 else own.integers(60, 300)),
        "simpo_prompts": int(between(256, 1024)),
        "simpo_steps": int(between(4, 45)),
        "simpo_rate": between(1e-4, 1e-3),
        "grpo_steps": int(between(2, 27)),
        "grpo_rate": between(7e-5, 7e-4),
    }


class Rates(NamedTuple):
    """The state of an optimizer that looks up its rates."""

    inner: Any
    table: jax.Array


def table_of_rates(made: Callable[..., Any], config: Any, steps: int) -> Any:
    """The optimizer that `made` makes, with its schedule as a table in its state."""
    schedule = optimizers.learning_rate_schedule
    table = np.asarray(schedule(config, steps)(np.arange(256)), np.float32)

    def reading(rates: Any) -> Any:
        optimizers.learning_rate_schedule = lambda *_: lambda step: rates[step]
        try:
            return made(config, steps)
        finally:
            optimizers.learning_rate_schedule = schedule

    def update(gradients: Any, state: Any, parameters: Any = None) -> Any:
        found, inner = reading(state.table).update(gradients, state.inner, parameters)
        return found, Rates(inner, state.table)

    begun = lambda weights: Rates(reading(table).init(weights), jnp.asarray(table))  # noqa: E731
    return optax.GradientTransformation(begun, update)


def share_programs(stage: Callable[[], str]) -> None:
    """Let stages of a kind, which `stage` tells, run the programs of the first of them."""
    memory: dict[tuple[str, str], Any] = {}

    def shared(name: str, made: Any) -> Any:
        return memory.setdefault((stage(), name), made)

    def sharing(kind: Any, *names: str) -> None:
        begun = kind.__init__

        def begin(self: Any, *args: Any, **options: Any) -> None:
            begun(self, *args, **options)
            for name in names:
                key = f"{name} {getattr(self, 'sampled', '')}"
                setattr(self, name, shared(key, getattr(self, name)))

        kind.__init__ = begin

    sharing(sampler.Sampler, "_program")
    sharing(slot_programs.SlotPrograms, "prefill", "admit", "decode", "resize")
    step, logps = trainer.Trainer.__dict__["train_step"], packed_logps.token_logps_fn
    trainer.Trainer.train_step = property(lambda self: shared("step", step.func(self)))
    packed_logps.token_logps_fn = lambda model: shared("logps", logps(model))
    trainer.make_optimizer = partial(table_of_rates, trainer.make_optimizer)
    pair_batches.tightest = lambda *_, rows, **__: Shape(rows // 2 + 8, sum(LENGTHS.values()))
    for module in (programs, trainer, sampler):
        module.compilations = lambda program: 1
    slot_programs.compilations = lambda program: 0


class Chains:
    """Runs chains below a directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.kind = root, ""
        share_programs(lambda: self.kind)

    def run(self, kind: str, name: str, config: Table, **inputs: Path) -> Path:
        """A stage's directory."""
        self.kind, out = kind, self.root / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        found, store = stage_kind(kind), open_store(self.root / "store")
        parsed = found.config.parse(config)
        store.remove(f"work/{name}")
        found.run(Job(parsed, inputs, out, Workspace(store, name, "1")))
        if kind in ("distill", "rebalance"):
            (out / "config.json").write_text(json.dumps(parsed.model_dump(mode="json")))
        return out

    def rows(self, one: Table) -> Path:
        """The data of five chains."""
        wanted = int(1.15 * (one["rows"] + HELDOUT))
        teacher = {"name": "procedural", "rows": dict.fromkeys(one["domains"], wanted)}
        made = self.run("distill", "distill", {"seed": one["seed"], "teachers": [teacher]})
        quota = {"train": one["rows"], "validation": 0, "heldout": HELDOUT}
        config = {
            "seed": one["seed"],
            "validation_fraction": 0.01,
            "heldout_fraction": HELDOUT / (one["rows"] + HELDOUT),
            "near_duplicates": False,
            "contamination": False,
            "quotas": dict.fromkeys(one["domains"], quota),
        }
        return self.run("rebalance", "rebalance", config, examples=made)

    def sft(self, one: Table, rows: Path, **policy: Path) -> Path:
        rates = {"learning_rate": 8e-3, "muon_learning_rate": 0.055, "final_fraction": 0.05}
        config = {"model": MODEL, "seed": one["chain"], "steps": one["sft_steps"]}
        config |= {"batch_size": 8, "sequence_length": 128, "optimizer": rates}
        return self.run("sft", f"sft{one['chain']}", config, examples=rows, **policy)

    def trained(self, kind: str, one: Table, rows: Path, policy: Path, **more: Any) -> Path:
        config = {**LENGTHS, **COMMON[kind], "seed": one["chain"], "steps": one[f"{kind}_steps"]}
        config |= {"optimizer": {"learning_rate": one[f"{kind}_rate"]}, **more}
        config |= {"prompts": one["simpo_prompts"]} if kind == "simpo" else {}
        return self.run(kind, kind, config, policy=policy, prompts=rows)

    def answers(self, rows: Path, policy: Path, **more: Any) -> Path:
        config = {"model": MODEL, "batch_size": 128, **LENGTHS, **more}
        return self.run("reasoning_eval", "eval", config, prompts=rows, policy=policy)

    def chain(self, one: Table, rows: Path, **before: Path) -> Table:
        """What came of a chain. Its SFT model stays, for the next one."""
        policy = self.sft(one, rows, **before)
        asked = self.answers(rows, policy, sampling={"samples": 4, "temperature": 0.8})
        samples = right(asked, "samples").values()
        found: Table = {"right_of_4": [sum(n == number for n in samples) for number in range(5)]}
        found["sft"] = share(right(asked))
        for kind in ("simpo", "grpo"):
            policy = self.trained(kind, one, rows, policy)
            found[kind] = share(right(self.answers(rows, policy)))
        return {**one, **found}

    def replicate(self, number: int, rows: Path) -> Table:
        """SimPO at two rates after the same SFT, under a seed."""
        one = {**settings(10), "chain": number, "sft_steps": 120, "simpo_prompts": 128}
        sft, answers = self.sft(one, rows), []
        for rate in REPLICATED:
            tuned = {**one, "simpo_steps": 8, "simpo_rate": rate}
            policy = self.trained("simpo", tuned, rows, sft, batch_size=16)
            answers.append(right(self.answers(rows, policy)))
        shutil.rmtree(sft)
        changed = sum(answers[0][prompt] != answers[1][prompt] for prompt in answers[0])
        return {"replicate": number, "exact": [*map(share, answers)], "changed": changed}


def right(answers: Path, file: str = "items") -> Counter[str]:
    """How many answers to each prompt are exact."""
    found: Counter[str] = Counter()
    for item in read_jsonl(answers / f"{file}.jsonl", EvalItem):
        found[item.id] += item.exact
    return found


def share(right: Counter[str]) -> float:
    return right.total() / len(right)


def fit(tried: Sequence[Table], tested: Sequence[Table]) -> None:
    """Print how what is fitted to some chains predicts others, beside their mean gain."""
    paired.heading("", "gain", "predicted from", "covered of 90 %", "width", "mean error")
    for kind, since in (("simpo", "sft"), ("grpo", "simpo")):
        came, others = (np.array([c[kind] - c[since] for c in of]) for of in (tried, tested))
        fives = np.array([one["chain"] // IN_A_ROW for one in tried])
        for name, count in (("the mean gain", 1), ("samples and settings", None)):
            x, new = (np.array([terms(c, kind)[:count] for c in of]) for of in (tried, tested))
            weights, reach = fitted(x, came, fives)
            missed = np.abs(others - new @ weights)
            inside = wilson(int((missed <= reach).sum()), len(missed))
            share = f"{100 * np.mean(missed <= reach):.0f} {bounds(inside)} of {len(missed)}"
            sizes = (f"{200 * reach:.1f}", f"{100 * missed.mean():.2f}")
            gain = f"{100 * others.mean():+.1f}, sd {100 * others.std(ddof=1):.1f}"
            paired.row(f"{kind} since {since}", gain, name, share, *sizes)


def terms(one: Table, kind: str) -> list[float]:
    """Of a chain: 1; the share of prompts with right and wrong samples, of which pairs can be mined
    and whose groups have a gradient; pass@4 - pass@1; the logarithm of updates x rate; the share
    times that; pass@1."""
    right, prompts = one["right_of_4"], sum(one["right_of_4"])
    first = sum(count * number for count, number in enumerate(right)) / (4 * prompts)
    dose = math.log(one[f"{kind}_steps"] * one[f"{kind}_rate"] / 0.005)
    mixed = sum(right[1:4]) / prompts
    return [1.0, mixed, 1 - right[0] / prompts - first, dose, mixed * dose, first]


def fitted(x: np.ndarray, gains: np.ndarray, fives: np.ndarray) -> tuple[np.ndarray, float]:
    """Ridge regression's weights, and the 90 % quantile of its errors on fives that were left out
    (the jackknife that Barber et al., 1905.02928, begin with)."""

    def ridge(chosen: np.ndarray) -> np.ndarray:
        penalty = 0.1 * np.diag([0.0] + [1.0] * (x.shape[1] - 1))
        return np.linalg.solve(x[chosen].T @ x[chosen] + penalty, x[chosen].T @ gains[chosen])

    errors = np.concatenate(
        [
            np.abs(gains[fives == five] - x[fives == five] @ ridge(fives != five))
            for five in np.unique(fives)
        ]
    )
    place = min(len(errors), math.ceil(0.9 * (len(errors) + 1)))
    return ridge(fives >= 0), float(np.sort(errors)[place - 1])


def compare(found: Sequence[Table]) -> None:
    """Print what it is worth to pair two models by their seed, and by their prompts."""
    models = np.array([one["exact"] for one in found])
    drawn = np.random.default_rng(0).integers(0, len(found), (10_000, len(found)))
    apart = models.var(axis=0, ddof=1).sum()
    together = np.diff(models).var(ddof=1)
    times = [models[rows].var(axis=0).sum() / np.diff(models[rows]).var() for rows in drawn]
    changed = np.mean([one["changed"] for one in found]) / (2 * HELDOUT)
    of_prompt = changed - np.diff(models.mean(axis=0)).item() ** 2
    of_two = (models * (1 - models)).mean(axis=0).sum()
    paired.heading("paired by", "sd unpaired", "paired", "variances")
    ends = " to ".join(f"{end:.1f}" for end in np.quantile(times, [0.025, 0.975]))
    sds = (f"{100 * value**0.5:.2f}" for value in (apart, together))
    paired.row(f"seed ({len(found)})", *sds, f"{apart / together:.1f} ({ends})")
    sds = (f"{100 * value**0.5:.1f}" for value in (of_two, of_prompt))
    paired.row("prompt", *sds, f"{of_two / of_prompt:.1f}")
    print(f"exact answers {models.mean(axis=0)}, sds {models.std(axis=0, ddof=1)}")


def main() -> None:
    made = paired.parser(__doc__, scratch=True)
    made.add_argument("--chains", type=int, default=100)
    made.add_argument("--part", default="0/1")
    made.add_argument("--replicates", type=int, default=0)
    made.add_argument("--fit", type=int, default=0, metavar="CHAINS")
    options = made.parse_args()
    part, parts = map(int, options.part.split("/"))
    what = "replicate" if options.replicates else "chain"
    file = options.scratch / f"{what}s.jsonl"
    options.scratch.mkdir(parents=True, exist_ok=True)
    if options.fit:
        found = sorted(lines(file), key=lambda one: one["chain"])
        fit(found[: options.fit], found[options.fit :])
        return
    chains, rows = Chains(options.scratch / f"{what}{part}"), None
    for number in range(options.replicates or options.chains):
        five, place = divmod(number, IN_A_ROW)
        if five % parts != part or number in {one[what] for one in lines(file)}:
            continue
        began, one = time.process_time(), settings(number)
        if options.replicates:
            rows = rows or chains.rows(settings(10))
            found = chains.replicate(number, rows)
        else:
            rows = chains.rows(one) if rows is None or place == 0 else rows
            before = chains.root / f"sft{number - 1}"
            found = chains.chain(one, rows, **({"policy": before} if place else {}))
            shutil.rmtree(before, ignore_errors=True)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({**found, "cpu": time.process_time() - began}) + "\n")
    if options.replicates:
        compare(lines(file))


def lines(file: Path) -> list[Table]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


if __name__ == "__main__":
    main()
