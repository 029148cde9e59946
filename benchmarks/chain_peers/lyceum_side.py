"""Lyceum's side of `benchmarks.chain`: the stages' own `run` in a job each; and what is not timed:
data, first model, evaluation."""

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
    if settings.tables:
        found: dict[str, Any] = settings.tables[stage]
        return found
    optimizer = {"learning_rate": settings.rate(stage), "b2": settings.b2}
    optimizer |= {"warmup_fraction": settings.warmup, "final_fraction": settings.final}
    table: dict[str, Any] = {"steps": settings.steps(stage), "optimizer": optimizer}
    table |= {"seed": settings.seed, "log_every": 1}
    if stage == "sft":
        sizes = {"batch_size": settings.rows, "sequence_length": settings.length}
        return {**table, **sizes, "model": settings.model}
    table |= lengths(settings)
    if stage == "simpo":
        loss = {"beta": settings.simpo_beta, "gamma_beta_ratio": settings.simpo_margin}
        sizes = {"prompts": 0, "data_pairs": PROMPTS, "batch_size": settings.pairs}
        return {**table, **loss, **sizes}
    rewards = [{"name": name, "weight": weight} for name, weight in settings.rewards.items()]
    sizes = {"batch_size": settings.responses, "group_size": settings.group}
    more = {"rewards": rewards, "beta": settings.kl, "collapse": {"enabled": False}}
    return {**table, **sizes, **more}


def lengths(settings: Settings) -> dict[str, int]:
    return {"prompt_length": settings.prompt_length, "response_length": settings.response_length}


def run_stage(
    kind: str, table: dict[str, Any], inputs: dict[str, Path], out: Path, **more: Any
) -> dict[str, Any]:
    """Run a stage as a worker does, in a store of its own; its artifact is `out`."""
    from infra.store.store import open_store
    from infra.store.workspace import Workspace
    from tasks.contract.kinds import stage_kind
    from tasks.worker.preload import preload

    preload(kind, devices=True)
    found = stage_kind(kind)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as store:
        work = Workspace(open_store(store), "key", "1")
        return found.run(Job(found.config.parse(table), inputs, out, work, **more))


def train(stage: str, settings: Settings, data: Path, policy: Path, out: Path) -> dict[str, Any]:
    clock = Clock()

    def report(progress: Any) -> None:
        if progress.unit == "steps":
            clock.tick()

    inputs = {"policy": policy, "examples" if stage == "sft" else "prompts": data}
    run_stage(stage, stage_table(stage, settings), inputs, out, report=report)
    import jax

    sampled: dict[int, float] = {}
    for row in read_rows(out / "curves.jsonl") if stage == "grpo" else ():
        if "loss" in row:
            sampled[row["step"]] = row["completion_tokens"] * settings.responses
    device = jax.devices()[0]
    return {
        **clock.says(lambda step: sampled[step] if sampled else settings.tokens[stage]),
        "device": device.platform,
        "device_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "versions": f"jax {jax.__version__} on {device.device_kind}",
    }


def prepare(_: str, settings: Settings, data: Path, policy: Path, out: Path) -> dict[str, Any]:
    """The quickstart's rows, the first model, and preference pairs mined from a model that SFT
    trained from it. Completes `out`."""
    from schemas.examples import Example, PreferencePair
    from schemas.recipe import parse_recipe
    from tasks.models.model_source import TINY
    from tasks.stages import sft, simpo
    from tasks.training.preference_kind import pair_fits

    recipe = parse_recipe(RECIPE.read_text(encoding="utf-8"), str(RECIPE))
    scratch = out.parent / "prepared"
    shutil.rmtree(scratch, ignore_errors=True)
    rows = scratch / "practice"
    run_stage("distill", recipe.stage("problems").config, {}, scratch / "problems")
    wanted = {**recipe.stage("practice").config, "grounding_quotas": {}}
    run_stage("rebalance", wanted, {"examples": scratch / "problems"}, rows)
    random, miner = scratch / "random", settings
    if not settings.first_steps:
        save_first_model(settings, policy)
        miner = replace(settings, model=TINY)
    tokenizer = save_first_model(miner, random)
    data.mkdir(parents=True)
    heldout = [one for one in read_jsonl(rows / "heldout.jsonl", Example) if one.grounding is None]
    every = max(1, len(heldout) // settings.heldout)
    write_jsonl(data / "heldout.jsonl", heldout[::every][: settings.heldout])
    (data / "validation.jsonl").touch()  # neither side measures a validation loss
    (data / "pairs.jsonl").touch()
    for name in ("train.jsonl", "prompts.jsonl"):
        shutil.copyfile(rows / name, data / name)
    if settings.first_steps:
        first = {
            "steps": settings.first_steps,
            "optimizer": recipe.stage("sft").config["optimizer"],
        }
        inputs = {"examples": data, "policy": random}
        run_stage("sft", {**stage_table("sft", settings), **first}, inputs, policy)

    inputs = {"examples": data, "policy": policy if settings.first_steps else random}
    run_stage("sft", stage_table("sft", miner), inputs, scratch / "sft")
    mining = {"prompts": PROMPTS, "data_pairs": 0, "samples_per_prompt": SAMPLES, "steps": 1}
    mining["sampling_batch_size"] = 128
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
    packed, _fitting = sft.tokenise(tokenizer, examples, settings.length)
    of_pairs = sum(tokens_of_pair(tokenizer, pair, settings.response_length) for pair in pairs)
    tokens = {
        "sft": settings.rows * int((packed.segments > 0).sum()) / len(packed),
        "simpo": settings.pairs * of_pairs / len(pairs),
    }
    write_for_peer(data, tokenizer, examples, pairs)
    counted = max(1, round(settings.rows * len(examples) / len(packed)))
    replace(settings, examples=counted, tokens=tokens).write(out)
    return {"examples": len(examples), "pairs": len(pairs)}


def tokens_of_pair(tokenizer: Any, pair: Any, response_length: int) -> int:
    """The prompt twice, the chosen and the rejected response."""
    from tasks.data.tokens import prompt_tokens, response_tokens
    from tasks.training.preference_kind import rejected_tokens

    chosen = len(response_tokens(tokenizer, pair.chosen))
    rejected = len(rejected_tokens(tokenizer, pair, response_length))
    return 2 * len(prompt_tokens(tokenizer, pair.prompt)) + chosen + rejected


def with_an_end(tokenizer: Any, pair: Any, settings: Settings) -> Any:
    """The pair with a terminator after its rejected response, as TRL gives to every response: one
    that was cut off is made shorter."""
    if pair.rejected_because != "truncated":
        return pair
    text = tokenizer.decode(tokenizer.encode(pair.rejected)[: settings.response_length - 8])
    return pair.model_copy(update={"rejected": text, "rejected_because": "malformed"})


def write_for_peer(
    data: Path, tokenizer: Any, examples: Sequence[Any], pairs: Sequence[Any]
) -> None:
    """The rows as TRL's trainers take them: of the same tokens, so that nothing of ours has to be
    imported to read them."""
    from schemas.examples import Prompt
    from tasks.data.tokens import prompt_tokens, response_tokens

    rows = []
    for one in examples:
        prompt = prompt_tokens(tokenizer, one.prompt)
        response = response_tokens(tokenizer, one.response())
        mask = [0] * len(prompt) + [1] * len(response)
        rows.append({"input_ids": prompt + response, "completion_mask": mask})
    write_jsonl(data / "peer_sft.jsonl", rows)
    turn = "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
    texts = []
    for pair in pairs:
        ends = {name: getattr(pair, name) + "<end_of_turn>" for name in ("chosen", "rejected")}
        texts.append({"prompt": turn.format(pair.prompt.strip()), **ends})
    write_jsonl(data / "peer_simpo.jsonl", texts)
    prompts = read_jsonl(data / "prompts.jsonl", Prompt)
    asked = ({"id": one.id, "prompt": [{"role": "user", "content": one.prompt}]} for one in prompts)
    write_jsonl(data / "peer_grpo.jsonl", asked)


def save_first_model(settings: Settings, directory: Path) -> Any:
    """Random weights of the size with the tiny tokenizer, in Hugging Face's format. Returns the
    tokenizer; it has as many pieces as the size, for a model with another's is refused."""
    from tasks.devices.hosts import make_mesh
    from tasks.models.decoder import SIZES
    from tasks.models.hf_tokenizer import write_tokenizer
    from tasks.models.loading import LoadedModel, save_model
    from tasks.models.tiny import tiny_tokenizer
    from tasks.models.weights import initialise

    directory.mkdir(parents=True)
    size = SIZES[settings.model]
    weights = initialise(size, 0)
    tokenizer = with_pieces(tiny_tokenizer(), size.vocab_size)
    loaded = LoadedModel(settings.model, size, weights, tokenizer, make_mesh())
    save_model(loaded, directory)
    write_tokenizer(directory, loaded.tokenizer)
    return loaded.tokenizer


def with_pieces(tokenizer: Any, count: int) -> Any:
    """The tokenizer with so many pieces: those added stand in no text."""
    from tasks.models.hf_tokenizer import proto

    model = proto.ModelProto.FromString(tokenizer.model_proto)
    for number in range(len(model.pieces), count):
        unused = proto.ModelProto.SentencePiece.UNUSED
        model.pieces.add(piece=f"<unused{number}>", score=0.0, type=unused)
    model.trainer_spec.vocab_size = count
    return type(tokenizer)(model.SerializeToString())


def evaluate(_: str, settings: Settings, data: Path, chain: Path, out: Path) -> dict[str, Any]:
    """exact_answer and format_rate of the models that a chain's stages wrote, by our verifier on
    the held-out prompts."""
    table = {"model": settings.model, **lengths(settings), "batch_size": 128, "min_items": 1}
    found = {}
    for stage in STAGES:
        inputs = {"prompts": data, "policy": chain / stage}
        metrics = run_stage("reasoning_eval", table, inputs, out / stage)
        found[stage] = {name: metrics[name] for name in ("exact_answer", "format_rate", "n")}
    return found


def run(stage: str, *rest: Any) -> dict[str, Any]:
    return {"prepare": prepare, "evaluate": evaluate}.get(stage, train)(stage, *rest)


if __name__ == "__main__":
    main(run)
