"""Recipe: a TOML file that names a model and an ordered chain of stages.

```toml
name = "quickstart"
model = "gemma3-tiny"
seed = 0

[stages.distill]
kind = "distill"
[stages.distill.config]
...
[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
```
File order is execution order. `model` and `seed` are the defaults of every stage whose Config has a
field of that name. There is no inheritance and no templating; unknown keys are refused.

What all stages of a kind begin with is said once. A stage's own config counts more, key by key:
tables merge, all else replaces. A Recipe has no defaults: its stages have all of their config.

```toml
[defaults.reasoning_eval]
prompt_length = 512
batch_size = 256
```

`--tiny` runs it on a laptop in minutes: `gemma3-tiny`, and each stage as its kind runs small. What
such a run cannot reach the recipe replaces: data by the procedural teacher's, the rest as `--set`
would.

```toml
[tiny]
data = "procedural"
"stages.grpo.config.rewards.2.calibration" = false
```

`lyceum rehearse` runs it on a laptop as it is, only smaller. What that finds and is meant to be so,
the recipe allows, with the reason.

```toml
[rehearsal.allow]
"unverified:grpo_eval" = "free text alone: only format and length are counted"
```

A recipe may say what its model has to prove before it replaces the champion (`lyceum gate`, the
nightly flow). It is no part of any stage key. Without it, `flows.promotion.gate_rules.default_gate`
counts.

```toml
[[gate.must_win]]
metric = "exact_answer"
suite = "heldout"
[[gate.must_not_lose]]
metric = "safe_rate"
margin = 0.05
```
"""

import copy
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from schemas.base import InputError, StrictModel, explain_validation, nearest
from schemas.examples import Domain
from schemas.toml import toml_table

STAGE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def _path_segment(of: str) -> AfterValidator:
    def checked(name: str) -> str:
        if not STAGE_NAME.fullmatch(name):
            raise ValueError(
                f"a {of} name is lower-case letters, digits and _, starts with a letter and has at"
                " most 40 characters"
            )
        return name

    return AfterValidator(checked)


class StageSpec(StrictModel):
    """One stage: its kind (a file in `tasks/stages/`), which earlier stage feeds each of its
    inputs, and its config."""

    name: Annotated[str, _path_segment("stage")]
    kind: str
    inputs: dict[str, str] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)


def _has_reasons(value: dict[str, str]) -> dict[str, str]:
    bare = [finding for finding, reason in value.items() if not reason.strip()]
    if bare:
        raise ValueError(f"{bare[0]!r} is allowed without a reason; write why it is meant so")
    return value


Allowed = Annotated[dict[str, str], AfterValidator(_has_reasons)]
"""A finding of an audit -> the reason why it is meant to be so."""


class Rehearsal(StrictModel):
    """A recipe's settings of its rehearsal (`lyceum rehearse`)."""

    allow: Allowed = Field(default={})


class GateRule(StrictModel):
    """A rate that a gate compares, paired over the prompts that both models answered.

    Attributes:
        metric: a name of `OUTCOMES` of `tasks/stages/reasoning_eval.py` or
            `tasks/stages/safety_eval.py`, of which some are `lower_is_better`: a fall is a gain; or
            of a metric function of theirs: a rise is a gain. Where both have the name
            (`format_rate`), reasoning_eval's is meant unless only safety_eval asks the suite.
        suite: its prompts alone; default: all prompts that the metric counts.
        domain: its prompts alone; default: all domains.
    """

    metric: str
    suite: str | None = None
    domain: Domain | None = None

    @field_validator("domain", mode="before")
    @classmethod
    def _domain_is_known(cls, domain: Any) -> Any:
        domains = [known.value for known in Domain]
        if domain is not None and domain not in domains:
            raise ValueError(f"{domain!r} is no domain.{nearest(str(domain), domains)}")
        return domain


class MustNotLose(GateRule):
    """A rate that must not fall by `margin` or more, a fraction (of a metric function: in its own
    unit): the interval of the difference has to exclude such a loss."""

    margin: float = Field(ge=0.001, lt=1)


class GateSpec(StrictModel):
    """What a model has to prove against the champion, or the first one against its own base.
    `flows.promotion.gate_rules` says how.

    Attributes:
        must_win: rates that have to have become better for certain.
        wins: whether `all` of them have to, or `any` one is enough.
        must_not_lose: rates whose loss is excluded as far as the margin; all of them have to hold.
    """

    must_win: tuple[GateRule, ...] = ()
    wins: Literal["all", "any"] = "all"
    must_not_lose: tuple[MustNotLose, ...] = ()

    @model_validator(mode="after")
    def _has_different_rules(self) -> "GateSpec":
        if not self.must_win and not self.must_not_lose:
            raise ValueError(
                "a gate without a rule lets every model pass; add [[gate.must_win]] or"
                " [[gate.must_not_lose]]"
            )
        for name, rules in (("must_win", self.must_win), ("must_not_lose", self.must_not_lose)):
            looks = [(rule.metric, rule.suite, rule.domain) for rule in rules]
            if twice := [look for look in looks if looks.count(look) > 1]:
                raise ValueError(
                    f"two entries of gate.{name} are about the same:"
                    f" {' '.join(filter(None, twice[0]))}; leave one out"
                )
        return self


class Recipe(StrictModel):
    """A named chain of stages on one model.

    Attributes:
        gate: what the last trained model has to prove before it replaces the champion.
        tiny: path -> value, what `--tiny` sets beside the sizes; `data` is no path.
    """

    name: Annotated[str, _path_segment("recipe")]
    model: str
    seed: int = Field(default=0, ge=0, lt=2**31)
    stages: tuple[StageSpec, ...] = Field(min_length=1)
    gate: GateSpec | None = None
    rehearsal: Rehearsal | None = None
    tiny: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _inputs_name_earlier_stages(self) -> "Recipe":
        names = [stage.name for stage in self.stages]
        earlier: list[str] = []
        for stage in self.stages:
            for slot, source in stage.inputs.items():
                if source == stage.name:
                    raise ValueError(
                        f"stages.{stage.name}.inputs.{slot} = {source!r} is the stage itself: a"
                        " cycle"
                    )
                if source in names and source not in earlier:
                    raise ValueError(
                        f"stages.{stage.name}.inputs.{slot} = {source!r} comes later in the file (a"
                        " cycle or a wrong order); an input names an earlier stage:"
                        f" {', '.join(earlier) or '(none yet)'}"
                    )
                if source not in earlier:
                    raise ValueError(
                        f"stages.{stage.name}.inputs.{slot} = {source!r} is no"
                        f" stage.{nearest(source, earlier)}"
                    )
            earlier.append(stage.name)
        return self

    def stage(self, name: str) -> StageSpec:
        """The stage called `name`. Raises InputError with the valid names."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise InputError(
            f"recipe {self.name!r} has no stage"
            f" {name!r}.{nearest(name, [s.name for s in self.stages])}"
        )


def parse_recipe(text: str, where: str) -> Recipe:
    """Parse a recipe from TOML text. `where` (a path) goes into messages.

    Raises:
        InputError: broken TOML, unknown or missing key, wrong type, an input that is no earlier
            stage.
    """
    return recipe_from_table(toml_table(text, f"recipe {where}"), where)


def recipe_from_table(table: dict[str, Any], where: str) -> Recipe:
    """Build a Recipe from parsed TOML, where `stages` is a table keyed by stage name. Raises
    InputError."""
    stages = table.get("stages")
    if stages is None or stages == {}:
        raise InputError(f"recipe {where} has no stages; add [stages.distill] with a kind.")
    if not isinstance(stages, dict):
        raise InputError(
            f"recipe {where}: 'stages' must be a table such as [stages.distill] with a kind; found"
            f" {stages!r}."
        )
    for name, stage in stages.items():
        if not isinstance(stage, dict):
            raise InputError(
                f"recipe {where}: stages.{name} = {stage!r} must be a table such as"
                f" [stages.{name}]."
            )
        if "name" in stage:
            raise InputError(
                f"recipe {where}: unknown key 'stages.{name}.name'; a stage's name is its table's"
                f" name, {name!r}."
            )
    whole = with_defaults(table, where)
    listed: list[Any] = [{"name": name, **stage} for name, stage in whole["stages"].items()]
    try:
        return Recipe.parse({**whole, "stages": listed})
    except ValidationError as error:
        said = explain_validation(error, _RecipeFile, f"recipe {where}", [*whole["stages"]])
        raise InputError(said) from error


def with_defaults(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A copy of a recipe's table without `defaults`: each stage has those of its kind below its
    own.

    Raises:
        InputError: `defaults` are no table of tables, or are of a kind that no stage has.
    """
    whole = copy.deepcopy({key: value for key, value in table.items() if key != "defaults"})
    defaults = table.get("defaults", {})
    if not isinstance(defaults, dict):
        raise InputError(
            f"recipe {where}: defaults = {defaults!r} must be tables such as [defaults.sft]."
        )
    kinds = [
        stage["kind"] for stage in whole["stages"].values() if isinstance(stage.get("kind"), str)
    ]
    for kind, config in defaults.items():
        if kind not in kinds:
            choices = nearest(kind, {*kinds})
            raise InputError(f"recipe {where}: defaults.{kind}: no stage is of that kind.{choices}")
        if not isinstance(config, dict):
            raise InputError(
                f"recipe {where}: defaults.{kind} = {config!r} must be a table such as"
                f" [defaults.{kind}]."
            )
    for stage in whole["stages"].values():
        own = stage.get("config", {})
        if stage.get("kind") in [*defaults] and isinstance(own, dict):
            stage["config"] = _merged(defaults[stage["kind"]], own)
    return whole


def _merged(default: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` above `default`: where both have a table, their tables merge."""
    merged = copy.deepcopy({**default, **own})
    for key in default.keys() & own.keys():
        if isinstance(default[key], dict) and isinstance(own[key], dict):
            merged[key] = _merged(default[key], own[key])
    return merged


class _RecipeFile(Recipe):
    """The keys that a recipe's file may have."""

    defaults: dict[str, dict[str, Any]]
