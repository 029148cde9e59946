"""`lyceum plan`: what would run, whether it fits the target, how long it takes and what it costs,
before anything is submitted."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from flows.planning.compile_cache import Compiled, Compiler, Question, has_compiler
from flows.planning.estimate import cost, estimate, measured_runs, program_json
from flows.planning.fit_search import suggest
from flows.planning.machine import BOOT_SECONDS, Machine, machine_of, memory_bytes
from flows.planning.sessions import sessions
from flows.recipe import explain
from flows.recipe.explain import Outlook
from flows.recipe.resolve import ResolvedRecipe, ResolvedStage
from flows.runs.forecast import Forecast
from infra.context import context
from infra.store.store import Store
from infra.visible import plain
from schemas.base import DoesNotFit, InputError, StrictModel
from tasks.contract.kinds import stage_kind, training_kinds


def make_plan(
    resolved: ResolvedRecipe,
    store: Store,
    target: str,
    *,
    hours: float | None = None,
    usd: float | None = None,
) -> dict[str, Any]:
    """The plan as `lyceum plan --json` prints it, with `problems` and `suggestion` if it does not
    fit. Progress goes to standard error.

    Args:
        hours, usd: the budget; None for no limit. With `hours` the plan says into how many sessions
            of so many hours the run divides, too.

    Raises:
        InputError: the TPU compiler is missing, or a stage does not accept its config on the
            target.
        StageFailed: a program does not compile for another reason than its size.
    """
    outlooks = explain.outlook(resolved, store)
    stages = explain.Neighbours(outlooks, store).plans(resolved, target)
    if (machine := machine_of(target)) is not None:
        stages = _on_machine(resolved, outlooks, stages, store, target, machine)
    slots = context().settings.parallel_jobs
    known = {stage["name"]: stage.get("at_least", stage)["seconds"] or 0.0 for stage in stages}
    ends = Forecast(resolved.recipe, stages, planned=True, slots=slots).ends({}, known)
    at_least = _at_least(stages, max(ends.values(), default=0.0))
    value = {
        "recipe": resolved.recipe.name,
        "target": target,
        "fits": True,
        "stages": stages,
        "seconds": None if at_least["without"] else at_least["seconds"],
        "cost_usd": explain.total([stage["cost_usd"] for stage in stages]),
        "at_least": at_least,
    }
    if hours is not None:
        value["sessions"] = sessions(stages, hours, ends)
    here = too_large_here(outlooks) if target == "local" else []
    problems = [*_too_large(stages), *here, *_over_budget(value, hours, usd)]
    if not problems:
        return value
    suggestion = [
        f"stages.{stage['name']}.config.{change}"
        for stage in stages
        for change in stage.get("suggestion") or ()
    ]
    return {**value, "fits": False, "problems": problems, "suggestion": suggestion}


def check_fit(resolved: ResolvedRecipe, store: Store, target: str) -> dict[str, Any] | None:
    """Plan a run before it is submitted; without the TPU compiler, say that there is no plan.

    Returns:
        The plan; None where no program is compiled: for the CPU of this machine, with
        `LYCEUM_PLAN=false`, without the compiler.

    Raises:
        DoesNotFit: with the programs that do not fit, and the fix.
        InputError, StageFailed: see `make_plan`.
    """
    if target == "local" and (problems := too_large_here(explain.outlook(resolved, store))):
        raise DoesNotFit(
            " ".join(["this recipe does not fit this machine; nothing was started.", *problems])
        )
    if not context().settings.plan or (machine := machine_of(target)) is None:
        return None
    if target != "local" and not has_compiler():
        _say(
            f"the TPU compiler is not installed here: whether this recipe fits {target} shows when"
            " it runs there"
        )
        return None
    value = make_plan(resolved, store, target)
    if not value["fits"]:
        said = f"this recipe does not fit {machine.name}; nothing was submitted."
        raise DoesNotFit(" ".join([said, *what_is_wrong(value)]))
    return value


def what_is_wrong(plan: dict[str, Any]) -> list[str]:
    """Why a plan does not fit, and the settings that would fix it, as far as known, in
    sentences."""
    if plan["fits"]:
        return []
    sets = " ".join(f"--set {change}" for change in plan["suggestion"])
    return [*plan["problems"], *([f"With this its programs fit: {sets}"] if sets else [])]


def _on_machine(
    resolved: ResolvedRecipe,
    outlooks: Sequence[Outlook],
    stages: list[dict[str, Any]],
    store: Store,
    target: str,
    machine: Machine,
) -> list[dict[str, Any]]:
    """The stages' plans with programs, times and costs on a TPU, or the accelerator of this
    machine."""
    to_run = [one.stage for one in outlooks if one.manifest is None]
    questions = [question_of(one, resolved) for one in to_run if _on_devices(one, resolved, target)]
    with Compiler(target, context().settings, _say) as compiler:
        planned = {
            question.name: _with_programs(question, programs, compiler, store, machine)
            for question, programs in zip(questions, compiler.compile(questions), strict=True)
        }
    if target != "local":
        seconds = {stage["name"]: stage["seconds"] for stage in stages}
        for one in to_run:
            if one.name not in planned:
                planned[one.name] = _without_programs(one, seconds[one.name], resolved, target)
    return [{**stage, **planned.get(stage["name"], {})} for stage in stages]


def _on_devices(stage: ResolvedStage, resolved: ResolvedRecipe, target: str) -> bool:
    here = target != "local" and resolved.at_home(stage)
    return stage_kind(stage.kind).devices(stage.config_json) and not here


def _with_programs(
    question: Question,
    programs: Sequence[Compiled],
    compiler: Compiler,
    store: Store,
    machine: Machine,
) -> dict[str, Any]:
    """The plan of a stage on devices: its programs, settings with which they fit, time and cost."""
    target = compiler.target
    listed = [program_json(program, target) for program in programs]
    found: dict[str, Any] = {"programs": listed}
    if not all(program["fits"] for program in listed):
        _say(f"{question.name} does not fit: looking for what does")
        groups = machine.devices // context().settings.tensor_parallel
        suggested = suggest(question, programs, compiler, groups)
        if suggested is None:
            basis = "no settings with which it fits"
            return {**found, "seconds": None, "cost_usd": None, "basis": basis}
        changes, programs = suggested
        found["suggestion"] = [f"{name}={value}" for name, value in changes.items()]
    if machine.chip is None:  # it takes as long as similar stages took
        return found
    # of runs here nobody knows whether this accelerator made them
    measured = [] if target == "local" else measured_runs(question.kind, target, store, compiler)
    expected = estimate(programs, measured, target, context().tpu)
    if "suggestion" in found:
        expected["basis"] += ", if it were as suggested"
    return {**found, **expected}


def _without_programs(
    stage: ResolvedStage, took: float | None, resolved: ResolvedRecipe, target: str
) -> dict[str, Any]:
    """The plan of a stage without devices: its time is that of its nearest artifact, and a TPU
    boots for it unless it runs here. Where there is none, the boot is a lower bound."""
    if resolved.at_home(stage):
        return {"basis": "runs on this machine"}
    seconds, boot = BOOT_SECONDS + (took or 0.0), f"{BOOT_SECONDS:.0f} s to boot"
    known = {"seconds": seconds, "cost_usd": cost(seconds, target, context().tpu)}
    if took is not None:
        return {**known, "basis": f"its nearest artifact, and {boot}"}
    basis = f"nothing: none like it was run; at least {boot}"
    return {"seconds": None, "cost_usd": None, "at_least": known, "basis": basis}


def question_of(stage: ResolvedStage, resolved: ResolvedRecipe) -> Question:
    """A stage of a recipe as the compiler is asked about its programs."""
    sources = {name: resolved.stage(source) for name, source in stage.inputs.items()}
    upstream = {name: (source.kind, source.config_json) for name, source in sources.items()}
    models = {
        name: resolved.base_model(source)
        for name, source in sources.items()
        if source.kind in training_kinds() and name != "policy"
    }
    known = stage.name, stage.kind, stage.version, stage.config_json
    return Question(*known, resolved.base_model(stage), upstream, models)


def _too_large(stages: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    for stage in stages:
        for one in (program for program in stage["programs"] if not program["fits"]):
            needed, limit = one["hbm_bytes"], one["hbm_limit_bytes"]
            why = f"does not fit: {one['refusal']}"
            if needed > limit:
                why = f"needs {_gib(needed)} of {_gib(limit)} GiB a device."
            found.append(f"Stage {stage['name']}: {one['name']} {why}")
    return found


def _at_least(stages: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Lower bounds of time and cost, also where `seconds` and `cost_usd` are unknown, and the
    stages whose own time is. `seconds`: until the last stage ends, side by side as in a run."""
    bounds = [stage.get("at_least", stage) for stage in stages]
    usd = sum(one["cost_usd"] or 0.0 for one in bounds)
    without = [one["name"] for one in stages if one["seconds"] is None]
    return {"seconds": seconds, "cost_usd": usd, "without": without}


def _over_budget(plan: dict[str, Any], hours: float | None, usd: float | None) -> list[str]:
    """The budget that the plan exceeds, and the stages that take most of it."""
    found = []
    limits = (hours, "seconds", "hours", 3600), (usd, "cost_usd", "US dollars", 1)
    for limit, key, unit, per in limits:
        amounts = Counter({stage["name"]: (stage[key] or 0.0) / per for stage in plan["stages"]})
        needed = plan["at_least"][key] / per
        if limit is not None and needed > limit:
            most = ", ".join(f"{name} {some:.2f}" for name, some in amounts.most_common(3) if some)
            found.append(f"It takes {needed:.2f} of {limit:g} {unit}; most of it: {most}.")
    return found


LEAST_BYTES = 4 * 64
"""The least bytes of a token that a model works on: its id and, in every model there is, 64 numbers
of 32 bits and more; so of a row that waits to be answered and of a rank of an adapter. A bound from
below: what is refused by it cannot run; what is too large all the same ends in the worker, with one
line."""


def too_large_here(outlooks: Sequence[Outlook]) -> list[str]:
    """The stages that would run on this machine with sizes that its memory cannot hold, in
    sentences."""
    memory = memory_bytes()
    return [
        f"Stage {one.stage.name}: {sizes} takes at least {bytes_ / 2**30:,.1f} GiB of memory, and"
        f" this machine has {memory / 2**30:,.1f} GiB; lower them."
        for one in outlooks
        if one.manifest is None
        for sizes, bytes_ in _resident(one.stage)
        if bytes_ > memory
    ]


def _resident(stage: ResolvedStage) -> Iterator[tuple[str, int]]:
    """The most that a stage holds at a time: the sizes of its config that multiply, and their
    bytes."""
    config, lengths = stage.config, stage.lengths
    for name in ("batch_size", "sampling_batch_size"):
        if (rows := _size(config, name)) and lengths:
            sizes = " + ".join(f"{length} {size}" for length, size in lengths.items())
            yield f"{name} {rows} x {sizes}", rows * sum(lengths.values()) * LEAST_BYTES
    if (prompts := _size(config, "prompts")) and (samples := _size(config, "samples_per_prompt")):
        yield f"prompts {prompts} x samples_per_prompt {samples}", prompts * samples * LEAST_BYTES
    if rank := _size(getattr(config, "lora", None), "rank"):
        yield f"lora.rank {rank}", rank * LEAST_BYTES


def _size(config: StrictModel | None, name: str) -> int:
    value = getattr(config, name, 0)
    return value if isinstance(value, int) else 0


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f}"


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} plan: {plain(text)}\n")
    sys.stderr.flush()


LEAST, MOST_HOURS, MOST_USD = 1e-9, 24.0 * 366, 1e9
"""Smaller and larger budgets are mistakes."""


def check_budget(hours: float | None, usd: float | None) -> None:
    """Raises InputError for an invalid budget."""
    for name, value, most in (("--hours", hours, MOST_HOURS), ("--usd", usd, MOST_USD)):
        if value is not None and not LEAST <= value <= most:
            limits = f", at most {most:g}" if value > most else f", at least {LEAST:g}"
            raise InputError(f"{name} {value:g}: give a number above 0{limits * (value > 0)}.")
