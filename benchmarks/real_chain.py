"""SFT, SimPO and GRPO of a run of a real model, once more: Lyceum beside TRL with PEFT's adapters.

    python -m benchmarks.real_chain SCRATCH --store URI --run RUN [--steps sft=8 simpo=5 grpo=4]
    python -m benchmarks.real_chain SCRATCH --store URI --run RUN --whole STAGE [--steps STAGE=N]

RUN is a finished run of a recipe like `gemma_270m`, with its model in a local directory. Each stage
begins on both sides with what it began with in that run, and has its rows, pairs, prompts, rewards,
optimizer, schedule and adapters; both compute in bfloat16, on the CPU. The first form measures a
few steps on both sides. The second has TRL make the whole stage (with `--steps`: both sides, one of
so many steps), and has its model answer the prompts of the run's evaluations, beside the run's own.

Figures are those of `benchmarks.chain`; so is TRL's environment, with PEFT beside it.
"""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # of the evaluations, which run in this process

from benchmarks import chain, paired
from benchmarks.chain_peers.lyceum_side import run_stage, tokens_of_pair, write_for_peer
from benchmarks.chain_peers.settings import STAGES, Settings
from benchmarks.paired import heading, row, tell
from flows.runs.record import read_run
from flows.runs.results import RunResults, StageOutput, read_results
from infra.distribution import DISTRIBUTION
from infra.store.store import open_store
from schemas.examples import Example, PreferencePair
from tasks.contract.job import write_jsonl
from tasks.contract.kinds import stage_kind
from tasks.data.tokens import Tokenizer
from tasks.models.hf_tokenizer import write_tokenizer
from tasks.stages import sft

PEER = (*chain.PEER, "peft==0.21.2")
SHORT = {"sft": 8, "simpo": 5, "grpo": 4}
"""Steps by which a step is timed."""
LIMIT = 6 * 3600.0
"""Seconds for a stage: the whole SFT of `gemma_270m` would take TRL two and a half hours."""
AT_ONCE = 3
"""Examples of SFT that TRL takes at a time; of SimPO and GRPO as many as the recipe does."""


def main() -> None:
    made = paired.parser(__doc__, scratch=True)
    made.add_argument("--store", required=True)
    made.add_argument("--run", required=True)
    made.add_argument("--steps", nargs="*", type=counted, default=[], metavar="STAGE=N")
    made.add_argument("--whole", choices=STAGES)
    made.add_argument("--peer", type=Path, metavar="PYTHON", help="a Python that has TRL and PEFT")
    options = made.parse_args()
    store, steps = open_store(options.store), dict(options.steps)
    results = read_results(store, read_run(store, options.run))
    packages = (*PEER, *chain.FOR_REWARDS)
    peer = options.peer or paired.installed(options.scratch, "trl", packages)
    print(f"{paired.machine(DISTRIBUTION, 'jax')}; {', '.join(PEER)}; run {options.run}")
    if options.whole:
        whole(options.scratch, results, peer, options.whole, steps.get(options.whole))
    else:
        side_by_side(options.scratch, results, peer, steps or SHORT)


def counted(text: str) -> tuple[str, int]:
    """`stage=steps` of the command line."""
    name, _, count = text.partition("=")
    return name, int(count)


def side_by_side(scratch: Path, results: RunResults, peer: Path, steps: dict[str, int]) -> None:
    """Print the table of a few steps of each stage."""
    heading("", "Lyceum", "TRL", "TRL / Lyceum")
    for stage, count in steps.items():
        settings = settings_of(scratch, results, stage, count)
        sides = [one(scratch, results, peer, name, stage, settings) for name in ("lyceum", "trl")]
        for name, field, unit, form, more in chain.FIGURES:
            ours, theirs = (side[field] / unit for side in sides)
            ratio = ours / theirs if more else theirs / ours
            row(f"{stage}: {name}", format(ours, form), format(theirs, form), f"{ratio:.2f}")


def whole(scratch: Path, results: RunResults, peer: Path, stage: str, steps: int | None) -> None:
    """Have TRL make a whole stage, or both sides one of so many steps, and evaluate what comes out.
    Differences are of TRL's model since Lyceum's, paired by prompt."""
    settings = settings_of(scratch, results, stage, steps)
    for program in ("lyceum", "trl") if steps else ("trl",):
        print(program, json.dumps(one(scratch, results, peer, program, stage, settings)))
    for asked in results.evaluations_of(stage):
        inputs = {"prompts": directory(results, asked.spec.inputs["prompts"])}
        ours = directory(results, asked.name)
        if steps:
            ours = evaluated(scratch, "lyceum", stage, asked, inputs)
        evaluated(scratch, "trl", stage, asked, {**inputs, "baseline": ours})


def one(
    scratch: Path, results: RunResults, peer: Path, program: str, stage: str, settings: Settings
) -> dict[str, Any]:
    """Run a stage on one side; what was measured."""
    out, log = scratch / program / stage, scratch / program / f"{stage}.log"
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    asked = scratch / f"{stage}.json"
    settings.write(asked)
    python = peer if program == "trl" else Path(sys.executable)
    policy = with_tokenizer_json(policy_of(results, stage), scratch / stage / "policy")
    files = (asked, policy, out, log, scratch / "compiled")
    found = chain.run(scratch / stage, program, python, stage, *files, limit=LIMIT)
    tell(f"{stage}, {program}: {found}")
    return found


def evaluated(
    scratch: Path, program: str, stage: str, asked: StageOutput, inputs: dict[str, Path]
) -> Path:
    """Ask the model that one side made what the run asked its own. Returns the artifact."""
    out = scratch / program / f"{stage}-{asked.name}"
    shutil.rmtree(out, ignore_errors=True)
    given = {**inputs, "policy": scratch / program / stage}
    metrics = run_stage(asked.spec.kind, config_of(asked), given, out)
    print(program, asked.name, json.dumps(metrics), flush=True)
    return out


def settings_of(scratch: Path, results: RunResults, stage: str, steps: int | None) -> Settings:
    """The settings of both sides for one stage; writes its rows below `scratch`.

    Args:
        steps: in place of the recipe's.
    """
    output = results.stages[stage]
    table, source = (
        config_of(output),
        output.spec.inputs["examples" if stage == "sft" else "prompts"],
    )
    config = stage_kind(stage).config.parse(table)
    data = scratch / stage / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(directory(results, source), data)
    tokenizer = tokenizer_at(policy_of(results, stage))
    examples: list[Example] = []
    pairs: list[PreferencePair] = []
    if stage == "sft":
        examples = results.stages[source].read("train.jsonl", Example)
        packed, _ = sft.tokenise(tokenizer, examples, config.sequence_length)
        a_row, in_a_row = len(examples) / len(packed), (packed.segments > 0).sum() / len(packed)
        table.pop("epochs")
        found: dict[str, Any] = {
            "length": config.sequence_length,
            "examples": AT_ONCE * round(config.batch_size * a_row / AT_ONCE),
            "tokens": {stage: config.batch_size * float(in_a_row)},
            "micro": {stage: AT_ONCE},
        }
        steps = steps or round(config.epochs * len(packed) / config.batch_size)
    elif stage == "simpo":
        pairs = output.read("pairs.jsonl", PreferencePair)
        write_jsonl(data / "pairs.jsonl", pairs)
        table |= {"prompts": 0, "data_pairs": len(pairs)}
        of_pairs = sum(tokens_of_pair(tokenizer, pair, config.response_length) for pair in pairs)
        found = {
            "simpo_beta": config.beta,
            "simpo_margin": config.gamma_beta_ratio,
            "sft_weight": config.sft_weight,
            "pairs": config.batch_size,
            "tokens": {stage: config.batch_size * of_pairs / len(pairs)},
        }
    else:
        found = {
            "responses": config.batch_size,
            "group": config.group_size,
            "kl": config.beta,
            "rewards": {reward["name"]: reward["weight"] for reward in table["rewards"]},
        }
    if stage != "sft":
        found |= {"micro": {stage: config.micro_batch_size or config.batch_size}}
        found |= {name: table[name] for name in ("prompt_length", "response_length")}
    write_for_peer(data, tokenizer, examples, pairs)
    steps = steps or config.steps
    optimizer, lora = config.optimizer, config.lora
    return replace(
        Settings(model=str(results.record.recipe.model), cpu=True, seed=config.seed),
        **found,
        **{f"{stage}_steps": steps, f"{stage}_rate": optimizer.learning_rate},
        warmup=optimizer.warmup_fraction,
        final=optimizer.final_fraction,
        b2=optimizer.b2,
        lora={"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": list(lora.targets)},
        tables={stage: {**table, "steps": steps, "log_every": 1}},
    )


def config_of(stage: StageOutput) -> dict[str, Any]:
    """The config that its artifact was made with."""
    if stage.manifest is None:
        raise SystemExit(f"stage {stage.name}: {stage.problem or 'it has no artifact'}")
    return {name: value for name, value in stage.manifest.config.items() if value is not None}


def directory(results: RunResults, stage: str) -> Path:
    """The files of a stage's artifact. Raises SystemExit: it is gone."""
    output = results.stages[stage]
    config_of(output)
    assert output.manifest
    return output.store.local_dir(output.manifest)


def policy_of(results: RunResults, stage: str) -> Path:
    """The directory of the model with which a stage begins."""
    policy = results.stages[stage].spec.inputs.get("policy")
    return directory(results, policy) if policy else Path(results.record.recipe.model)


def tokenizer_at(model: Path) -> Tokenizer:
    return Tokenizer((model / "tokenizer.model").read_bytes())


def with_tokenizer_json(model: Path, to: Path) -> Path:
    """The model's files by links, and its tokenizer as `transformers` reads it."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for file in model.iterdir():
        (to / file.name).symlink_to(file)
    write_tokenizer(to, tokenizer_at(model))
    return to


if __name__ == "__main__":
    main()
