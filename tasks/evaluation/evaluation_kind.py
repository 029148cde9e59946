"""The stage kind of an evaluation: answer the prompts, judge each answer by rules and, with a judge
in the config, by an LLM; compare with the baseline.

`reasoning_eval` and `safety_eval` differ in the held-out prompts that they ask, in their verdicts
and in their metrics. Everything else is here, in `eval_config.py` and in `evaluate.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contract.job import Job
from tasks.contract.kind import Evaluation, Input, Kind, Product
from tasks.evaluation.eval_config import EvalConfigT, small_eval
from tasks.evaluation.evaluate import (
    RuleJudge,
    answer_all,
    eval_programs,
    eval_prompts,
    eval_size,
    read_baseline,
)
from tasks.evaluation.metric_functions import load_functions, with_values
from tasks.evaluation.suite_prompts import suite_dependencies
from tasks.judging.open_judge import judge_programs
from tasks.judging.opinions import opinion_dependencies, opinion_models, with_opinions
from tasks.models.model_source import model_dependencies
from tasks.verification.verify import check_versions

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program


def evaluation_kind(
    *,
    version: int,
    config: type[EvalConfigT],
    by_rules: RuleJudge,
    grounded: bool,
    evaluation: Evaluation,
) -> Kind[EvalConfigT]:
    """The stage kind of an evaluation.

    Args:
        by_rules: judges a completion.
        grounded: ask the grounded held-out prompts; False: all others.
        evaluation: computes metrics from the items.
    """

    def run(job: Job[EvalConfigT]) -> dict[str, Any]:
        """Answer, judge, measure, compare. Raises InputError for too few prompts, prompts that do
        not fit and a baseline over other prompts; StageFailed for a metric function that fails."""
        prompts = eval_prompts(job, grounded=grounded)
        baseline = read_baseline(job.inputs, prompts)
        functions = load_functions(job.config.metrics)
        answers = with_opinions(job, answer_all(job, prompts, by_rules))
        answers = replace(answers, items=with_values(functions, answers.items))
        answers.write(job.out)
        metrics = evaluation.metrics(
            answers.items, baseline, samples=answers.samples, seed=job.config.seed
        )
        return {**metrics, "shots": job.config.shots} if job.config.shots else metrics

    def programs(
        config: EvalConfigT, model: "LoadedModel", upstream: Mapping[str, Any]
    ) -> "list[Program]":
        """What `run` compiles."""
        prompts = eval_size(config, upstream, grounded=grounded)
        judging = judge_programs(config.judge, model, prompts) if config.judge else []
        return [*eval_programs(config, model, prompts), *judging]

    def foresee(config: EvalConfigT, inputs: Mapping[str, Any], data: Any) -> None:
        """Raises InputError: too few prompts, as far as configs tell."""
        eval_size(config, inputs, grounded=grounded)

    return Kind(
        version=version,
        config=config,
        inputs={
            "prompts": Input(Product.ROWS, required=False),
            "policy": Input(Product.MODEL, required=False),
            "baseline": Input(Product.ANSWERS, required=False, same_kind=True),
        },
        produces=Product.ANSWERS,
        run=run,
        small=small_eval,
        programs=programs,
        devices=lambda config: True,
        dependencies=_dependencies,
        extra_models=opinion_models,
        foresee=foresee,
        evaluation=evaluation,
    )


def _dependencies(config: EvalConfigT, data: Path | None) -> dict[str, str | int]:
    """What decides the base model's bytes beside its name, the checks of answers, and the
    prompts."""
    return {
        **model_dependencies(config.model),
        **check_versions(),
        **suite_dependencies(config.suites, config.KIND, data),
        **opinion_dependencies(config),
    }
