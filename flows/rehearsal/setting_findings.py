"""What a recipe's settings say by themselves: schedules that never begin, updates that wait for a
judge, models that are gone, teachers that write in different formats."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from flows.recipe.resolve import ResolvedStage
from schemas.recipe import StageSpec
from schemas.trainer_config import TrainerConfig
from tasks.contract.kinds import stage_kind
from tasks.rehearsal.reward_findings import Finding
from tasks.training.preference_kind import PreferenceConfig

SHUT_DOWN = {
    "gemini-2.5-flash-lite": None,
    "gemini-1.5-": date(2025, 9, 24),
    "gemini-2.0-flash": date(2026, 6, 1),
    "gemini-2.5-flash-image": date(2026, 10, 2),
    "gemini-2.5-flash": date(2026, 12, 1),
    "gemini-2.5-pro": date(2026, 12, 1),
}
"""Models of the Gemini API by how their names begin, the longer first -> when it stops to serve
them, None: not known (ai.google.dev/gemini-api/docs/deprecations, as copies of it had it on
2026-11-23)."""


def of_settings(
    stages: Sequence[StageSpec], endpoints: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """What is wrong whatever the rows are.

    Args:
        stages: of the recipe as it is shipped.
        endpoints: `PROVIDER:MODEL` -> the stages that ask it.
    """
    yield from _of_schedules(stages)
    yield from _of_teachers(stages)
    for stage in stages:
        judges = [name for name, asking in endpoints.items() if stage.name in asking]
        if judges and "rewards" in stage.config and not stage.config.get("rollout_lag"):
            yield Finding(
                f"waits:{stage.name}",
                f"every update of {stage.name} waits until {', '.join(judges)} has judged its"
                " responses. Set rollout_lag = 1, and it judges while the next ones are sampled",
            )
    for name in endpoints:
        ends = shut_down(name)
        if ends is not None and ends <= datetime.now(UTC).date():
            yield Finding(
                f"shut_down:{name}",
                f"{name} was shut down on {ends}: no request to it is answered. Name another model",
            )


def shut_down(endpoint: str) -> date | None:
    """When `PROVIDER:MODEL` ended or ends, as far as it is known here."""
    provider, _, model = endpoint.partition(":")
    model = model.removeprefix("models/").removeprefix("google/")
    if provider != "gemini":
        return None
    return next((ends for name, ends in SHUT_DOWN.items() if model.startswith(name)), None)


def setting_notes(
    stages: Sequence[ResolvedStage], whole: Sequence[StageSpec], endpoints: Iterable[str]
) -> Iterator[str]:
    """What may be meant so, and is easily overlooked. `whole`: the stages as they are shipped, for
    a rehearsal's own have no adapters."""
    for name in endpoints:
        if (ends := shut_down(name)) is not None and ends > datetime.now(UTC).date():
            yield f"{name} will be shut down on {ends}: no request to it is answered from then on"
    shipped = {stage.name: stage.config for stage in whole}
    trained = [stage.name for stage in stages if isinstance(stage.config, TrainerConfig)]
    asked = [stage_kind(one.kind).evaluation for one in stages if "policy" in one.inputs]
    if trained and not any(one and one.measures == "safety" for one in asked):
        yield (
            f"no stage asks what {trained[-1]} trains whether it is safe (kind safety_eval, with"
            " its input policy)"
        )
    for stage in stages:
        config: Any = stage.config
        if isinstance(config, PreferenceConfig) and "long" not in (config.rejected_because or ()):
            yield (
                f"{stage.name} rejects no response for its length, so it does not teach to be"
                ' brief (rejected_because = [..., "long"])'
            )
        if (
            isinstance(config, TrainerConfig)
            and not shipped[stage.name].get("lora")
            and not config.optimizer.weight_decay
        ):
            yield (
                f"{stage.name} trains all weights without weight decay, so its AdamW is Adam"
                " (optimizer.weight_decay, usually 0.1)"
            )


def _of_schedules(stages: Sequence[StageSpec]) -> Iterator[Finding]:
    """Weights and penalties that begin to change after the last update."""
    for stage in stages:
        steps = stage.config.get("steps")
        for reward in stage.config.get("rewards", ()) if isinstance(steps, int) else ():
            for name, value in reward.items():
                if isinstance(value, dict) and value.get("from_step", 0) >= steps:
                    yield Finding(
                        f"schedule:{stage.name}.{reward['name']}.{name}",
                        f"{name} of reward {reward['name']} changes from update"
                        f" {value['from_step']} on, and {stage.name} has {steps}",
                    )


def _of_teachers(stages: Sequence[StageSpec]) -> Iterator[Finding]:
    """Teachers of one stage that write in different formats. A model that learns from their rows
    has nothing in a prompt to tell which is wanted; a top-up decides how many there are of each."""
    for stage in stages:
        found: dict[str, list[str]] = {}
        for teacher in stage.config.get("teachers", ()):
            for table in teacher.get("sources") or [teacher]:
                names = found.setdefault(table.get("channels", "trace"), [])
                names.append(str(table.get("family") or table.get("path") or teacher["name"]))
        if len(found) > 1:
            said = ", ".join(
                f"{channels!r} ({', '.join(dict.fromkeys(names))})"
                for channels, names in found.items()
            )
            yield Finding(
                f"formats:{stage.name}",
                f"the teachers of {stage.name} write in several formats, {said}: no prompt says"
                " which is wanted. Give all of them the same channels",
            )
