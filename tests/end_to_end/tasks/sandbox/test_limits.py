"""Endless code of many kinds in the sandbox."""

import pytest

from tests.tasks.sandbox.needed import needs_sandbox
from tests.tasks.sandbox.test_limits import ENDLESS, QUICK, is_ended_by_its_cpu_seconds

pytestmark = needs_sandbox


@pytest.mark.parametrize("name", [name for name in ENDLESS if name not in QUICK])
def test_other_endless_code_is_ended_by_its_cpu_seconds(name: str) -> None:
    is_ended_by_its_cpu_seconds(name)
