"""Explains refusals of the Cloud TPU API: a small closed set of kinds, each with a text that says
what to do.

Codes are those of gRPC. The API uses one code for several things (RESOURCE_EXHAUSTED is a full
zone, a quota or too many requests a minute; NOT_FOUND and PERMISSION_DENIED may be a wrong zone),
so the words count too. They were collected from reports of users, e.g.
github.com/skypilot-org/skypilot/issues/4579, github.com/marin-community/marin/issues/87 and
/pull/1612, /pull/6198.
"""

import re
from dataclasses import dataclass
from typing import Literal

from infra.settings import TpuSettings
from infra.tpu.types import TPU_TYPES, TpuType

Kind = Literal[
    "stockout", "quota", "permission", "invalid", "disabled", "credentials", "transient", "unknown"
]

FOR_PEOPLE: tuple[Kind, ...] = ("quota", "permission", "invalid", "disabled", "credentials")
"""Kinds that a person must solve."""

_TRANSIENT = (
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "UNKNOWN",
    "ABORTED",
    "CANCELLED",
    "RESOURCE_EXHAUSTED",
)
_STOCKOUT = re.compile(
    r"no more capacity|stock.?out|out of capacity|insufficient (\w+ )?(capacity|resources)|enough"
    r" resources|RESOURCE_POOL_EXHAUSTED",
    re.I,
)
_EXPIRED = re.compile(
    r"valid.until|expired|not (be )?fulfilled|within the (specified|given) time", re.I
)
_RATE = re.compile(r"per (minute|second)|rate.?limit|too many requests|qps", re.I)
_DISABLED = re.compile(r"SERVICE_DISABLED|has not been used in project|API .*disabled", re.I)
_BILLING = re.compile(r"billing", re.I)
_PROJECT = re.compile(
    r"project\b.*(not found|does not exist|deleted|invalid)|(invalid|unknown|no such) project", re.I
)
_PLACE = re.compile(r"\blocations?\b|\bzone\b", re.I)
_PERMISSION = re.compile(
    r"permission '?tpu\.|lacks? .*permission|tpu\.[a-zA-Z]+\.(create|get|list|delete)", re.I
)
_ACT_AS = re.compile(r"actAs|service.?account", re.I)
_LOGIN = re.compile(r"reauth|invalid_grant|invalid_rapt|RefreshError", re.I)
"""Words of gRPC for credentials that have run out, under the code of an outage: "Getting metadata
from plugin failed with error: ..."."""


@dataclass(frozen=True)
class Problem:
    """Why a request fails: the kind of problem, and `text` for people, which says what to do."""

    kind: Kind
    text: str


def explain(
    code: str, words: str, zone: str, project: str, kind: TpuType, settings: TpuSettings
) -> Problem:
    """The meaning of a refusal.

    Args:
        code: gRPC's name of it, e.g. `RESOURCE_EXHAUSTED`.
        words: the API's own.
        zone, project, kind, settings: what was asked for.
    """
    words = " ".join(words.split())[:500] or "no reason given"
    what = f"{kind.name} ({settings.tier}) in {zone}"
    if _STOCKOUT.search(words) or (
        code in ("DEADLINE_EXCEEDED", "FAILED_PRECONDITION") and _EXPIRED.search(words)
    ):
        return Problem("stockout", f"{what}: the zone has no free TPUs ({words})")
    if code == "RESOURCE_EXHAUSTED" and "quota" in words.lower() and not _RATE.search(words):
        return Problem(
            "quota",
            f"{what}: project {project} has no quota left for this ({words}). Ask for more at"
            f" https://console.cloud.google.com/iam-admin/quotas?project={project} (service Cloud"
            f" TPU API), name a zone where you have some (LYCEUM_ZONES; {kind.name} is offered in"
            f" {', '.join(kind.zones)}), or choose another tier (LYCEUM_TPU_TIER).",
        )
    if _DISABLED.search(words):
        text = (
            f"the Cloud TPU API is not enabled in project {project}. Enable it: gcloud services"
            " enable tpu.googleapis.com"
        )
        return Problem("disabled", f"{text} --project={project} ({words})")
    if code in ("PERMISSION_DENIED", "FAILED_PRECONDITION", "NOT_FOUND") and _BILLING.search(words):
        return Problem(
            "disabled",
            f"billing is not enabled for project {project}. Enable it in the Cloud console"
            f" ({words})",
        )
    if code in ("PERMISSION_DENIED", "INVALID_ARGUMENT", "NOT_FOUND") and _PROJECT.search(words):
        text = (
            f"there is no project {project!r} that this account may use ({words}). Name another:"
            " LYCEUM_TPU_PROJECT=PROJECT"
        )
        return Problem("disabled", text)
    if "vmExternalIpAccess" in words:
        text = f"{what}: the organisation allows no public addresses ({words})"
        return Problem(
            "invalid", f"{text}. Set LYCEUM_TPU_EXTERNAL_IPS=false; the network needs Cloud NAT"
        )
    if "quota project" in words:
        text = f"the credentials name no project to count requests for ({words}). Name it: gcloud"
        return Problem(
            "credentials", f"{text} auth application-default set-quota-project {project}"
        )
    if code == "UNAUTHENTICATED" or (code in _TRANSIENT and _LOGIN.search(words)):
        return credentials_problem(words)
    if code == "PERMISSION_DENIED" and (_ACT_AS.search(words) or _PERMISSION.search(words)):
        return Problem("permission", _permission(words, project, settings))
    if code in ("PERMISSION_DENIED", "NOT_FOUND", "INVALID_ARGUMENT") and (
        invalid := _invalid(words, zone, kind, settings)
    ):
        return Problem("invalid", invalid)
    if code == "PERMISSION_DENIED":
        return Problem("permission", _permission(words, project, settings))
    if code in ("INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "UNIMPLEMENTED"):
        return Problem(
            "invalid",
            f"{what}: the Cloud TPU API refuses the request: {words}. See the LYCEUM_TPU_ settings"
            " (infra/settings.py)",
        )
    if code in _TRANSIENT:
        return Problem("transient", f"the Cloud TPU API does not answer ({code}: {words})")
    return Problem("unknown", f"{what}: the Cloud TPU API answers {code}: {words}")


def credentials_problem(words: str) -> Problem:
    return Problem(
        "credentials",
        f"there are no valid Google Cloud credentials ({words}). Log in: gcloud auth"
        " application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file.",
    )


def _invalid(words: str, zone: str, kind: TpuType, settings: TpuSettings) -> str | None:
    """The wrong part of the request, and valid values; None if unknown."""
    low, offered = words.lower(), f"{kind.name} is offered in {', '.join(kind.zones)}"
    if "reservation" in low:
        named = settings.reservation or "(the default)"
        return (
            f"the reservation {named} cannot be used in {zone} ({words}). Set"
            " LYCEUM_TPU_RESERVATION, or LYCEUM_TPU_TIER=spot."
        )
    if "runtime" in low or "software version" in low:
        used = (
            f"the runtime version {settings.runtime or kind.runtime!r} does not exist for"
            f" {kind.name} in {zone}"
        )
        return f"{used} ({words}). Valid: {kind.runtime}; set LYCEUM_TPU_RUNTIME."
    if "accelerator" in low:
        here = ", ".join(name for name, one in TPU_TYPES.items() if zone in one.zones) or "nothing"
        return (
            f"{kind.accelerator} is not to be had in {zone} ({words}). {offered}; known to be"
            f" offered in {zone}: {here}."
        )
    if "subnet" in low or "network" in low:
        used = settings.subnetwork or settings.network or "default"
        return (
            f"the network {used!r} cannot be used in {zone} ({words}). Set LYCEUM_TPU_NETWORK and"
            " LYCEUM_TPU_SUBNETWORK."
        )
    if "disk" in low:
        return (
            f"the disk {settings.data_disk!r} cannot be used in {zone} ({words}). Set"
            " LYCEUM_TPU_DATA_DISK."
        )
    if _PLACE.search(words):
        return (
            f"{zone} is no zone that this project may take TPUs from ({words}). {offered}; set"
            " LYCEUM_ZONES."
        )
    return None


def _permission(words: str, project: str, settings: TpuSettings) -> str:
    if _ACT_AS.search(words):
        account = (
            settings.service_account
            or f"PROJECT_NUMBER-compute@developer.gserviceaccount.com, the default of {project},"
        )
        return (
            f"this account may not give the TPU the identity {account} ({words}). Grant"
            " roles/iam.serviceAccountUser: gcloud iam service-accounts add-iam-policy-binding"
            f" {settings.service_account or 'ACCOUNT'} --member=user:YOU"
            " --role=roles/iam.serviceAccountUser"
        )
    return (
        f"this account may not manage TPUs in project {project} ({words}). Grant roles/tpu.admin:"
        f" gcloud projects add-iam-policy-binding {project} --member=user:YOU"
        " --role=roles/tpu.admin"
    )
