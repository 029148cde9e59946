"""The files of a job on another machine in the store, below `work/<key>/<attempt>/`: the contract
between `infra.tpu.host`, which writes them there, and `infra.tpu.backend`, which reads them here.

    job.json             the JobSpec; created by whoever submits
    status.json          the JobStatus of host 0, replaced every few seconds; its `heartbeat` moves
                         as long as the host lives
    hosts/<k>.json       the same of host k, for k from 1
    log/<offset>         log lines, the first byte of which is byte `offset` (12 digits) of the log;
                         each object is written once
    pause                created by whoever submitted, to ask the job to pause
    log.txt              the whole log, written before the final status; the objects below `log/`
                         are gone from then on

A reader that knows the offset knows the next object's name, so it need not list objects, nor read a
byte twice.
"""

from infra.store.store import Store, attempt_file


def log_chunk(key: str, attempt: str, offset: int) -> str:
    """The name of the object that holds the log from byte `offset` on."""
    return attempt_file(key, attempt, f"log/{offset:012d}")


def host_status(key: str, attempt: str, host: int) -> str:
    return attempt_file(key, attempt, f"hosts/{host}.json" if host else "status.json")


def read_log(store: Store, key: str, attempt: str, offset: int, final: bool) -> tuple[str, int]:
    """The log from byte `offset` on, and the offset to continue from.

    Args:
        final: the job has ended, so the whole log may have taken the chunks' place.
    """
    found = bytearray()
    while (chunk := store.read_bytes(log_chunk(key, attempt, offset + len(found)))) is not None:
        found += chunk
        if not chunk:
            break
    if final and (whole := store.read_bytes(attempt_file(key, attempt, "log.txt"))) is not None:
        found = bytearray(whole[offset:])
    return found.decode("utf-8", errors="replace"), offset + len(found)
