"""The CPU half of `benchmarks.step`: `gemma3-tiny` with the same weights on both sides, and what trains it and samples from it."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.models.gemma3 import model as tunix_gemma3
from tunix.rl import common
from tunix.rl import trainer as policy_trainer
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout, vanilla_rollout
from tunix.sft import peft_trainer
from tunix.sft.dpo import dpo_trainer

from benchmarks.stock_tunix import grpo_loss, sft_input, simpo_loss, tunix_sizes, with_weights
from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.examples import PreferencePair
from tasks.contract.job import Job
from tasks.data.packing import Packed, pack
from tasks.data.tokens import pad_left, pad_right, prompt_tokens, response_tokens
from tasks.models.gemma import weight_shapes
from tasks.models.loading import LoadedModel, base_model
from tasks.models.tiny import tiny_tokenizer
from tasks.reinforcement.policy_batches import PolicyBatch, row_weights
from tasks.sampling.rollouts import logps_in_parts
from tasks.stages import grpo, sft, simpo
from tasks.teachers import procedural
from tasks.training import preferences
from tasks.training.loop import fit
from tasks.training.optimizers import make_optimizer
from tasks.training.pair_batches import PairBatch
from tasks.training.trainers import TUNIX_LOOP

MODEL = "gemma3-tiny"
TOKENS = 2048
"""Of a step of SFT, padding included."""
PAIRS = 16
"""Of a step of SimPO."""
GROUPS, GROUP_SIZE, RESPONSE = 4, 8, 64
"""Of a step of GRPO and of its rollout: prompts, responses to each, and their length in tokens."""
PACKED = 128
"""Tokens of a packed row."""
STEPS = 5
"""Of either side in each round."""
OPTIMIZER = {"learning_rate": 1e-4}
OTHER_ROWS = "SFT, ours packed"
"""The row of the table whose sides have the same number of tokens and not the same rows."""


@dataclass(frozen=True)
class Side:
    """One side of a row of the table.

    Attributes:
        run: does the row's work so many times, and returns the tokens that count of all of it.
        losses: of the steps done so far; empty where there are none.
    """

    run: Callable[[int], float]
    losses: Callable[[], list[float]] = list


def sides(data: "Data") -> dict[str, Callable[[], tuple[Side, Side]]]:
    """Row of the table -> what makes stock Tunix and ours, on the same data."""
    return {
        "SFT": lambda: (stock_sft(data.alone), our_sft(data.alone)),
        OTHER_ROWS: lambda: (stock_sft(data.alone), our_sft(data.together)),
        "SimPO": lambda: (stock_simpo(data), our_simpo(data)),
        "GRPO: update": lambda: (stock_grpo(data), our_grpo(data)),
        "GRPO: log-probabilities of the reference": lambda: (stock_logps(data), our_logps(data)),
        "GRPO: rollout": lambda: (stock_rollout(data), our_rollout(data)),
    }


def timed(side: Side, steps: int = STEPS) -> tuple[float, float]:
    """Seconds of a step, and tokens a second."""
    started = time.perf_counter()
    tokens = side.run(steps)
    seconds = time.perf_counter() - started
    return seconds / steps, tokens / seconds


class Data:
    """Rows of the procedural teacher, as every step takes them.

    Attributes:
        alone, together: SFT's rows: one example each, padded to the longest, and packed.
        pairs: SimPO's arrays: a teacher's response, and another prompt's.
        prompts: the text of each prompt of a rollout.
        policy: GRPO's batch: the teacher's responses, of made-up worth.
        logps: of its responses, by the initial policy.
    """

    def __init__(self) -> None:
        teacher = procedural.Config.parse({"name": "procedural", "rows": dict.fromkeys(("math", "coding", "science", "general"), 300)})
        self.tokenizer = tiny_tokenizer()
        examples = list(procedural.rows(teacher, seed=0))
        rows = [(prompt_tokens(self.tokenizer, one.prompt), response_tokens(self.tokenizer, one.response())) for one in examples]
        longest = max(len(prompt) + len(response) for prompt, response in rows)
        each = [pack([row], longest, self.tokenizer.pad_id) for row in rows]
        self.alone = Packed(*(np.concatenate([getattr(one, name) for one in each]) for name in ("tokens", "mask", "segments", "positions")))
        self.together = pack(rows, PACKED, self.tokenizer.pad_id)
        self.prompt_length, self.response_length = (max(len(row[part]) for row in rows) for part in (0, 1))
        lengths = {"prompt_length": self.prompt_length, "response_length": self.response_length}
        common_table = {"steps": STEPS, "optimizer": OPTIMIZER}
        self.simpo = simpo.Config.parse({**common_table, "batch_size": PAIRS, "prompts": 0, "data_pairs": PAIRS, **lengths})
        chosen = examples[:: len(examples) // PAIRS][:PAIRS]
        pairs = [
            PreferencePair(
                id=one.id, prompt=one.prompt, domain=one.domain, chosen=one.response(), rejected=other.response(), rejected_because="wrong",
                chosen_from="teacher",
            )
            for one, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True)
        ]  # fmt: skip
        self.pairs = preferences.pair_arrays(self.tokenizer, pairs, self.simpo)
        table = {**common_table, "batch_size": GROUPS * GROUP_SIZE, "group_size": GROUP_SIZE, "rewards": [{"name": "format"}]}
        table["truncation"] = 0  # the batch is the same in every step, and soon no longer the policy's own
        self.grpo = grpo.Config.parse({**table, "prompt_length": self.prompt_length, "response_length": RESPONSE})
        asked = [one for one in chosen[:GROUPS] for _ in range(GROUP_SIZE)]
        self.prompts = [one.prompt for one in asked]
        answers = [response_tokens(self.tokenizer, one.response())[:RESPONSE] for one in examples[: len(asked)]]
        pad = self.tokenizer.pad_id
        prompts = pad_left([prompt_tokens(self.tokenizer, one) for one in self.prompts], self.prompt_length, pad)
        responses = pad_right(answers, RESPONSE, pad)
        mask = responses != pad
        logps = logps_of(base_model(MODEL, 0), self.grpo, prompts, responses)
        random = np.random.Generator(np.random.Philox(0))
        weights = row_weights(mask, np.ones(len(mask), bool), "sequence", RESPONSE)
        self.logps = logps
        self.policy = PolicyBatch(
            prompts, prompts != pad, responses, mask, random.standard_normal(len(mask), np.float32), weights, weights,
            ref_per_token_logps=logps - 0.1 * mask,
        )  # fmt: skip


def logps_of(loaded: LoadedModel, config: grpo.Config, prompts: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """(N, R) by the program of our stage."""
    program = grpo.programs_of(config, loaded)[1]
    state = nnx.state(loaded.model)
    return logps_in_parts(program, state, prompts, responses, mesh=loaded.mesh, size=len(prompts), temperature=config.temperature)


def tunix_model() -> Any:
    """Tunix's Gemma 3 with the weights of our `gemma3-tiny`."""
    loaded = base_model(MODEL, 0)
    size = loaded.config
    rope = {"local_base_frequency": round(size.local_rope), "global_base_frequency": round(size.global_rope)}
    config = tunix_gemma3.ModelConfig(**tunix_sizes(size), **rope, param_dtype=jnp.float32)
    model: Any = loaded.model
    owned = {name: model.layers if name.startswith("layers.") else model for name in weight_shapes(size)}
    weights = {name: getattr(owner, name.rpartition(".")[2]).get_value() for name, owner in owned.items()}
    return with_weights(tunix_gemma3.Gemma3(config, rngs=nnx.Rngs(0)), weights)


def stock_training(trainer: peft_trainer.PeftTrainer, batch: Any, tokens: float) -> Side:
    """Steps of Tunix's own loop, on one batch."""
    trainer.is_managed_externally = True  # as GRPOLearner has it: `train` may be called again

    def run(steps: int) -> float:
        trainer.train([batch] * steps)
        return steps * tokens

    def losses() -> list[float]:
        trainer._write_train_metrics()  # of the last step, which the loop keeps for later
        return [float(one) for one in trainer.metrics_logger.get_metric_history("", "loss", "train")]

    return Side(run, losses)


def our_training(trainer: Any, config: Any, batch: Any, tokens: float) -> Side:
    """Steps of our own loop, on one batch."""
    done: list[float] = []

    def run(steps: int) -> float:
        with tempfile.TemporaryDirectory() as name:
            work = Workspace(open_store(f"{name}/store"), "key", "1")
            rows = fit(trainer, lambda _: batch, config.model_copy(update={"steps": steps}), Job(config, {}, Path(name), work))
        done.extend(row["loss"] for row in rows)
        return steps * tokens

    return Side(run, lambda: done)


def optimizer() -> Any:
    """Both sides' own."""
    return make_optimizer(sft.Config.parse(sft_table(8, 8)).optimizer, STEPS)


def sft_table(rows: int, length: int) -> dict[str, Any]:
    return {"model": MODEL, "steps": STEPS, "batch_size": rows, "sequence_length": length, "optimizer": OPTIMIZER}


def stock_sft(packed: Packed) -> Side:
    size = TOKENS // packed.tokens.shape[1]
    trainer = peft_trainer.PeftTrainer(tunix_model(), optimizer(), peft_trainer.TrainingConfig(**TUNIX_LOOP))
    trainer.with_gen_model_input_fn(sft_input)
    batch = peft_trainer.TrainingInput(jnp.asarray(packed.tokens[:size]), jnp.asarray(packed.mask[:size]))
    return stock_training(trainer, batch, float(packed.mask[:size].sum()))


def our_sft(packed: Packed) -> Side:
    size = TOKENS // packed.tokens.shape[1]
    config = sft.Config.parse(sft_table(size, packed.tokens.shape[1]))
    supervised = float(packed.mask[:size].sum())
    return our_training(
        sft.trainer_of(config, base_model(MODEL, 0)), config, sft.batch(packed, np.arange(size), 1 / supervised), supervised
    )


def stock_simpo(data: Data) -> Side:
    trainer = dpo_trainer.DPOTrainer(tunix_model(), None, optimizer(), dpo_trainer.DPOTrainingConfig(**TUNIX_LOOP))
    trainer.with_loss_fn(simpo_loss, has_aux=True).with_gen_model_input_fn(lambda batch: {"train_example": batch})
    batch = dpo_trainer.TrainingInput(**{name: jnp.asarray(array) for name, array in data.pairs.items()})
    return stock_training(trainer, batch, responses_of(data))


def our_simpo(data: Data) -> Side:
    trainer = preferences.trainer_of(data.simpo, base_model(MODEL, 0), simpo.loss_of(data.simpo))
    return our_training(trainer, data.simpo, PairBatch(**data.pairs), responses_of(data))


def responses_of(data: Data) -> float:
    """Tokens of the responses of all pairs."""
    return float(data.pairs["chosen_mask"].sum() + data.pairs["rejected_mask"].sum())


def stock_grpo(data: Data) -> Side:
    trainer = policy_trainer.Trainer(
        tunix_model(), optimizer(), peft_trainer.TrainingConfig(**TUNIX_LOOP), custom_checkpoint_metadata_fn=dict
    )
    loss = grpo_loss(data.tokenizer.pad_id, data.tokenizer.end_of_turn_id, data.grpo.beta)
    trainer.with_loss_fn(loss, has_aux=True).with_gen_model_input_fn(lambda batch: {"train_example": batch})
    trainer.with_rl_metrics_to_log({"kl": np.mean, "pg_clipfrac": np.mean})
    one = data.policy
    batch = grpo_learner.TrainExample(
        **{name: jnp.asarray(getattr(one, name)) for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")},
        advantages=jnp.asarray(one.advantages),
        ref_per_token_logps=jnp.asarray(one.ref_per_token_logps),
        old_per_token_logps=None,
    )
    return stock_training(trainer, batch, float(one.completion_mask.sum()))


def our_grpo(data: Data) -> Side:
    return our_training(grpo.trainer_of(data.grpo, base_model(MODEL, 0)), data.grpo, data.policy, float(data.policy.completion_mask.sum()))


def stock_logps(data: Data) -> Side:
    """What RLCluster.get_ref_per_token_logps calls, with the arrays that GRPOLearner hands it."""
    graph, state = nnx.split(tunix_model())
    one, ids = data.policy, {"pad_id": data.tokenizer.pad_id, "eos_id": data.tokenizer.end_of_turn_id}

    def run(steps: int) -> float:
        for _ in range(steps):
            prompts, responses = jnp.array(one.prompt_ids), jnp.array(one.completion_ids)
            found = np.asarray(common.compute_per_token_logps(graph, state, prompt_tokens=prompts, completion_tokens=responses, **ids))
        np.testing.assert_allclose(found * one.completion_mask, data.logps, rtol=1e-3, atol=1e-3)
        return steps * float(one.completion_mask.sum())

    return Side(run)


def our_logps(data: Data) -> Side:
    loaded, one = base_model(MODEL, 0), data.policy
    program = grpo.programs_of(data.grpo, loaded)[1]

    def run(steps: int) -> float:
        for _ in range(steps):
            logps_in_parts(
                program, nnx.state(loaded.model), one.prompt_ids, one.completion_ids, mesh=loaded.mesh, size=len(one.prompt_ids),
                temperature=1.0,
            )  # fmt: skip
        return steps * float(one.completion_mask.sum())

    return Side(run)


class TunixTokenizer:
    """What Tunix's sampler wants of a tokenizer: a prompt is a user's turn, as it is for ours."""

    def __init__(self, data: Data) -> None:
        own = self.own = data.tokenizer
        self.bos_id, self.eos_id, self.pad_id = (lambda: own.bos_id), (lambda: own.end_of_turn_id), (lambda: own.pad_id)

    def encode(self, text: str) -> list[int]:
        return prompt_tokens(self.own, text)[1:]  # the sampler adds <bos>

    def decode(self, tokens: Sequence[int]) -> str:
        return self.own.decode(tokens)


def stock_rollout(data: Data) -> Side:
    size = base_model(MODEL, 0).config
    cache = base_rollout.CacheConfig(data.prompt_length + RESPONSE, size.num_layers, size.num_kv_heads, size.head_dim)
    rollout = vanilla_rollout.VanillaRollout(tunix_model(), TunixTokenizer(data), cache)
    seeds = count()

    def run(steps: int) -> float:
        tokens = 0
        for _ in range(steps):
            config = base_rollout.RolloutConfig(
                max_tokens_to_generate=RESPONSE, temperature=1.0, max_prompt_length=data.prompt_length, kv_cache_size=cache.cache_size,
                seed=jax.random.PRNGKey(next(seeds)),
            )  # fmt: skip
            tokens += sum(map(len, rollout.generate(data.prompts, config).tokens))
        return tokens

    return Side(run)


def our_rollout(data: Data) -> Side:
    sampler, _ = grpo.programs_of(data.grpo, base_model(MODEL, 0))
    seeds = count()

    def run(steps: int) -> float:
        return sum(
            len(completion.tokens)
            for _ in range(steps)
            for completion in sampler.generate(data.prompts, temperature=data.grpo.temperature, seed=next(seeds))
        )

    return Side(run)
