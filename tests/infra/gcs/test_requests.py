"""How long a bucket that does not answer is asked again."""

import ssl
import time
from collections.abc import Callable

import pytest
from requests.exceptions import SSLError

from infra.gcs.requests import Requests, Timeout
from schemas.base import InputError


class Clock:
    """A clock that moves only when somebody says so; waiting is no time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr("threading.Event.wait", lambda event, seconds: self.pass_(seconds))

    def pass_(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def broken(clock: Clock, *lasting: float) -> tuple[list[float], Callable[[Timeout], str]]:
    """The time-outs of its calls, and a call that breaks off after so many seconds each time; then
    it answers."""
    asked: list[float] = []

    def call(timeout: Timeout) -> str:
        asked.append(timeout[0])
        if len(asked) > len(lasting):
            return "answer"
        clock.pass_(lasting[len(asked) - 1])
        raise ConnectionResetError("reset")

    return asked, call


def test_a_process_that_stood_still_asks_again(clock: Clock) -> None:
    """A request was under way when the process was stopped for an hour (Ctrl-Z); its connection is
    gone, and the bucket was asked once."""
    asked, call = broken(clock, 3600.0)
    assert Requests("gs://bucket", "bucket", 900.0, str).ask(call) == "answer"
    assert asked[0] == 60.0


def test_a_bucket_that_is_silent_is_given_up_in_time(clock: Clock) -> None:
    asked, call = broken(clock, *[60.0] * 100)
    with pytest.raises(ConnectionError, match="did not answer for 15 min"):
        Requests("gs://bucket", "bucket", 900.0, str).ask(call)
    assert 900 - 90 <= clock.now <= 960
    assert len(asked) < 20


def test_who_is_not_trusted_is_not_asked_for_a_quarter_of_an_hour(clock: Clock) -> None:
    """A clock that is wrong, or a company's proxy; once something has answered it is a network that
    comes back."""
    bucket, answers = Requests("gs://bucket", "bucket", 900.0, str), ["answer"]

    def call(timeout: Timeout) -> str:
        if answers:
            return answers.pop()
        try:
            raise ssl.SSLCertVerificationError(1, "certificate is not yet valid")
        except ssl.SSLError as error:
            raise SSLError(error) from error

    answered = Requests("gs://bucket", "bucket", 900.0, str)
    assert answered.ask(call) == "answer"
    with pytest.raises(InputError, match=r"\(certificate is not yet valid\). Is its clock right?"):
        bucket.ask(call)
    assert clock.now == 0
    with pytest.raises(ConnectionError, match="did not answer for 15 min"):
        answered.ask(call)
