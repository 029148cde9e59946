"""The chat engine against an OpenAI-compatible server that others wrote: `transformers serve`, with
a tiny random Gemma 3."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.base import InputError
from tests.fakes.chat_fixtures import engine, question
from tests.fakes.process import free_port

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")
pytest.importorskip("accelerate", reason="transformers serve needs accelerate")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(URL, the model's name) of a server; 20-60 s to start on busy cores."""
    from transformers.utils.import_utils import is_serve_available

    if not is_serve_available():
        pytest.skip("transformers serve needs fastapi and uvicorn")
    from tasks.devices.hosts import make_mesh
    from tasks.exporting.exported import export_model
    from tasks.exporting.model_card import Card
    from tasks.models.decoder import SIZES
    from tasks.models.loading import LoadedModel, save_model
    from tasks.models.tiny import tiny_tokenizer
    from tasks.models.weights import initialise

    root = tmp_path_factory.mktemp("served")
    layers = {"num_layers": 2, "global_every": 2, "num_kv_heads": 2, "window": 24}
    config = replace(SIZES["gemma3-tiny"], **layers, embed_dim=64, hidden_dim=64)
    trained, directory = root / "trained", root / "model"
    trained.mkdir()
    directory.mkdir()
    made = initialise(config, 1), tiny_tokenizer(), make_mesh()
    save_model(LoadedModel("gemma3-tiny", config, *made), trained)
    card = Card("tiny", "gemma3-tiny")
    export_model(trained, directory, card, ["Why?"], "float32", lambda message: None)
    port = free_port()
    program = str(Path(sys.executable).with_name("transformers"))
    command = [program, "serve", str(directory), "--host=127.0.0.1", f"--port={port}"]
    alone = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    log = root / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--device=cpu"], stdout=out, stderr=out, env={**os.environ, **alone}
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1", str(directory)
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text(errors="replace")[-2000:])


def test_answers_of_a_real_server_are_read_counted_and_kept(served, tmp_path):
    """A random model says nonsense until it is cut off: truncated, with text and with usage."""
    url, model = served
    requests = [
        (number, replace(question(number, max_tokens=8, temperature=0.7), model=model))
        for number in range(12)
    ]
    with engine(url, tmp_path, concurrency=4) as running:
        replies = [reply for _, reply in running.ask_singly(requests)]
    assert {reply.problem for reply in replies} <= {"truncated", "empty", None}
    assert any(reply.text for reply in replies)
    assert all(reply.input_tokens > 5 and 0 < reply.output_tokens <= 8 * 3 for reply in replies), (
        "the usage that the server reports"
    )
    assert all(reply.usd > 0 and not reply.cached for reply in replies)
    with engine(url, tmp_path, concurrency=4) as running:
        again = [reply for _, reply in running.ask_singly(requests)]
    assert [reply.text for reply in again] == [reply.text for reply in replies]
    assert all(reply.cached for reply in again)


def test_what_a_real_server_rejects_is_told(served: tuple[str, str], tmp_path: Path) -> None:
    """A parameter it does not know: FastAPI's 422."""
    url, model = served
    strange = (replace(question(number, no_such_parameter=1), model=model) for number in range(40))
    with (
        engine(url, tmp_path, concurrency=4) as running,
        pytest.raises(InputError, match=r"(?s)rejects every request.*no_such"),
    ):
        list(running.ask_singly(enumerate(strange)))
