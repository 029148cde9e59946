"""On-policy distillation: the student samples responses, and a larger teacher gives the probability
of each of their tokens.

Every update (or every `num_iterations`) the student samples responses to training prompts, the
teacher gives its log-probabilities of exactly those tokens (`tasks.distillation.feedback`), and the
student is moved towards the teacher. Two losses:

- `policy_gradient` (Lu and Thinking Machines, 2025, "On-Policy Distillation"; the reverse KL of
  MiniLLM, 2306.08543): each sampled token has the advantage A_t = log pi_T - log pi_S,
  undiscounted, in the clipped loss of `tasks.losses.grpo`. Their coefficient of A is left out,
  since an optimizer that normalises gradients cancels it. A teacher behind an endpoint is enough.
- `gkd` (2306.13649): the divergence JSD_beta of the whole next-token distributions at each of those
  tokens. It needs the teacher in this job, and may also use traces of the data for a fraction of
  each batch.

All tokens of a batch have equal weight. Student and teacher share a tokenizer. To train the teacher
itself (SFT, preferences, GRPO), put its stages before this one, with their own `model`, and connect
the last of them as the input `teacher`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.base import InputError
from schemas.examples import Example, Prompt
from tasks.contract.job import Job, read_jsonl, write_jsonl
from tasks.contract.kind import Input, Kind, Product
from tasks.contract.small import FEW, Sizes, small_trainer
from tasks.devices.hosts import make_mesh
from tasks.distillation.endpoint_teacher import EndpointTeacher, EndpointTeacherConfig
from tasks.distillation.feedback import TokenTeacher
from tasks.distillation.gemma_teacher import GemmaTeacherConfig, require_same_tokenizer
from tasks.distillation.on_policy_config import Config, Gkd
from tasks.distillation.student_samples import (
    DistillBatches,
    Scored,
    fitting_traces,
    gemma_teacher,
    make_batch,
)
from tasks.models.model_source import model_dependencies
from tasks.sampling.rollouts import curve_mean, fitting_prompts, rollout_programs

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.training.trainer import Trainer


_CURVES = ("reverse_kl", "teacher_logp", "entropy", "completion_tokens", "truncated")


def extra_models(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The teacher's base model, if this job loads it."""
    teacher = config.get("teacher") or {}
    return (teacher["model"],) if teacher.get("name") == "gemma" else ()


def require_one_teacher(config: Config, inputs: Mapping[str, Any]) -> None:
    """Raise InputError unless exactly one of an input and the config names the teacher."""
    if "teacher" in inputs and config.teacher is not None:
        raise InputError(
            "there are two teachers, the input `teacher` and config.teacher: leave one out."
        )
    if "teacher" not in inputs and config.teacher is None:
        raise InputError(
            "there is no teacher: connect one as the input `teacher`, or set teacher = { name ="
            ' "gemma", model = ... }.'
        )


def batch_sizes(config: Config) -> dict[str, int]:
    """Setting -> how many rows the programs take at a time, for `make_mesh`."""
    from tasks.training.trainer import rows_at_once

    return {**rows_at_once(config), "sampled responses": config.sampled}


def trainer_of(config: Config, loaded: "LoadedModel", teacher: "LoadedModel | None") -> "Trainer":
    """The trainer of this stage. For `gkd`, attach the teacher's embedding to the student. Else
    responses share rows, and the step skips micro-batches in which nothing is predicted."""
    from tasks.losses.distillation import attach_teacher, gkd_loss_fn
    from tasks.losses.grpo import grpo_loss_fn
    from tasks.training.trainer import make_trainer

    trainer = make_trainer(loaded, config, config.seed)
    if isinstance(config.loss, Gkd):
        assert teacher is not None, "the config is refused otherwise"
        attach_teacher(loaded.model, teacher.model.embedding.get_value())
        loss: Any = gkd_loss_fn(
            pad_id=loaded.tokenizer.pad_id,
            beta=config.loss.beta,
            temperature=config.temperature,
            teacher=teacher.config,
        )
    else:
        bound = config.loss.epsilon
        loss = grpo_loss_fn(
            beta=0.0, epsilon=bound, epsilon_high=bound, temperature=config.temperature
        )
        trainer.is_wanted = lambda batch: batch.predicts.any()
    return trainer.with_loss_fn(loss, has_aux=True).with_gen_model_input_fn(
        lambda batch: {"train_example": batch}
    )


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """The programs that `run` compiles. A connected teacher is `upstream["teacher"]`, a model of
    shapes. Responses count at full length."""
    from flax import nnx

    from tasks.models.loading import model_config
    from tasks.planning.programs import (
        Program,
        abstract_model,
        on_devices,
        rows,
        scalar,
        shapes,
        vocabulary_trips,
    )
    from tasks.reinforcement.rollout import empty_batch

    require_one_teacher(config, upstream)
    model = on_devices(model, batch_sizes(config))
    teacher: LoadedModel | None = None
    if config.teacher is None:
        teacher = abstract_model(upstream["teacher"].name, upstream["teacher"].config, model.mesh)
    elif isinstance(config.teacher, GemmaTeacherConfig):
        name = config.teacher.model
        teacher = abstract_model(name, model_config(name), model.mesh)
    config = config.counted(upstream["prompts"].rows_of("train"))
    trainer = trainer_of(config, model, teacher)
    sampler, token_logps = rollout_programs(config, model, config.sampled)
    size, lengths = config.batch_size, (config.prompt_length, config.response_length)
    weights = shapes(nnx.state(model.model))
    logps = np.zeros((size, config.response_length), np.float32)
    prompt, response = ([0] * length for length in lengths)
    scored = Scored([(prompt, response)] * size, logps, logps)
    trips = vocabulary_trips(size // config.accumulation * config.response_length, trainer.mesh)
    _, optimizer, _ = map(shapes, trainer.state())
    rollouts = -(-config.steps // config.num_iterations)
    block = empty_batch(size // config.accumulation, sum(lengths), logps=(False, False, False))
    resident = shapes(nnx.state(teacher.model)) if teacher else None
    if resident is not None and isinstance(config.loss, Gkd):
        del resident["embedding"]  # the student has it
    args = (weights, rows(tuple(block[:4]), trainer.mesh), scalar(np.float32))
    calls = rollouts * config.accumulation
    beside = (optimizer, resident)
    found = [
        sampler.program(rollouts, resident=beside),
        Program("token_logps", token_logps, args, calls, beside, trips),
    ]
    hidden = None
    if teacher:
        scorer = gemma_teacher(config, teacher)
        found.append(scorer.program(rollouts, resident=(weights, optimizer)))
        shape = (size, config.response_length, teacher.config.embed_dim)
        hidden = np.zeros(shape, teacher.config.dtype)
    batch = make_batch(config, scored, hidden, model)
    return [*found, *trainer.programs(batch, config.steps, trips=trips, resident=resident)]


def open_teacher(
    job: Job[Config], loaded: "LoadedModel"
) -> "tuple[TokenTeacher, LoadedModel | None]":
    """The teacher, and its model if this job loads it.

    Raises:
        InputError: there is none, or there are two; its model is not available, or has another
            tokenizer than the student.
    """
    from tasks.models.loading import base_model, load_model

    config = job.config
    require_one_teacher(config, job.inputs)
    if isinstance(config.teacher, EndpointTeacherConfig):
        account = ["on_policy_distill", config.model_dump(mode="json")]
        length = config.response_length
        teacher = EndpointTeacher(
            config.teacher, job.answers, response_length=length, account=account
        )
        return teacher, None
    if config.teacher is None:
        model = load_model(job.inputs["teacher"], loaded.mesh)
    else:
        model = base_model(config.teacher.model, config.seed, loaded.mesh)
    require_same_tokenizer(loaded.tokenizer, model.tokenizer, model.name)
    return gemma_teacher(config, model), model


def small(config: Config, sizes: Sizes) -> Config:
    """5 updates on whole groups: the largest batch size of at most 32 that is a multiple of the
    group's size, or else the smallest one."""
    most = min(config.batch_size, FEW if sizes.few else 32)
    wholes = (*range(most, 0, -1), *range(most + 1, config.batch_size + 1))
    batches = (config.model_copy(update={"batch_size": size}) for size in wholes)
    whole = (one for one in batches if one.sampled and one.sampled % config.group_size == 0)
    loaded = isinstance(config.teacher, GemmaTeacherConfig)  # with the student's tokenizer
    teacher = GemmaTeacherConfig(name="gemma", model=config.model) if loaded else config.teacher
    return small_trainer(
        config,
        sizes,
        steps=5,
        batch_size=next(whole).batch_size,
        learning_rate=3e-4,
        teacher=teacher,
    )


def run(job: Job[Config]) -> dict[str, Any]:
    """Train and write the model.

    Raises:
        InputError: too many prompts are too long, or as `open_teacher`.
        StageFailed: a program compiled more than once, or an endpoint is dead.
    """
    from tasks.models.loading import policy_or_base
    from tasks.training.loop import counted, fit, save_trained

    config, data = job.config, job.inputs["prompts"]
    loaded = policy_or_base(job, make_mesh(batch_sizes(config)), trained=config.lora is None)
    prompts, dropped, _ = fitting_prompts(
        read_jsonl(data / "prompts.jsonl", Prompt),
        loaded.tokenizer,
        config.prompt_length,
        config.max_dropped_fraction,
    )
    job, config = counted(job, len(prompts))
    traces = fitting_traces(config, read_jsonl(data / "train.jsonl", Example), loaded.tokenizer)
    teacher, teacher_model = open_teacher(job, loaded)
    try:
        trainer = trainer_of(config, loaded, teacher_model)
        batches = DistillBatches(config, loaded, teacher, prompts, traces)
        curve = fit(
            trainer, batches.batch_at, config, job, extra=batches.metrics.__getitem__, keeps=batches
        )
        costs = teacher.costs()
    finally:
        teacher.close()
    write_jsonl(job.out / "rollouts.jsonl", batches.samples)
    save_trained(trainer, loaded, job)

    groups = config.sampled // config.group_size
    return {
        "prompts": len(prompts),
        "prompts_too_long": dropped,
        "rollouts": -(-config.steps // config.num_iterations),
        "epochs": config.steps / config.num_iterations * groups / len(prompts),
        "reverse_kl_first": curve_mean("reverse_kl", curve[:10]),
        **{f"{name}_last": curve_mean(name, curve[-10:]) for name in _CURVES},
        "unscored": curve_mean("unscored", curve),
        **costs,
    }


KIND = Kind(
    version=11,
    config=Config,
    inputs={
        "policy": Input(Product.MODEL, required=False),
        "prompts": Input(Product.ROWS),
        "teacher": Input(Product.MODEL, required=False),
    },
    produces=Product.MODEL,
    run=run,
    small=small,
    programs=programs,
    devices=lambda config: True,
    dependencies=lambda config, data: model_dependencies(config.model),
    extra_models=extra_models,
    foresee=lambda config, inputs, data: require_one_teacher(config, inputs),
)
