"""A process' number is another one's sooner or later; at once where a container starts again."""

import subprocess
import sys

import pytest

from infra.process_identity import is_gone, this_process
from schemas.reports import Process
from tests.fakes.process import python, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells when a process began")


def test_another_process_of_the_same_number_is_not_the_one_that_was_noted() -> None:
    here = this_process()
    assert not is_gone(here)
    assert is_gone(here.model_copy(update={"began": 1}))
    assert not is_gone(here.model_copy(update={"began": None})), "a record of before says nothing"
    ended = here.model_copy(update={"pid": 2**22 + 1})
    assert is_gone(ended)
    # host names repeat; a running kernel's id does not
    assert not is_gone(ended.model_copy(update={"namespace": "another boot"}))


def test_a_process_that_has_ended_and_is_not_waited_for_is_gone() -> None:
    """As in a container whose first process waits for nobody."""
    script = (
        "from infra.process_identity import *; print(this_process().model_dump_json()); input()"
    )
    with python("-c", script, stdin=subprocess.PIPE) as child:
        noted = Process.model_validate_json(child.stdout.readline())
        assert not is_gone(noted)
        child.kill()
        until(lambda: is_gone(noted))
