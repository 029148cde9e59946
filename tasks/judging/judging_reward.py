"""The common part of judging rewards: their config, opening the judge, and checking it before it is
trusted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from pydantic import Field

from schemas.base import digest
from schemas.rubrics import Criterion
from tasks.chat.request import ReplyFormat
from tasks.contract.reward import Judged, Resources, Response, Reward, RewardConfig
from tasks.judging.anchors import Anchor
from tasks.judging.bench import Bench, Case
from tasks.judging.calibration import Calibration, Calibrator
from tasks.judging.judge import JudgeConfig
from tasks.judging.open_judge import judge_dependencies, judge_models, judge_programs, open_judge

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program

WORDING = 3
"""Raise it when judges are asked or read in another way: it is part of every judging reward's
VERSION."""


class JudgingConfig(RewardConfig):
    """The fields of every judging reward's Config.

    Attributes:
        judge: who is asked (`tasks.judging.judge`).
        calibration: how the judge is checked (`tasks.judging.calibration`); `false`: not at all.
        longest: characters of a task, a reference, a reasoning and an answer that the judge is
            shown; the middle of longer ones is cut out.
        response_format: how an endpoint is told the form of its replies.
    """

    judge: JudgeConfig
    calibration: Calibration | Literal[False] = Calibration()
    longest: int = Field(default=12_000, ge=200)
    response_format: ReplyFormat = "json_schema"


ConfigT = TypeVar("ConfigT", bound=JudgingConfig)


@dataclass(frozen=True)
class Judging(Generic[ConfigT]):
    """A judging reward at work.

    Attributes:
        criteria: the rubrics of prompts that have their own, by id.
        update: the update that it scores for, from 1.
    """

    config: ConfigT
    bench: Bench
    calibrator: Calibrator | None
    criteria: Mapping[str, tuple[Criterion, ...]]
    update: int = 1

    @classmethod
    def begin(
        cls,
        config: ConfigT,
        resources: Resources,
        anchored: Callable[[Anchor], Case],
        criteria: Mapping[str, tuple[Criterion, ...]] = {},
    ) -> Self:
        """Open the judge and check it on the anchors. Raises InputError (`open_judge`), StageFailed
        (`Calibrator.begin`)."""
        bench = Bench(open_judge(config.judge, resources), by_token=config.judge.name == "gemma")
        try:
            calibrator = None
            if config.calibration:
                calibrator = Calibrator.begin(config.calibration, bench, anchored)
        except BaseException:
            bench.judge.close()
            raise
        return cls(config, bench, calibrator, criteria)

    def judge(self, cases: Iterable[Case | None], responses: Sequence[Response]) -> list[Judged]:
        """A value for each case, None where there is no case or no ruling. The calibration of a
        rollout is in the details of its first response.

        Raises:
            StageFailed: too many responses have no ruling, or the judge has changed.
        """
        told = None
        if self.calibrator:
            told = self.calibrator.check(self.update, [response.text for response in responses])
        found = self.bench.judge_all(cases)
        if told is not None:
            found[0] = found[0]._replace(detail=found[0].detail | {"calibration": told})
        return found

    def close(self) -> None:
        self.bench.judge.close()


def judging_reward(
    config: type[Any],
    prepare: Callable[..., Any],
    score: Callable[..., Any],
    questions: Callable[[Any], int],
) -> Reward:
    """A reward by a judge.

    Args:
        questions: how many questions per response a judge that rates by its next token gets.
    """

    def dependencies(one: JudgingConfig, data: Path | None) -> dict[str, str | int]:
        found = {"judging.wording": WORDING, **judge_dependencies(one.judge)}
        if one.calibration is not False:
            found["judging.anchors"] = digest([a.model_dump() for a in one.calibration.tried])
        return found

    def programs(
        one: JudgingConfig, model: "LoadedModel", calls: float, upstream: Mapping[str, Any]
    ) -> "list[Program]":
        return judge_programs(one.judge, model, calls * questions(one))

    return Reward(
        version=1,
        config=config,
        score=score,
        prepare=prepare,
        at=lambda judging, update: replace(judging, update=update),
        values=lambda judging: judging.bench.judge.values(),
        count_on=lambda judging, values: judging.bench.judge.count_on(values),
        close=Judging.close,
        dependencies=dependencies,
        models=lambda one: judge_models(one.judge),
        computes=lambda one: bool(judge_models(one.judge)),
        programs=programs,
    )
