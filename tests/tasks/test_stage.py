"""The Prefect task of a stage: what it shows in Prefect, and what it says where it cannot."""

import logging
from typing import Any

import httpx
import pytest

from infra.store.store import open_store
from tasks import stage
from tasks.running.watch import WATCH, Watch

JOB = {"stage": "sft", "kind": "sft", "key": "a" * 64, "target": "local", "config": {}}
JOB["store"] = "gs://bucket/prefix"


@pytest.mark.parametrize(
    ("answers", "asked", "missing"),
    [
        ([httpx.ReadTimeout("slow"), httpx.PoolTimeout("slow"), None], 3, ""),
        ([httpx.ReadTimeout("slow")] * 3, 3, "ReadTimeout after 3 of 3 tries"),
        ([httpx.ConnectError("away")], 1, "ConnectError after 1 of 3 tries"),
    ],
)
def test_the_link_to_what_a_stage_made_is_sent_again_to_a_slow_api_and_missed_aloud(
    answers, asked, missing, monkeypatch, caplog
):
    sent: list[str] = []

    def create(link: str, *_: Any, **__: Any) -> None:
        sent.append(link)
        if (error := answers.pop(0)) is not None:
            raise error

    monkeypatch.setattr(stage, "make", lambda *_: True)
    monkeypatch.setattr(stage, "create_link_artifact", create)
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    WATCH.set(Watch())
    with caplog.at_level(logging.INFO, logger="test"):
        ended = stage.run_stage.fn(JOB)
    assert (ended.name, len(sent), len(set(sent))) == ("Completed", asked, 1)
    assert sent[0].startswith("https://console.cloud.google.com/storage/browser/bucket/prefix/")
    said = [line for line in caplog.messages if "has no link" in line]
    assert len(said) == bool(missing)
    assert all(line.endswith(missing) and sent[0] in line for line in said)


def test_what_a_stage_made_in_a_directory_is_shown_by_its_path(tmp_path, monkeypatch):
    """A page of http may not link to a file: Prefect's pages drop such an address, and show the
    link's text only."""
    shown: list[str] = []
    monkeypatch.setattr(stage, "make", lambda *_: True)
    monkeypatch.setattr(stage, "create_markdown_artifact", lambda text, **_: shown.append(text))
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    WATCH.set(Watch())
    store = open_store(tmp_path / "a store")
    assert stage.run_stage.fn(JOB | {"store": store.uri}).is_completed()
    assert shown == [f"`{tmp_path}/a store/artifacts/sft/{JOB['key']}`"]
