"""From programs to time and money: what a stage will take on a target, by roofline, by measured
runs, and by list prices.

A stage's time is the sum over its programs of calls x roofline time (or the sum over those that run
beside the others on devices of their own, if that is longer), divided by an efficiency, plus the
time until its machine works. The efficiency is learned from stages of the same kind that ran on the
same target, where the store has some that were long enough and this machine has compiled their
programs; else it is `EFFICIENCY`.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from flows.planning.compile_cache import Compiled, Compiler, Question
from flows.planning.machine import planned
from flows.recipe.explain import COMPARED
from infra.settings import TpuSettings
from infra.store.store import Store
from infra.tpu.types import TPU_TYPES
from schemas.artifact import Manifest
from tasks.contract.kinds import training_kinds

EFFICIENCY = 0.4
"""Share of the roofline that a stage reaches on average, as of November 2026: dense training of
language models on v4 to v6e is said to reach 0.4 to 0.6 of peak (MaxText, from memory); small
models and decoding are below, and hosts tokenise, score and save meanwhile. A cautious guess until
runs have been measured."""


LEAST_SHARE = 0.1
"""A run that was shorter than this share of what is planned, by roofline, tells nothing of it:
loading and compiling took most of its time, and would be multiplied."""


def program_json(program: Compiled, target: str) -> dict[str, Any]:
    """A program as `lyceum plan --json` prints it. Bytes and FLOPs are of one device and one call;
    of a device whose speed is not known, so is no time."""
    machine, report = planned(target), program.report
    assert report is not None
    chip = machine.chip
    work = report["flops"], report["bytes_accessed"], report["link_bytes"]
    hbm_bytes = report["hbm_bytes"] + program.resident_bytes
    return {
        "name": program.name,
        "fits": report["refusal"] is None and hbm_bytes <= machine.hbm_bytes,
        "hbm_bytes": hbm_bytes,
        "hbm_limit_bytes": machine.hbm_bytes,
        **{
            f"{part}_bytes": report[f"{part}_bytes"]
            for part in ("argument", "temporary", "output", "alias", "code")
        },
        "resident_bytes": program.resident_bytes,
        "flops": report["flops"],
        "bytes_accessed": report["bytes_accessed"],
        "link_bytes": report["link_bytes"],
        "uncounted": report["uncounted"],
        "roofline_seconds": chip.roofline_seconds(*work) if chip else None,
        "bound": chip.bound(*work) if chip else None,
        "calls": program.calls,
        "beside": program.beside,
        "compile_seconds": report["compile_seconds"],
        "refusal": report["refusal"],
    }


def roofline_seconds(programs: Sequence[Compiled], target: str) -> float:
    """Seconds of all calls of a stage's programs; those that run beside the others take no time
    while the others do."""
    seconds = {False: 0.0, True: 0.0}
    for program in programs:
        one_call = program_json(program, target)["roofline_seconds"]
        seconds[program.beside] += program.calls * one_call
    return max(seconds.values())


def estimate(
    programs: Sequence[Compiled],
    measured: Sequence[tuple[float, float]],
    target: str,
    settings: TpuSettings,
) -> dict[str, Any]:
    """The `seconds` and `cost_usd` of a stage on a TPU, of the cloud or of this machine, and the
    `basis` on which they rest.

    Args:
        programs: those of the stage, with reports.
        measured: (seconds by roofline, seconds) of earlier runs of its kind (see `measured_runs`).
    """
    roofline, boot = roofline_seconds(programs, target), planned(target).boot_seconds
    ratios = [took / known for known, took in measured if known >= LEAST_SHARE * roofline]
    seconds = boot + roofline * (median(ratios) if ratios else 1 / EFFICIENCY)
    known = f"median of {len(ratios)} measured runs"
    basis = known if ratios else f"{EFFICIENCY:.0%} of the roofline"
    basis += f", and {boot:.0f} s to boot" if boot else ""
    return {"seconds": seconds, "cost_usd": cost(seconds, target, settings), "basis": basis}


def cost(seconds: float, target: str, settings: TpuSettings) -> float:
    """US dollars of a TPU for so long, by `LYCEUM_TPU_USD_PER_CHIP_HOUR` or the list price of the
    tier; of this machine, none."""
    if target == "local":
        return 0.0
    kind, price = TPU_TYPES[target], settings.usd_per_chip_hour
    if price is None:
        price = kind.usd_per_chip_hour[settings.tier]
    return kind.chips * price * seconds / 3600


def measured_runs(
    kind: str, target: str, store: Store, compiler: Compiler
) -> list[tuple[float, float]]:
    """(Seconds by roofline, seconds that it took) of the newest stages of a kind, if they ran on
    the target and this machine has compiled their programs before."""
    measured = []
    for manifest in store.artifacts(kind, COMPARED):
        seconds = manifest.execution.get("seconds")
        if manifest.execution.get("target") != target or not seconds:
            continue
        question = _question_of(manifest, store)
        programs = compiler.known(question) if question else None
        roofline = roofline_seconds(programs, target) if programs else 0.0
        if roofline:
            measured.append((roofline, seconds))
    return measured


def _question_of(manifest: Manifest, store: Store) -> Question | None:
    """The stage that made an artifact, as it was asked about before it ran; None when what fed it
    is gone."""
    upstream = {name: store.lookup(ref.kind, ref.key) for name, ref in manifest.inputs.items()}
    known = {name: source for name, source in upstream.items() if source is not None}
    model = _model_of(manifest, store)
    if model is None or len(known) < len(upstream):
        return None
    configs = {name: (source.kind, source.config) for name, source in known.items()}
    models = {
        name: found
        for name, source in known.items()
        if source.kind in training_kinds() and name != "policy"
        if (found := _model_of(source, store)) is not None
    }
    asked = manifest.kind, manifest.kind, manifest.version, manifest.config
    return Question(*asked, model, configs, models)


def _model_of(manifest: Manifest, store: Store) -> str | None:
    """The model that the chain of policies began with."""
    policy = manifest.inputs.get("policy")
    if policy is None:
        return manifest.config.get("model")
    source = store.lookup(policy.kind, policy.key)
    return _model_of(source, store) if source else None
