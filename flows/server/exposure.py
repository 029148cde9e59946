"""Finds what somebody's own Prefect server leaves open to people who can reach it, and to web
pages, by asking the server.

`lyceum deploy` reports it. `flows.server.guard` and `flows.server.key` close servers of ours.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from flows.server.key import Api

FOREIGN = "http://foreign.invalid"
"""An origin that belongs to nobody."""

EXECUTES = ("command", "env", "working_dir")
"""Variables of a process pool's template by which the starter of a run chooses what it executes."""


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
