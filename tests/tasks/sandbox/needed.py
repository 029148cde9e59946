"""Whether this machine lets a sandbox live: a mark for tests that need one, which says why it does
not."""

import pytest

from schemas.base import InputError
from tasks.sandbox.bubblewrap import require_sandbox


def _problem() -> str:
    try:
        require_sandbox()
    except InputError as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.skipif(bool(_problem()), reason=_problem() or "a sandbox works here")
