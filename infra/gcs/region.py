"""Compare where a bucket lies with where the machines are: bytes that cross regions are slow and
cost money.

Locations as the service names them: https://cloud.google.com/storage/docs/locations. Prices:
https://cloud.google.com/storage/pricing#network.
"""

import re

from schemas.base import InputError

_ZONE = re.compile(r"([a-z]+-[a-z]+[0-9]+)-(?:ai[0-9]+)?[a-z]")
_MULTI_REGIONS = {"US": "us", "EU": "europe", "ASIA": "asia"}
"""Name -> the first part of the names of the regions on that continent."""
_DUAL_REGIONS = {
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "NAM4": ("us-central1", "us-east1"),
}


def require_near(uri: str, location: str, zone: str, *, allowed: bool = False) -> None:
    """Refuse to run jobs far from their bucket.

    Args:
        uri: the store, for the message.
        location: the bucket's, as `infra.gcs.bucket.Bucket.location` says it: `US-CENTRAL1`, `US`,
            `NAM4`, or `US-EAST1+US-WEST1`.
        zone: where the jobs run, e.g. `us-central1-a`.
        allowed: far is well too, LYCEUM_FAR_BUCKET.

    Raises:
        InputError: `zone` is no zone; or the bucket is elsewhere and that is not allowed.
    """
    region = region_of(zone)
    if allowed or _is_near(location.upper(), region):
        return
    raise InputError(
        f"store {uri}: its bucket lies in {_described(location.upper())}, and the jobs run in zone"
        f" {zone} (region {region}). Every byte would cross regions: slow, and 0.02 (on one"
        " continent) to 0.14 (between continents) dollars per GB. Use a bucket in that region,"
        f" gcloud storage buckets create gs://NAME --location={region}, or machines in another"
        " zone, or allow it: LYCEUM_FAR_BUCKET=1."
    )


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`. Raises InputError for anything but a zone."""
    match = _ZONE.fullmatch(zone)
    if not match:
        raise InputError(
            f"zone {zone!r} is no zone of Google Cloud. A zone is a region and a letter, for"
            " example LYCEUM_ZONES=us-central1-a."
        )
    return match[1]


def _is_near(location: str, region: str) -> bool:
    if location in _MULTI_REGIONS:
        return region.split("-")[0] == _MULTI_REGIONS[location]
    return region in _regions(location)


def _regions(location: str) -> tuple[str, ...]:
    return _DUAL_REGIONS.get(location) or tuple(location.lower().split("+"))


def _described(location: str) -> str:
    if location in _MULTI_REGIONS:
        return f"the multi-region {location}"
    regions = _regions(location)
    if len(regions) == 1:
        return f"the region {regions[0]}"
    return f"the dual-region {location} ({' and '.join(regions)})"
