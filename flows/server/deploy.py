"""The deployments: the flows `post-train` and `nightly` in Prefect's UI, API and scheduler.
prefect.yaml has the same two for teams that keep theirs in git.

`lyceum serve` registers them with its own server, `lyceum deploy` with the configured one.
Registering again updates the form and keeps people's changes in the UI: the deployment's own
parameters, and the schedule, which begins switched off.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx

from flows.recipe.parameters import form, recipe_choices
from flows.server.exposure import choices, exposures
from flows.server.prefect_api import QUIET, api_problem, bypass_proxy, configured_api, reaching
from infra.context import context
from infra.distribution import DISTRIBUTION
from infra.secrets import mask
from schemas.base import InputError, nearest

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import DeploymentSchedule

NIGHT = "0 2 * * *"
"""The time at which `nightly` runs once its schedule is on, by the clock of the machine that
registered it."""

TAG = "lyceum"
"""Both deployments have it; `nightly` also its own name, for automations."""

POOL_TYPE = "process"
"""The type of work pools whose workers start flows as processes on a machine where Lyceum is
installed; other types need images."""


@dataclass(frozen=True)
class Deployed:
    """The deployments' names (`flow/deployment`) with the paths of their pages in the UI, and the
    exposures of that Prefect."""

    pages: dict[str, str]
    unprotected: list[str]


def deploy(pool: str, recipes: Path | None = None) -> Deployed:
    """Register the deployments with the configured Prefect API and a work pool of it.

    If the pool's template lets a deployment set variables, runs keep their artifacts in this
    process' LYCEUM_STORE; all other settings are those of the worker's machine.

    Args:
        recipes: a directory whose TOML files are offered in the form; the paths have to exist where
            the worker is.

    Raises:
        InputError: no API is configured, it does not answer or asks for a key, the pool does not
            exist or cannot run the flows, the store is a relative path, or the directory has no
            recipes.
    """
    offered = recipe_choices(recipes)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    bypass_proxy()
    from prefect.client.orchestration import get_client

    api = configured_api()
    if api is None:
        raise InputError(
            "no Prefect API is configured; set PREFECT_API_URL, or choose a profile with `prefect"
            " profile use NAME`."
        )
    if problem := api_problem(api):
        raise InputError(
            f"the Prefect API at {mask(api.url)} (PREFECT_API_URL, or your Prefect profile)"
            f" {problem}"
        )
    store = context().settings.store
    if "://" not in store and not Path(store).is_absolute():
        raise InputError(
            f"LYCEUM_STORE={store} is a relative path, but workers start runs in directories of"
            " their own: set it to gs://bucket/prefix or to an absolute path on the worker's"
            " machine."
        )
    try:
        with reaching(api), get_client(sync_client=True) as client:
            template = _check_pool(client, pool, api.url)
            variables = {"env": {"LYCEUM_STORE": store}} if "env" in choices(template) else {}
            return Deployed(
                register(client, pool, store, offered, variables), exposures(api, template)
            )
    except httpx.HTTPError as error:
        raise InputError(
            f"the Prefect API at {mask(api.url)} refused: {mask(str(error))}"
        ) from error


def register(
    client: "SyncPrefectClient",
    pool: str,
    store: str,
    recipes: Sequence[dict[str, Any]],
    job_variables: dict[str, Any],
) -> dict[str, str]:
    """Register both deployments with a work pool that can run them. `recipes`: `recipe_choices`;
    `job_variables`: the pool's (command, env, ...)."""
    from flows.nightly import nightly
    from flows.post_train import post_train

    kinds = ((post_train, None), (nightly, nightly_schedule()))
    registered = [
        _register(client, flow, pool, store, recipes, job_variables, schedule)
        for flow, schedule in kinds
    ]
    return {name: f"/deployments/deployment/{deployment}" for name, deployment in registered}


def _register(
    client: "SyncPrefectClient",
    flow: "Flow[..., Any]",
    pool: str,
    store: str,
    recipes: Sequence[dict[str, Any]],
    job_variables: dict[str, Any],
    schedule: "DeploymentScheduleCreate | None",
) -> tuple[str, UUID]:
    """Register one flow. A scheduled one runs once at a time and skips runs that would begin
    meanwhile, so that nights do not queue up."""
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.exceptions import ObjectNotFound

    name, schema = f"{flow.name}/{flow.name}", form(flow, store, recipes)
    tags = [TAG, flow.name] if schedule else [TAG]
    try:
        existing = client.read_deployment_by_name(name)
    except ObjectNotFound:
        existing = None
    parameters = {
        key: value
        for key, value in (existing.parameters if existing else {}).items()
        if key in schema["properties"]
    }
    registered = client.create_deployment(
        flow_id=client.create_flow_from_name(flow.name),
        name=flow.name,
        version=version(DISTRIBUTION),
        description=flow.description,
        # a file's directory would come first on the import path
        entrypoint=f"{flow.fn.__module__}.{flow.fn.__name__}",
        work_pool_name=pool,
        job_variables=job_variables,
        tags=sorted({*(existing.tags if existing else ()), *tags}),
        parameters=parameters,
        parameter_openapi_schema=schema,
        enforce_parameter_schema=True,
        schedules=(
            [_as_it_is(one) for one in existing.schedules]
            if existing
            else [schedule]
            if schedule
            else None
        ),
        concurrency_limit=1 if schedule else None,
        concurrency_options=(
            ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
            if schedule
            else None
        ),
        pull_steps=[],
    )
    return name, registered


def _as_it_is(schedule: "DeploymentSchedule") -> "DeploymentScheduleCreate":
    """A deployment's present values, since Prefect removes those that are not sent again."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    return DeploymentScheduleCreate.model_validate(
        schedule.model_dump(include=set(DeploymentScheduleCreate.model_fields))
    )


def nightly_schedule() -> "DeploymentScheduleCreate":
    """Every night at two; switched off, because nobody expects a machine to start training by
    itself."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule
    from tzlocal import get_localzone_name

    return DeploymentScheduleCreate(
        schedule=CronSchedule(cron=NIGHT, timezone=get_localzone_name()), active=False
    )


def _check_pool(client: "SyncPrefectClient", pool: str, url: str) -> dict[str, Any]:
    """Check that a pool exists and can run the flows; returns its base job template. Raises
    InputError."""
    found = {one.name: one for one in client.read_work_pools()}
    pools = {name: one.type for name, one in found.items()}
    suitable = [name for name, kind in pools.items() if kind == POOL_TYPE]
    if pool not in pools:
        fix = f"`prefect work-pool create {pool} --type {POOL_TYPE}` makes it."
        raise InputError(
            f"the Prefect API at {mask(url)} has no work pool {pool!r};"
            f" {fix}{nearest(pool, suitable)}"
        )
    if pools[pool] != POOL_TYPE:
        raise InputError(
            f"work pool {pool!r} is of type {pools[pool]}, which would need an image; Lyceum runs"
            f" in pools of type {POOL_TYPE}, whose workers run where Lyceum is"
            f" installed.{nearest(pool, suitable)}"
        )
    return found[pool].base_job_template
