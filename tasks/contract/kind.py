"""The contract of a stage kind: one `KIND = Kind(...)` in a file of `tasks/stages/`. The kind's
name is the file's.

The worker, plans, reports, gates and model cards read everything that they need to know of a kind
from its fields, and have no lists of kinds. A kind's file imports no JAX at its top level, since
the flow process imports it to validate recipes. Heavy imports go inside `run` and `programs`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from schemas.base import StrictModel
from schemas.evaluation import EvalItem
from tasks.contract.job import Job
from tasks.contract.small import Sizes

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program

ConfigT = TypeVar("ConfigT", bound=StrictModel)

Outcome = Callable[[EvalItem], bool | None]
"""Whether a rate counts an item; None: the item is not in its denominator."""


class Product(StrEnum):
    """The product of a stage. An input asks for one of these, never for kinds."""

    EXAMPLES = "examples"
    """Verified rows of teachers: examples.jsonl, pairs.jsonl, unsolved.jsonl, dropped.jsonl."""
    ROWS = "rows"
    """Rows by quota and split: train.jsonl, validation.jsonl, heldout.jsonl, prompts.jsonl,
    pairs.jsonl."""
    MODEL = "model"
    """A Hugging Face directory, with curves.jsonl and state.json."""
    ANSWERS = "answers"
    """An evaluation's items.jsonl and samples.jsonl."""
    RUBRICS = "rubrics"
    """Criteria by prompt: rubrics.jsonl."""
    REWARD = "reward"
    """A reward model."""
    EXPORT = "export"
    """A Hugging Face directory with a model card and a proof."""


@dataclass(frozen=True)
class Input:
    """An input of a stage kind.

    Attributes:
        product: what it takes.
        required: whether a recipe must connect it.
        same_kind: whether only a stage of the same kind can feed it, as an evaluation's baseline.
    """

    product: Product
    required: bool = True
    same_kind: bool = False


class Metrics(Protocol):
    """Computes an evaluation's metrics from its items alone."""

    def __call__(
        self,
        items: Sequence[EvalItem],
        baseline: Sequence[EvalItem] | None = None,
        *,
        samples: Sequence[EvalItem] = (),
        seed: int = 0,
    ) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Evaluation:
    """The facts that reports, gates and model cards need to know of an evaluation.

    Attributes:
        title: its heading.
        measures: where a report shows it: skill, or safety, beside controls.
        outcomes: rate -> what it counts of an item.
        metrics: computes all metrics from items.
        headlines: the main rates, of which higher is better -> their names in reports.
        paired: rates that two models can be compared by, since their denominator depends on the
            prompts alone.
        lower_is_better: rates of which a better model has less.
        card: rates that a model card shows, unless they are None.
    """

    title: str
    outcomes: Mapping[str, Outcome]
    metrics: Metrics
    headlines: Mapping[str, str]
    paired: Collection[str]
    measures: Literal["skill", "safety"] = "skill"
    lower_is_better: Collection[str] = frozenset()
    card: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("headlines", "paired", "lower_is_better", "card"):
            unknown = sorted(set(getattr(self, name)) - set(self.outcomes))
            if unknown:
                raise TypeError(f"an evaluation's {name} has unknown rates: {', '.join(unknown)}")


def _model_of_config(config: Mapping[str, Any]) -> str | None:
    model = config.get("model")
    return None if model is None else str(model)


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[ConfigT]):
    """A stage kind.

    Attributes:
        version: raise it when the same config and inputs would give other bytes.
        config: what a recipe may set.
        inputs: the inputs that a recipe may or must connect.
        produces: what the artifact is.
        run: writes files below `job.out`; returns the metrics for the manifest.
        small: the config in these sizes, for a laptop (`tasks.contract.small`); rewards, checks,
            teachers' formats and judges stay the same. It has no default: a kind without sizes has
            `lambda config, sizes: config`.
        programs: what `run` compiles, given the config, the model it begins with (weights as
            shapes), and for each connected input the config, or the model, that feeds it. None:
            nothing.
        devices: whether a stage with this config (as JSON) computes with JAX. If so, all hosts of a
            job run it (`tasks.devices.hosts`), otherwise host 0 alone.
        dependencies: what else decides the bytes (`schemas.artifact.stage_key`), given the config
            and `--data`.
        base_model: the model that a stage with this config (as JSON) begins with if no policy is
            connected. None: it reads no model.
        extra_models: other base models that such a stage loads: a judge's, a teacher's.
        at_home: whether such a stage runs on the flow's machine whatever the target is, given also
            the configs (as JSON) of the stages that feed its inputs.
        foresee: raises InputError if such a stage is bound to fail, given also the configs of the
            stages that feed its inputs, and `--data`.
        evaluation: for a kind that produces answers.
    """

    version: int
    config: type[ConfigT]
    inputs: Mapping[str, Input]
    produces: Product
    run: Callable[[Job[ConfigT]], dict[str, Any]]
    small: Callable[[ConfigT, Sizes], ConfigT]
    programs: "Callable[[ConfigT, LoadedModel, Mapping[str, Any]], list[Program]] | None" = None
    devices: Callable[[Mapping[str, Any]], bool] = field(default=lambda config: False)
    dependencies: Callable[[ConfigT, Path | None], dict[str, str | int]] = field(
        default=lambda config, data: {}
    )
    base_model: Callable[[Mapping[str, Any]], str | None] = field(default=_model_of_config)
    extra_models: Callable[[Mapping[str, Any]], tuple[str, ...]] = field(default=lambda config: ())
    at_home: Callable[[Mapping[str, Any], Mapping[str, Mapping[str, Any]]], bool] = field(
        default=lambda config, inputs: False
    )
    foresee: Callable[[ConfigT, Mapping[str, Any], Path | None], None] = field(
        default=lambda config, inputs, data: None
    )
    evaluation: Evaluation | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.config, type) and issubclass(self.config, StrictModel)):
            raise TypeError(f"a kind's config is a StrictModel, not {self.config!r}")
        if (self.produces is Product.ANSWERS) != (self.evaluation is not None):
            raise TypeError("a kind has an evaluation if, and only if, its product is answers")
