"""A client that is killed where keys are honoured and its store is a bucket; and the memory of one
that asks a lot."""

from pathlib import Path

from tests.fakes.chat_server import ChatServer
from tests.fakes.process import printed
from tests.tasks.chat.test_kill import CLIENT, asks_for_nothing_again


def test_memory_is_bounded_however_many_requests(tmp_path: Path) -> None:
    """10,000 requests with answers of 4 KB, in a process of its own: its peak stays below 300
    MB."""
    script = (
        CLIENT + "peak = next(line for line in open('/proc/self/status') if"
        " line.startswith('VmHWM'))\nprint(int(peak.split()[1]) // 1024)\n"
    )
    with ChatServer(reply=lambda body: "word " * 800, record=False) as server:
        done, peak = printed(script, server.url, tmp_path, 10_000).split()
    assert done == "10000"
    assert int(peak) < 300


def test_killed_at_random_and_resumed_where_keys_are_honoured(gcs_bucket: str) -> None:
    asks_for_nothing_again(f"gs://{gcs_bucket}/store", idempotent=True)
