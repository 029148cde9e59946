"""Lyceum's side of `benchmarks.chain`: the stages' own `run` in a job each; and what is not timed: data, first model, evaluation."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.chain_peers.settings import STAGES, Clock, Settings, main
from tasks.contract.job import Job, read_jsonl, read_rows, write_jsonl

RECIPE = Path(__file__).resolve().parents[2] / "flows" / "recipes" / "quickstart.toml"
PROMPTS, SAMPLES = 256, 4
"""Sampled before the measurement, for the preference pairs that both sides train on."""


def stage_table(stage: str, settings: Settings) -> dict[str, Any]:
    """The stage's config as a recipe would write it."""
    optimizer = {
        "learning_rate": settings.rate(stage),
        "warmup_fraction": settings.warmup,
        "final_fraction": settings.final,
        "b2": settings.b2,
    }
    table = {
        "steps": settings.steps(stage),
        "optimizer": optimizer,
        "seed": settings.seed,
        "log_every": 1,
    }
    lengths = {"prompt_length": settings.prompt_length, "response_length": settings.response_length}
    if stage == "sft":
        return {
            **table,
            "model": settings.model,
            "batch_size": settings.rows,
            "sequence_length": settings.length,
        }
    if stage == "simpo":
        loss = {"beta": settings.simpo_beta, "gamma_beta_ratio": settings.simpo_margin}
        return {
            **table,
            **lengths,
            **loss,
            "prompts": 0,
            "data_pairs": PROMPTS,
            "batch_size": settings.pairs,
        }
    rewards = [{"name": name, "weight": weight} for name, weight in settings.rewards.items()]
    sizes = {"batch_size": settings.responses, "group_size": settings.group}
    return {
        **table,
        **lengths,
        **sizes,
        "rewards": rewards,
        "beta": settings.kl,
        "collapse": {"enabled": False},
    }


def run_stage(
    kind: str, table: dict[str, Any], inputs: dict[str, Path], out: Path, **more: Any
) -> dict[str, Any]:
    """Run a stage as a worker does, in a store of its own; its artifact is `out`."""
    from infra.store.store import open_store
    from infra.store.workspace import Workspace
    from tasks.contract.plugins import stage_kind

    found = stage_kind(kind)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as store:
        metrics: dict[str, Any] = found.run(
            Job(
                found.config.parse(table),
                inputs,
                out,
                Workspace(open_store(store), "key", "1"),
                **more,
            )
        )
    return metrics


def train(stage: str, settings: Settings, data: Path, policy: Path, out: Path) -> dict[str, Any]:
    clock = Clock()
    inputs = {"policy": policy, "examples" if stage == "sft" else "prompts": data}
    run_stage(
        stage,
        stage_table(stage, settings),
        inputs,
        out,
        report=lambda progress: clock.tick() if progress.unit == "steps" else None,
    )
    import jax

    rows = {row["step"]: row for row in read_rows(out / "curves.jsonl") if "loss" in row}
    sampled = (
        {step: row["completion_tokens"] * settings.responses for step, row in rows.items()}
        if stage == "grpo"
        else {}
    )
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return {
        **clock.says(lambda step: sampled[step] if sampled else settings.tokens[stage]),
        "device": device.platform,
        "device_bytes": memory,
        "versions": f"jax {jax.__version__} on {device.device_kind}",
    }


def prepare(_: str, settings: Settings, data: Path, policy: Path, out: Path) -> dict[str, Any]:
    """The quickstart's rows, the first model, and preference pairs mined from a model that SFT trained from it. Completes `out`."""
    from schemas.examples import Example, PreferencePair
    from schemas.recipe import parse_recipe
    from tasks.data.tokens import prompt_tokens, response_tokens
    from tasks.stages import sft, simpo
    from tasks.training.preferences import pair_fits, rejected_tokens

    recipe = parse_recipe(RECIPE.read_text(encoding="utf-8"), str(RECIPE))
    scratch = out.parent / "prepared"
    shutil.rmtree(scratch, ignore_errors=True)
    run_stage("distill", recipe.stage("distill").config, {}, scratch / "distill")
    wanted = {**recipe.stage("rebalance").config, "grounding_quotas": {}}
    run_stage("rebalance", wanted, {"examples": scratch / "distill"}, scratch / "rebalance")
    random = scratch / "random" if settings.first_steps else policy
    tokenizer = save_random_model(settings.model, random)
    data.mkdir(parents=True)
    heldout = read_jsonl(scratch / "rebalance" / "heldout.jsonl", Example)
    write_jsonl(
        data / "heldout.jsonl",
        heldout[:: max(1, len(heldout) // settings.heldout)][: settings.heldout],
    )
    (data / "validation.jsonl").touch()  # neither side measures a validation loss
    (data / "pairs.jsonl").touch()
    for name in ("train.jsonl", "prompts.jsonl"):
        shutil.copyfile(scratch / "rebalance" / name, data / name)
    if settings.first_steps:
        table = {
            "steps": settings.first_steps,
            "optimizer": recipe.stage("sft").config["optimizer"],
        }
        run_stage(
            "sft",
            {**stage_table("sft", settings), **table},
            {"examples": data, "policy": random},
            policy,
        )

    run_stage(
        "sft", stage_table("sft", settings), {"examples": data, "policy": policy}, scratch / "sft"
    )
    mining = {
        "prompts": PROMPTS,
        "data_pairs": 0,
        "samples_per_prompt": SAMPLES,
        "steps": 1,
        "sampling_batch_size": 128,
    }
    inputs = {"prompts": data, "policy": scratch / "sft"}
    run_stage("simpo", {**stage_table("simpo", settings), **mining}, inputs, scratch / "simpo")
    found = (
        with_an_end(tokenizer, pair, settings)
        for pair in read_jsonl(scratch / "simpo" / "pairs.jsonl", PreferencePair)
    )
    fixed = simpo.Config.parse(stage_table("simpo", settings))
    pairs = [pair for pair in found if pair_fits(tokenizer, pair, fixed)]
    write_jsonl(data / "pairs.jsonl", pairs)

    examples = read_jsonl(data / "train.jsonl", Example)
    packed, _kept = sft.tokenise(tokenizer, examples, settings.length)
    of_pairs = [
        2 * len(prompt_tokens(tokenizer, pair.prompt))
        + len(response_tokens(tokenizer, pair.chosen))
        + len(rejected_tokens(tokenizer, pair, settings.response_length))
        for pair in pairs
    ]
    tokens = {
        "sft": settings.rows * (packed.segments > 0).sum() / len(packed),
        "simpo": settings.pairs * sum(of_pairs) / len(of_pairs),
    }
    write_for_peer(data, tokenizer, examples, pairs)
    replace(
        settings,
        examples=round(settings.rows * len(examples) / len(packed)),
        tokens={k: float(v) for k, v in tokens.items()},
    ).write(out)
    return {"examples": len(examples), "pairs": len(pairs)}


def with_an_end(tokenizer: Any, pair: Any, settings: Settings) -> Any:
    """The pair with a terminator after its rejected response, as TRL gives to every response: one that was cut off is made shorter."""
    if pair.rejected_because != "truncated":
        return pair
    text = tokenizer.decode(tokenizer.encode(pair.rejected)[: settings.response_length - 8])
    return pair.model_copy(update={"rejected": text, "rejected_because": "malformed"})


def write_for_peer(
    data: Path, tokenizer: Any, examples: Sequence[Any], pairs: Sequence[Any]
) -> None:
    """The rows as TRL's trainers take them: of the same tokens, so that nothing of ours has to be imported to read them."""
    from schemas.examples import Prompt
    from tasks.data.tokens import prompt_tokens, response_tokens

    tokens = [
        (prompt_tokens(tokenizer, one.prompt), response_tokens(tokenizer, one.response()))
        for one in examples
    ]
    rows = (
        {"input_ids": prompt + response, "completion_mask": [0] * len(prompt) + [1] * len(response)}
        for prompt, response in tokens
    )
    write_jsonl(data / "peer_sft.jsonl", rows)
    turn = "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
    ends = "<end_of_turn>"
    texts = (
        {
            "prompt": turn.format(pair.prompt.strip()),
            "chosen": pair.chosen + ends,
            "rejected": pair.rejected + ends,
        }
        for pair in pairs
    )
    write_jsonl(data / "peer_simpo.jsonl", texts)
    prompts = read_jsonl(data / "prompts.jsonl", Prompt)
    asked = ({"id": one.id, "prompt": [{"role": "user", "content": one.prompt}]} for one in prompts)
    write_jsonl(data / "peer_grpo.jsonl", asked)


def save_random_model(name: str, directory: Path) -> Any:
    """Random weights of the size called `name`, in Hugging Face's format, with the tiny tokenizer, which is returned."""
    from tasks.devices.hosts import make_mesh
    from tasks.models.gemma import SIZES
    from tasks.models.hf_tokenizer import write_tokenizer
    from tasks.models.loading import LoadedModel, save_model
    from tasks.models.tiny import tiny_tokenizer
    from tasks.models.weights import initialise

    directory.mkdir(parents=True)
    loaded = LoadedModel(
        name, SIZES[name], initialise(SIZES[name], 0), tiny_tokenizer(), make_mesh()
    )
    save_model(loaded, directory)
    write_tokenizer(directory, loaded.tokenizer)
    return loaded.tokenizer


def evaluate(_: str, settings: Settings, data: Path, chain: Path, out: Path) -> dict[str, Any]:
    """exact_answer and format_rate of the models that a chain's stages wrote, by our verifier on the held-out prompts."""
    lengths = {"prompt_length": settings.prompt_length, "response_length": settings.response_length}
    table = {"model": settings.model, **lengths, "batch_size": 128, "min_items": 1}
    found = {}
    for stage in STAGES:
        metrics = run_stage(
            "reasoning_eval", table, {"prompts": data, "policy": chain / stage}, out / stage
        )
        found[stage] = {
            name: metrics[name] for name in ("exact_answer", "format_rate", "n", "mean_tokens")
        }
    return found


def run(stage: str, settings: Settings, data: Path, policy: Path, out: Path) -> dict[str, Any]:
    return {"prepare": prepare, "evaluate": evaluate}.get(stage, train)(
        stage, settings, data, policy, out
    )


if __name__ == "__main__":
    main(run)
