"""One step of SFT, SimPO and GRPO, and a rollout, on this CPU: stock Tunix 0.1.7 beside ours.

    python -m benchmarks.step_cpu [--rounds 7]

`gemma3-tiny` with the same weights, rows, batches and optimizer on both sides, each in its own
loop: `PeftTrainer.train`, `DPOTrainer.train`, the trainer of GRPOLearner and
`VanillaRollout.generate`, beside `tasks.training.loop.fit` and `tasks.sampling.sampler.Sampler`. A
round is 5 steps of either side; the first two rounds compile and are not counted. Both sides'
losses, step by step, have to be the same, or there is no table.

step         seconds of one
tokens/s     tokens that count: supervised (SFT), of responses (SimPO, GRPO), sampled (rollout)
ours / stock of tokens/s, round by round; median (lowest to highest)
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.rl import common
from tunix.rl import trainer as policy_trainer
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout, vanilla_rollout
from tunix.sft import peft_trainer
from tunix.sft.dpo import dpo_trainer

from benchmarks.paired import heading, machine, parser, ratios, row, spread, take_turns
from benchmarks.stock_tunix import TunixTokenizer, grpo_loss, sft_input, simpo_loss, tunix_model
from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.examples import PreferencePair
from tasks.contract.job import Job
from tasks.data.packing import Packed, pack
from tasks.data.tokens import pad_left, pad_right, prompt_tokens, response_tokens
from tasks.models.loading import base_model
from tasks.models.tiny import tiny_tokenizer
from tasks.reinforcement.rollout import policy_batch, row_weights, tokens_there
from tasks.sampling.rollouts import rollout_logps, rollout_programs
from tasks.stages import grpo, sft, simpo
from tasks.teachers import procedural
from tasks.training import preference_kind
from tasks.training.loop import fit
from tasks.training.optimizers import make_optimizer
from tasks.training.pair_batches import PairBatches

TUNIX_LOOP = {"eval_every_n_steps": 1, "pbar_description": None}
MODEL = "gemma3-tiny"
TOKENS = 2048
"""Tokens of a step of SFT, padding included."""
PAIRS = 16
"""Pairs of a step of SimPO."""
GROUPS, GROUP_SIZE, RESPONSE = 4, 8, 64
"""The step of GRPO and its rollout: prompts, responses to each, and their length in tokens."""
PACKED = 128
"""Tokens of a packed row."""
STEPS, WARM_UP = 5, 2
"""Steps of either side in each round; rounds that are not counted."""
COMMON = {"steps": STEPS, "optimizer": {"learning_rate": 1e-4}}
OTHER_ROWS = "SFT, ours packed"
"""The row of the table whose sides have as many tokens of other rows."""


@dataclass(frozen=True)
class Side:
    """One side of a row of the table.

    Attributes:
        run: does the work so many times; returns the tokens that count.
        losses: of the steps done so far; empty where there are none.
    """

    run: Callable[[int], float]
    losses: Callable[[], list[float]] = list


class Data:
    """Rows of the procedural teacher, as every step takes them.

    Attributes:
        alone, together: SFT's rows: one example each, padded to the longest, and packed.
        pairs: SimPO's batch: a teacher's response, and another prompt's.
        padded_pairs: the same, each padded to the longest.
        prompts: the text of each prompt of a rollout.
        texts: GRPO's prompts with the teacher's responses.
        policy, padded_policy: GRPO's batch, of made-up worth; its padded arrays.
        logps: of its responses, by the initial policy.
    """

    def __init__(self) -> None:
        rows = dict.fromkeys(("math", "coding", "science", "general"), 300)
        teacher = procedural.Config.parse({"name": "procedural", "rows": rows})
        own = self.tokenizer = tiny_tokenizer()
        examples = list(procedural.rows(teacher, seed=0))
        texts = [
            (prompt_tokens(own, one.prompt), response_tokens(own, one.response()))
            for one in examples
        ]
        longest = max(len(prompt) + len(response) for prompt, response in texts)
        each = [pack([one], longest, own.pad_id) for one in texts]
        fields = ("tokens", "mask", "segments", "positions")
        joined = (np.concatenate([getattr(one, name) for one in each]) for name in fields)
        self.alone, self.together = Packed(*joined), pack(texts, PACKED, own.pad_id)
        self.prompt_length, response = (max(len(one[part]) for one in texts) for part in (0, 1))
        lengths = {"prompt_length": self.prompt_length, "response_length": response}
        table = {**COMMON, "batch_size": PAIRS, "prompts": 0, "data_pairs": PAIRS, **lengths}
        self.simpo = simpo.Config.parse(table)
        chosen = examples[:: len(examples) // PAIRS][:PAIRS]
        pairs = [
            PreferencePair(
                id=one.id,
                prompt=one.prompt,
                domain=one.domain,
                chosen=one.response(),
                rejected=other.response(),
                rejected_because="wrong",
                chosen_from="teacher",
            )
            for one, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True)
        ]
        both = preference_kind.pair_texts(own, pairs, self.simpo)
        self.pairs = PairBatches(both, self.simpo, base_model(MODEL, 0)).at(0)
        ids = {
            "prompt": pad_left([one[0] for one, _ in both], self.prompt_length, own.pad_id),
            "chosen": pad_right([one[1] for one, _ in both], response, own.pad_id),
            "rejected": pad_right([other[1] for _, other in both], response, own.pad_id),
        }
        masks = {f"{name}_mask": array != own.pad_id for name, array in ids.items()}
        self.padded_pairs = {f"{name}_ids": array for name, array in ids.items()} | masks
        self._policy(chosen[:GROUPS], examples)

    def _policy(self, chosen: Sequence[Any], examples: Sequence[Any]) -> None:
        own, pad, size = self.tokenizer, self.tokenizer.pad_id, GROUPS * GROUP_SIZE
        table = {**COMMON, "batch_size": size, "group_size": GROUP_SIZE}
        table |= {"rewards": [{"name": "format"}], "response_length": RESPONSE}
        table["truncation"] = 0  # the batch stays the same and soon is off-policy
        wanted = grpo.Config.parse({**table, "prompt_length": self.prompt_length})
        self.grpo = grpo.fitted(wanted, base_model(MODEL, 0).mesh, self.prompt_length)
        self.prompts = [one.prompt for one in chosen for _ in range(GROUP_SIZE)]
        asked = [prompt_tokens(own, one) for one in self.prompts]
        answers = [response_tokens(own, one.response())[:RESPONSE] for one in examples[:size]]
        self.texts = list(zip(asked, answers, strict=True))
        mask = tokens_there(self.texts, RESPONSE)
        self.logps = self.reference()()
        worth = np.random.Generator(np.random.Philox(0)).standard_normal(size, np.float32)
        weights = row_weights(mask, np.ones(size, bool), "sequence", RESPONSE)
        reference = self.logps - 0.1 * mask
        self.policy = policy_batch(
            self.texts,
            (worth, weights, weights, reference),
            length=self.prompt_length + RESPONSE,
            pad_id=pad,
            micro_batches=self.grpo.accumulation,
        )
        prompts = pad_left(asked, self.prompt_length, pad)
        self.padded_policy = {
            "prompt_ids": prompts,
            "prompt_mask": prompts != pad,
            "completion_ids": pad_right(answers, RESPONSE, pad),
            "completion_mask": mask,
            "advantages": worth,
            "ref_per_token_logps": reference,
        }

    def reference(self) -> Callable[[], np.ndarray]:
        """A function that computes log-probabilities (N, R) by the program of our stage."""
        loaded, asked = base_model(MODEL, 0), self.grpo
        _, program = rollout_programs(asked, loaded, asked.batch_size)
        return partial(rollout_logps, program, nnx.state(loaded.model), self.texts, asked, loaded)


def optimizer() -> Any:
    """Both sides' own."""
    return make_optimizer(sft_config(8, 8).optimizer, STEPS)


def sft_config(rows: int, length: int) -> Any:
    table = {**COMMON, "model": MODEL, "batch_size": rows, "sequence_length": length}
    return sft.Config.parse(table)


def stock_training(trainer: peft_trainer.PeftTrainer, batch: Any, tokens: float) -> Side:
    """Steps of Tunix's own loop, on one batch."""
    trainer.is_managed_externally = True  # as GRPOLearner has it: `train` may be called again

    def run(steps: int) -> float:
        trainer.train([batch] * steps)
        return steps * tokens

    def losses() -> list[float]:
        trainer._write_train_metrics()  # of the last step, which the loop keeps for later
        history = trainer.metrics_logger.get_metric_history("", "loss", "train")
        return [float(one) for one in history]

    return Side(run, losses)


def our_training(trainer: Any, config: Any, batch: Any, tokens: float) -> Side:
    """Steps of our own loop, on one batch."""
    trainer.is_managed_externally = True
    done: list[float] = []

    def run(steps: int) -> float:
        with tempfile.TemporaryDirectory() as name:
            work = Workspace(open_store(f"{name}/store"), "key", "1")
            asked = config.model_copy(update={"steps": steps})
            rows = fit(trainer, lambda _: batch, asked, Job(config, {}, Path(name), work))
        done.extend(one["loss"] for one in rows)
        return steps * tokens

    return Side(run, lambda: done)


def stock_sft(packed: Packed) -> Side:
    size = TOKENS // packed.tokens.shape[1]
    limits = peft_trainer.TrainingConfig(**TUNIX_LOOP)
    trainer = peft_trainer.PeftTrainer(tunix_model(MODEL), optimizer(), limits)
    trainer.with_gen_model_input_fn(sft_input)
    arrays = (jnp.asarray(packed.tokens[:size]), jnp.asarray(packed.mask[:size]))
    return stock_training(
        trainer, peft_trainer.TrainingInput(*arrays), float(packed.mask[:size].sum())
    )


def our_sft(packed: Packed) -> Side:
    size = TOKENS // packed.tokens.shape[1]
    config = sft_config(size, packed.tokens.shape[1])
    supervised = float(packed.mask[:size].sum())
    batch = sft.batch(packed, np.arange(size), 1 / supervised)
    return our_training(sft.trainer_of(config, base_model(MODEL, 0)), config, batch, supervised)


def simpo_sides(data: Data) -> tuple[Side, Side]:
    tokens = float(data.pairs.predicts.sum())
    limits = dpo_trainer.DPOTrainingConfig(**TUNIX_LOOP)
    stock = dpo_trainer.DPOTrainer(tunix_model(MODEL), None, optimizer(), limits)
    stock.with_loss_fn(simpo_loss, has_aux=True)
    stock.with_gen_model_input_fn(lambda batch: {"train_example": batch})
    arrays = {name: jnp.asarray(array) for name, array in data.padded_pairs.items()}
    ours = preference_kind.trainer_of(data.simpo, base_model(MODEL, 0), simpo.loss_of(data.simpo))
    return (
        stock_training(stock, dpo_trainer.TrainingInput(**arrays), tokens),
        our_training(ours, data.simpo, data.pairs, tokens),
    )


def grpo_sides(data: Data) -> tuple[Side, Side]:
    limits, one = peft_trainer.TrainingConfig(**TUNIX_LOOP), data.padded_policy
    stock = policy_trainer.Trainer(
        tunix_model(MODEL), optimizer(), limits, custom_checkpoint_metadata_fn=dict
    )
    loss = grpo_loss(data.tokenizer.pad_id, data.tokenizer.end_of_turn_id, data.grpo.beta)
    stock.with_loss_fn(loss, has_aux=True)
    stock.with_gen_model_input_fn(lambda batch: {"train_example": batch})
    stock.with_rl_metrics_to_log({"kl": np.mean, "pg_clipfrac": np.mean})
    fields = {name: jnp.asarray(array) for name, array in one.items()}
    batch = grpo_learner.TrainExample(**fields, old_per_token_logps=None)
    tokens = float(one["completion_mask"].sum())
    ours = grpo.trainer_of(data.grpo, base_model(MODEL, 0))
    return stock_training(stock, batch, tokens), our_training(ours, data.grpo, data.policy, tokens)


def logps_sides(data: Data) -> tuple[Side, Side]:
    """Stock: what RLCluster.get_ref_per_token_logps calls, with what GRPOLearner hands it."""
    graph, state = nnx.split(tunix_model(MODEL))
    one, own = data.padded_policy, data.tokenizer
    ids = {"pad_id": own.pad_id, "eos_id": own.end_of_turn_id}
    tokens, reference = float(one["completion_mask"].sum()), data.reference()

    def stock(steps: int) -> float:
        for _ in range(steps):
            prompts, responses = jnp.array(one["prompt_ids"]), jnp.array(one["completion_ids"])
            asked = {"prompt_tokens": prompts, "completion_tokens": responses, **ids}
            found = np.asarray(common.compute_per_token_logps(graph, state, **asked))
        ours = found * one["completion_mask"]
        np.testing.assert_allclose(ours, data.logps, rtol=1e-3, atol=1e-3)
        return steps * tokens

    def ours(steps: int) -> float:
        for _ in range(steps):
            reference()
        return steps * tokens

    return Side(stock), Side(ours)


def rollout_sides(data: Data) -> tuple[Side, Side]:
    size, length = base_model(MODEL, 0).config, data.prompt_length + RESPONSE
    cache = base_rollout.CacheConfig(length, size.num_layers, size.num_kv_heads, size.head_dim)
    rollout = vanilla_rollout.VanillaRollout(
        tunix_model(MODEL), TunixTokenizer(data.tokenizer), cache
    )
    sampler, _ = rollout_programs(data.grpo, base_model(MODEL, 0), data.grpo.batch_size)
    seeds = count()
    limits = {"max_tokens_to_generate": RESPONSE, "max_prompt_length": data.prompt_length}

    def stock(steps: int) -> float:
        tokens = 0
        for _ in range(steps):
            seed = jax.random.PRNGKey(next(seeds))
            more = {**limits, "temperature": 1.0, "kv_cache_size": length, "seed": seed}
            found = rollout.generate(data.prompts, base_rollout.RolloutConfig(**more))
            tokens += sum(map(len, found.tokens))
        return tokens

    def ours(steps: int) -> float:
        tokens = 0
        for _ in range(steps):
            found = sampler.generate(
                data.prompts, temperature=data.grpo.temperature, seed=next(seeds)
            )
            tokens += sum(len(one.tokens) for one in found)
        return tokens

    return Side(stock), Side(ours)


SIDES: dict[str, Callable[[Data], tuple[Side, Side]]] = {
    "SFT": lambda data: (stock_sft(data.alone), our_sft(data.alone)),
    OTHER_ROWS: lambda data: (stock_sft(data.alone), our_sft(data.together)),
    "SimPO": simpo_sides,
    "GRPO: update": grpo_sides,
    "GRPO: log-probabilities of the reference": logps_sides,
    "GRPO: rollout": rollout_sides,
}
"""Row of the table -> what makes stock Tunix and ours, on the same data."""


def timed(side: Side, _: int = 0) -> tuple[float, float]:
    """Seconds of a step, and tokens a second."""
    began = time.perf_counter()
    tokens = side.run(STEPS)
    seconds = time.perf_counter() - began
    return seconds / STEPS, tokens / seconds


def main() -> None:
    rounds = parser(__doc__, rounds=7).parse_args().rounds
    data = Data()
    print(machine("jax", "google-tunix", "flax", "optax"))
    print(
        f"\n{MODEL}, float32, all weights trained. SFT: {TOKENS} tokens a step, rows of "
        f"{data.alone.tokens.shape[1]}, packed of {PACKED}; SimPO: {PAIRS} pairs of "
        f"{data.prompt_length} + {data.simpo.response_length}; GRPO: {GROUPS} prompts x "
        f"{GROUP_SIZE} responses of {data.prompt_length} + {RESPONSE}. {rounds} rounds."
    )
    units = [f"{side}, {unit}" for unit in ("s", "tokens/s") for side in ("stock Tunix", "ours")]
    heading("", *units, "ours / stock")
    for name, make in SIDES.items():
        stock, ours = both = make(data)
        for side in both * WARM_UP:
            timed(side)
        turns = {
            side: partial(timed, one) for side, one in zip(("stock", "ours"), both, strict=True)
        }
        found = take_turns(turns, rounds)
        if name != OTHER_ROWS and stock.losses():
            np.testing.assert_allclose(ours.losses(), stock.losses(), rtol=1e-3)
        columns = [[one[place] for one in found[side]] for place in (0, 1) for side in found]
        forms = (".3f", ".3f", ",.0f", ",.0f")
        cells = [spread(column, form) for column, form in zip(columns, forms, strict=True)]
        row(name, *cells, spread(ratios(columns[3], columns[2]), ".2f"))


if __name__ == "__main__":
    main()
