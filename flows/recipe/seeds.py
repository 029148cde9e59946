"""Runs a recipe under several seeds, `lyceum run --seeds N`, whose differences are overrides that
anybody could type.

Seeds count up from the recipe's own, so the first run is the recipe itself. Stages that produce
data keep their seed: teachers' rows, their mix, the held-out prompts and rubrics are the same in
all runs, made once, and answers can be paired. Stages that train or ask a model take the new seed:
random first weights, adapters, the order of rows, every sampled answer. The runs share artifacts by
their keys.
"""

from flows.recipe.resolve import ResolvedRecipe
from schemas.base import InputError
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing, training_kinds

MOST = 100
SHARED = kinds_producing(Product.EXAMPLES, Product.ROWS, Product.RUBRICS)
"""Kinds whose stages keep their seed."""


def check_seeds(count: int) -> None:
    """Raises InputError: too few seeds for a mean and an interval."""
    if not 2 <= count <= MOST:
        one = " One run is `lyceum run` without --seeds." if count == 1 else ""
        raise InputError(
            f"--seeds {count}: give 2 to {MOST}, since an interval needs two; 5 tell much more."
            f"{one}"
        )


def shared_stages(resolved: ResolvedRecipe) -> list[str]:
    """The stages that are the same under every seed, in file order."""
    found: list[str] = []
    for stage in resolved.stages:
        if stage.kind in SHARED and {*stage.inputs.values()} <= {*found}:
            found.append(stage.name)
    return found


def overrides_by_seed(resolved: ResolvedRecipe, count: int) -> dict[int, tuple[str, ...]]:
    """Seed -> the overrides of its run beside those of all runs.

    Raises:
        InputError: there are not so many seeds, no stage trains a model, or a stage that trains one
            has a seed of its own.
    """
    recipe, first = resolved.recipe, resolved.recipe.seed
    trained = [stage for stage in recipe.stages if stage.kind in training_kinds()]
    if not trained:
        raise InputError(
            f"--seeds: no stage of recipe {recipe.name!r} trains a model, so its runs would not"
            " differ; leave it out."
        )
    for stage in trained:
        if "seed" in stage.config:
            raise InputError(
                f"--seeds: stages.{stage.name}.config.seed = {stage.config['seed']!r} is the"
                " stage's own, which the recipe's seed does not change; leave it out of the recipe."
            )
    last, limit = first + count - 1, 2**31 - 1
    if last > limit:
        raise InputError(
            f"--seeds {count}: the last seed would be {last}, above {limit}; begin lower, e.g."
            " --set seed=0."
        )
    own_seeds = [
        f"stages.{one.name}.config.seed={one.config_json['seed']}"
        for one in resolved.stages
        if one.kind in SHARED and "seed" in one.config_json
    ]
    return {seed: (f"seed={seed}", *own_seeds) for seed in range(first, last + 1)}
