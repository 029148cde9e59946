"""The deployments: the flows `post-train` and `nightly` in Prefect's UI, API and scheduler.
prefect.yaml has the same two for teams that keep theirs in git.

`lyceum serve` registers them with its own server, `lyceum deploy` with the configured one.
Registering again updates the form and keeps people's changes in the UI: the deployment's own
parameters, as far as the form takes them, its concurrency limit, and the schedule, which begins
switched off.

`lyceum deploy` also reports what somebody's own server leaves open to people who can reach it, and
to web pages, by asking it. `flows.server.guard` and `flows.server.key` close servers of ours.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import httpx

from flows.cli.answer import say
from flows.recipe.parameters import form, recipe_choices
from flows.server.key import Api
from flows.server.prefect_api import QUIET, bypass_proxy, reaching, usable_api
from infra.context import context
from infra.distribution import DISTRIBUTION
from infra.secrets import mask
from schemas.base import InputError, nearest

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

NIGHT = "0 2 * * *"
"""The time at which `nightly` runs once its schedule is on, by the clock of the machine that
registered it."""

TAG = "lyceum"
"""Both deployments have it; `nightly` also its own name, for automations."""

POOL_TYPE = "process"
"""The type of work pools whose workers start flows as processes on a machine where Lyceum is
installed; other types need images."""

FOREIGN = "http://foreign.invalid"
"""An origin that belongs to nobody."""

EXECUTES = ("command", "env", "working_dir")
"""Variables of a process pool's template by which the starter of a run chooses what it executes."""


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

    api = usable_api()
    if api is None:
        raise InputError(
            "no Prefect API is configured; set PREFECT_API_URL, or choose a profile with `prefect"
            " profile use NAME`."
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
            shown = store if variables else "LYCEUM_STORE where its worker runs"
            return Deployed(
                register(client, pool, shown, offered, variables), exposures(api, template)
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
    """Register both deployments with a work pool that can run them; returns their names with the
    paths of their pages.

    Args:
        store: the default, for people.
        recipes: the `recipe_choices`.
        job_variables: the pool's (command, env, ...).

    Raises:
        InputError: as `_night`.
    """
    from prefect.exceptions import ObjectNotFound

    from flows.nightly import nightly
    from flows.post_train import post_train

    pages = {}
    for flow in (post_train, nightly):
        name, schema = f"{flow.name}/{flow.name}", form(flow, store, recipes)
        tags = {TAG, flow.name} if flow is nightly else {TAG}
        try:
            existing = client.read_deployment_by_name(name)
        except ObjectNotFound:
            own = _night() if flow is nightly else {}
        else:  # Prefect removes what is not sent again
            tags |= {*existing.tags}
            own = _kept(name, existing, schema)
        registered = client.create_deployment(
            flow_id=client.create_flow_from_name(flow.name),
            name=flow.name,
            version=version(DISTRIBUTION),
            description=flow.description,
            # a file's directory would come first on the import path
            entrypoint=f"{flow.fn.__module__}.{flow.fn.__name__}",
            work_pool_name=pool,
            job_variables=job_variables,
            tags=sorted(tags),
            parameter_openapi_schema=schema,
            enforce_parameter_schema=True,
            pull_steps=[],
            **own,
        )
        pages[name] = f"/deployments/deployment/{registered}"
    return pages


def _kept(name: str, existing: "DeploymentResponse", schema: dict[str, Any]) -> dict[str, Any]:
    """What people may have changed of a deployment. Parameters that its new form refuses are left
    out, which is said; its schedules are switched off then, for what else would run at night is not
    what was meant."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.utilities.schema_tools import validate

    parameters, off = dict[str, Any](), dict[str, Any]()
    for key, value in existing.parameters.items():
        if problems := validate({key: value}, schema, preprocess=False):
            off = {"active": False}
            say(
                f"{name}: its parameter {key} is left out and its schedules are switched off, since"
                f" the form refuses {value!r}: {problems[0].message}. Set it anew in the UI."
            )
        else:
            parameters[key] = value
    limit, fields = existing.global_concurrency_limit, {*DeploymentScheduleCreate.model_fields}
    return {
        "parameters": parameters,
        "schedules": [
            DeploymentScheduleCreate.model_validate(one.model_dump(include=fields) | off)
            for one in existing.schedules
        ],
        "concurrency_limit": limit.limit if limit else None,
        "concurrency_options": existing.concurrency_options,
    }


def _night() -> dict[str, Any]:
    """What `nightly` begins with. It runs once at a time and skips nights that would begin
    meanwhile, so that they do not queue up. Its schedule is switched off, because nobody expects a
    machine to start training by itself.

    Raises InputError: the time zone of this machine's clock has no name, which Prefect would take
    for UTC.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule
    from tzlocal import get_localzone_name

    now = datetime.now(UTC)
    try:
        zone = ZoneInfo(get_localzone_name() or "UTC")
        schedule = CronSchedule(cron=NIGHT, timezone=zone.key)
        # a TZ that the system cannot read is meant; else now, and when changed clocks have been
        known = os.environ.get("TZ") == zone.key or all(
            at.astimezone(zone).utcoffset() == at.astimezone().utcoffset()
            for at in (now, now + timedelta(days=182))
        )
    except (ValueError, ZoneInfoNotFoundError):
        known = False
    if not known:
        raise InputError(
            "the time zone of this machine's clock has no name that Prefect knows, so that nightly"
            " cannot be scheduled by it. Set TZ to one, such as TZ=Europe/Berlin or TZ=UTC, and run"
            " the same command again."
        )
    strategy = ConcurrencyLimitStrategy.CANCEL_NEW
    return {
        "schedules": [DeploymentScheduleCreate(schedule=schedule, active=False)],
        "concurrency_limit": 1,
        "concurrency_options": ConcurrencyOptions(collision_strategy=strategy),
    }


def _check_pool(client: "SyncPrefectClient", pool: str, url: str) -> dict[str, Any]:
    """Check that a pool exists and can run the flows; returns its base job template. Raises
    InputError."""
    pools = {one.name: one for one in client.read_work_pools()}
    suitable = [name for name, one in pools.items() if one.type == POOL_TYPE]
    if pool not in pools:
        fix = f"`prefect work-pool create {pool} --type {POOL_TYPE}` makes it."
        raise InputError(
            f"the Prefect API at {mask(url)} has no work pool {pool!r};"
            f" {fix}{nearest(pool, suitable)}"
        )
    if (kind := pools[pool].type) != POOL_TYPE:
        raise InputError(
            f"work pool {pool!r} is of type {kind}, which would need an image; Lyceum runs in pools"
            f" of type {POOL_TYPE}, whose workers run where Lyceum is"
            f" installed.{nearest(pool, suitable)}"
        )
    return pools[pool].base_job_template


def exposures(api: Api, template: Mapping[str, Any]) -> list[str]:
    """List what is not protected, one sentence each, with the remedy.

    Args:
        template: the work pool's base job template.
    """
    try:
        with httpx.Client(base_url=api.url, timeout=10) as client:
            found = list(_of_server(client))
    except httpx.HTTPError as error:
        found = [f"what the API tells strangers could not be measured ({type(error).__name__})"]
    if chosen := choices(template):
        found.append(
            f"a run may choose its {', '.join(chosen)}, and so what its worker executes: take them"
            " out of the base job template of the pool (variables, and env altogether), and set"
            " LYCEUM_STORE where the worker runs"
        )
    return found


def choices(template: Mapping[str, Any]) -> list[str]:
    """The variables of `EXECUTES` that a run may choose under a base job template. An empty
    template becomes Prefect's own, which is open.

    Prefect adds a run's `env` even to a fixed one.
    """
    if not template:
        return list(EXECUTES)
    variables = template.get("variables", {}).get("properties", {})
    fixed = template.get("job_configuration", {})
    chosen = [name for name in EXECUTES if name in variables and f"{{{{ {name} }}}}" in str(fixed)]
    return sorted({*chosen, *(["env"] if isinstance(fixed.get("env"), dict) else [])})


def _of_server(client: httpx.Client) -> Iterator[str]:
    """Ask like a stranger: without a key, from a foreign page, under a foreign name."""

    def admits(**headers: str) -> bool:
        asked = client.post("/deployments/filter", json={"limit": 1}, headers=headers)
        return asked.status_code == 200

    if open_to_all := admits():
        yield (
            "the API asks for no key, so whoever reaches it may start runs: set"
            " PREFECT_SERVER_API_AUTH_STRING where the server runs, and PREFECT_API_AUTH_STRING"
            " here and for its workers"
        )
    asks = {
        "Origin": FOREIGN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    allowed = client.options("/deployments/filter", headers=asks).headers.get(
        "access-control-allow-origin"
    )
    if allowed in ("*", FOREIGN):
        yield (
            f"it answers Access-Control-Allow-Origin: {allowed} to a page of another origin, which"
            " may then read what it is told: set PREFECT_SERVER_CORS_ALLOWED_ORIGINS to the origin"
            " of its UI"
        )
    if open_to_all and admits(Host="foreign.invalid"):
        yield (
            "it answers to any host name, so a page whose name is rebound to its address may use"
            " it: a key, or a proxy that checks Host"
        )
