"""A teacher behind an endpoint: the numbers that it has in process, asked for once, of the very
tokens; what is not said is left out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError, StageFailed
from tasks.data.packing import Text
from tasks.distillation.endpoint_teacher import EndpointTeacher, EndpointTeacherConfig
from tasks.distillation.student_samples import gemma_teacher
from tasks.models.loading import LoadedModel
from tasks.reinforcement.rollout import tokens_there
from tests.fakes.scoring_server import Fault, ScoringServer
from tests.tasks.stages.bench import TEACHER, model
from tests.tasks.stages.test_on_policy_distill import config

pytestmark = pytest.mark.usefixtures("one_layer")

P, R = 24, 8
TABLE = {"name": "endpoint", "provider": "test", "model": "gemma3-tiny"}


@pytest.fixture(scope="module")
def teacher() -> LoadedModel:
    return model(TEACHER, 1)


@pytest.fixture
def texts() -> list[Text]:
    """Six prompts and responses of different lengths."""
    random = np.random.Generator(np.random.Philox(0))
    prompts, responses = (random.integers(6, 1000, (6, n)).tolist() for n in (P, R))
    return [(prompts[row][3 * row :], responses[row][: row + 1]) for row in range(6)]


@pytest.fixture
def serve(teacher, monkeypatch) -> Iterator[Callable[..., ScoringServer]]:
    """A function that starts a server which goes wrong as it is told, and lets the provider `test`
    be there."""
    running: list[ScoringServer] = []

    def start(fault: Fault = lambda number, answer: None) -> ScoringServer:
        server = ScoringServer(teacher, P + R, fault).__enter__()
        running.append(server)
        monkeypatch.setenv("TEST_BASE_URL", server.url)
        return server

    yield start
    for server in running:
        server.__exit__()


def asked(
    store: Path, texts: list[Text], before: dict[str, float] | None = None, **changes: Any
) -> tuple[np.ndarray, dict[str, float]]:
    """The endpoint's log-probabilities, and what they have cost; `before`: what an attempt that is
    continued had cost."""
    table = EndpointTeacherConfig.parse({**TABLE, **changes})
    endpoint = EndpointTeacher(table, Answers(open_store(store)), response_length=R, account="test")
    if before:
        endpoint.restore(before)
    try:
        return endpoint.score(texts).logps, endpoint.costs()
    finally:
        endpoint.close()


def test_an_endpoint_says_what_the_same_teacher_says_in_process_and_is_asked_once(
    serve, teacher, texts, tmp_path
):
    server = serve()
    logps, costs = asked(tmp_path, texts, input_usd_per_million=2.0)
    own = gemma_teacher(config(batch_size=6), teacher).score(texts).logps
    np.testing.assert_allclose(logps, own, rtol=1e-4, atol=1e-5)
    assert not logps[~tokens_there(texts, R)].any()
    tokens = sum(len(prompt) + len(response) for prompt, response in texts)
    assert costs == {
        "teacher_responses": 6,
        "teacher_unanswered": 0,
        "teacher_other_tokens": 0,
        "teacher_usd": pytest.approx(2e-6 * tokens),
        "teacher_tokens": tokens,
    }
    again, _ = asked(tmp_path, texts, input_usd_per_million=2.0)
    np.testing.assert_array_equal(again, logps)
    assert len(server.seen) == 6
    assert {len(body["prompt"]) for body in server.seen} == {P + 1 - 2 * row for row in range(6)}
    kept = [path.read_text() for path in tmp_path.rglob("answers/*/*")]
    assert len(kept) == 6
    assert not any("top_logprobs" in text for text in kept)


def test_what_is_refused_or_about_other_tokens_is_left_out(serve, texts, tmp_path):
    """One request is bad, one answer is about other tokens, one of one token less, one lacks a
    number: two responses are left."""

    def fault(number: int, answer: dict[str, Any]) -> int | dict[str, Any] | None:
        logprobs = answer["choices"][0]["logprobs"]
        row = (P + 1 - len(logprobs["tokens"])) // 2
        if row == 1:
            logprobs["tokens"][-1] = "token_id:5"
        if row == 2:
            logprobs["tokens"].pop(), logprobs["token_logprobs"].pop()
        if row == 3:
            logprobs["token_logprobs"][4] = None
        return 400 if row == 0 else answer

    serve(fault)
    logps, costs = asked(tmp_path, texts)
    assert np.isnan(logps).all(axis=1).tolist() == [True, True, True, True, False, False]
    assert not np.isnan(logps[4:]).any()
    assert (costs["teacher_unanswered"], costs["teacher_other_tokens"]) == (1, 3)


NO_SCORES = (
    ({"tokens": ["token_id:9"] * 25, "token_logprobs": []}, "others than the 25 .* token 0 on"),
    ({"tokens": ["word"] * 25, "token_logprobs": []}, r"'word', 'word'\] instead of token ids"),
    ({"content": []}, r"have \['content'\] instead of lists tokens and token_logprobs"),
    (None, r"have \[\] instead of lists"),
    (400, "as the test wants it"),
)
"""What a server answers in place of logprobs (a status: it refuses), and what is said of it."""


def test_a_teacher_with_another_tokenizer_or_a_server_that_scores_nothing_is_an_error(
    serve, texts, tmp_path
):
    for number, (given, said) in enumerate(NO_SCORES):
        serve(
            lambda _, answer, given=given: (
                given
                if isinstance(given, int)
                else {**answer, "choices": [{**answer["choices"][0], "logprobs": given}]}
            )
        )
        fix = "12B or 27B teaches Gemma 3 1B.*return_tokens_as_token_ids.*gpt-oss"
        with pytest.raises(InputError, match=f"student's tokens: .*{said}.*{fix}"):
            asked(tmp_path / str(number), texts)


def test_the_padding_token_is_a_token_where_it_was_sampled(serve, teacher, texts, tmp_path):
    """A response of it alone ended the stage."""
    serve()
    texts[2:4] = [(texts[2][0], [0] * 3), (texts[3][0], [7, 0, 8])]
    logps, _ = asked(tmp_path, texts)
    own = gemma_teacher(config(batch_size=6), teacher).score(texts).logps
    np.testing.assert_allclose(logps, own, rtol=1e-4, atol=1e-5)
    assert logps[2, :3].all()


def test_an_outage_changes_nothing(serve, texts, tmp_path):
    serve()
    expected, _ = asked(tmp_path / "well", texts)
    server = serve(lambda number, answer: 503 if number < 8 else None)
    found, costs = asked(tmp_path / "ill", texts)
    np.testing.assert_array_equal(found, expected)
    assert len(server.seen) == 14
    assert costs["teacher_unanswered"] == 0


def test_a_spent_budget_ends_the_stage(serve, texts, tmp_path):
    serve()
    with pytest.raises(StageFailed, match=r"used up max_usd = 5e-05\. Raise teacher.max_usd"):
        asked(tmp_path, texts, input_usd_per_million=1.0, max_usd=5e-5)


def test_a_continued_stage_counts_what_was_paid_before_its_checkpoint(serve, texts, tmp_path):
    """Nothing of that is asked again, so the budget would begin anew with every kill."""
    serve()
    _, before = asked(tmp_path / "a", texts, input_usd_per_million=1.0)
    budget = {"input_usd_per_million": 1.0, "max_usd": 2 * before["teacher_usd"]}
    _, costs = asked(tmp_path / "b", texts, before, **budget)
    assert costs == pytest.approx({name: 2 * value for name, value in before.items()})
    with pytest.raises(StageFailed, match="used up max_usd"):
        asked(tmp_path / "c", texts, costs, **budget)
