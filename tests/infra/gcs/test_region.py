"""The region guard: which zones are near a bucket, and what is said when they are not."""

import pytest

from infra.gcs.region import region_of, require_near
from schemas.base import InputError

URI = "gs://team-store/lyceum"


NEAR = """
US-CENTRAL1        us-central1-a us-central1-ai1a     us-central2-b us-east1-d europe-west4-a
us-central1        us-central1-b us-central1-f        us-central10-b
US                 us-west4-a us-east5-a              europe-west4-b northamerica-northeast1-a
EU                 europe-west4-b europe-north1-a     us-east1-b me-west1-a
ASIA               asia-east1-c asia-northeast1-b     europe-west4-a us-west1-c
NAM4               us-central1-a us-east1-d           us-east5-a us-west1-b
EUR4               europe-north1-a europe-west4-a     europe-west1-b
ASIA1              asia-northeast1-b asia-northeast2-a  asia-east1-c
US-EAST1+US-WEST1  us-east1-d us-west1-a              us-central1-a us-east5-a
"""
"""Where a bucket lies, two zones near it, and some that are far."""


@pytest.mark.parametrize("line", [*NEAR.strip().splitlines(), "MARS us-central1-a"])
def test_which_zones_are_near(line: str) -> None:
    location, *zones = line.split()
    near, far = ([], zones) if location == "MARS" else (zones[:2], zones[2:])
    for zone in near:
        require_near(URI, location, zone)
    for zone in far:
        with pytest.raises(InputError):
            require_near(URI, location, zone)
        require_near(URI, location, zone, allowed=True)


@pytest.mark.parametrize(
    ("location", "described"),
    [
        ("US-CENTRAL1", "the region us-central1"),
        ("EU", "the multi-region EU"),
        ("NAM4", "the dual-region NAM4 (us-central1 and us-east1)"),
        ("US-EAST1+US-WEST1", "the dual-region US-EAST1+US-WEST1 (us-east1 and us-west1)"),
    ],
)
def test_a_far_bucket_is_explained(location: str, described: str) -> None:
    with pytest.raises(InputError) as refused:
        require_near(URI, location, "asia-east1-c")
    parts = (URI, described, "asia-east1-c", "--location=asia-east1", "LYCEUM_FAR_BUCKET=1")
    assert [part for part in parts if part not in str(refused.value)] == []


@pytest.mark.parametrize(
    "zone", ["", "us-central1", "US-CENTRAL1-A", "us-central1-a ", "us-central1-ab", "a-b1-c/../d"]
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    for allowed in (False, True):
        with pytest.raises(InputError, match="LYCEUM_ZONES=us-central1-a"):
            require_near(URI, "US-CENTRAL1", zone, allowed=allowed)


def test_the_region_of_a_zone() -> None:
    assert region_of("europe-west12-b") == "europe-west12"
    assert region_of("us-south1-ai1b") == "us-south1"
