"""`lyceum endpoint`: the model of one of a run's stages behind OpenAI's HTTP interface, until
Ctrl-C. It loads JAX into its own process, and uses the GPU or TPU that JAX finds."""

import os
import threading
from collections.abc import Callable
from typing import Any

from flows.cli.ask import keep_compiled, start_jax
from flows.cli.interrupt import interruptible
from flows.recipe.trained import trained_stage
from flows.server.key import LOOPBACK, in_url
from flows.server.port import bound, check_port
from infra.accelerator import find
from infra.secrets import LEAST
from infra.store.store import Store
from schemas.base import InputError, StageFailed
from schemas.reports import RunRecord

KEY = "LYCEUM_ENDPOINT_KEY"

SLOTS, PLACES = 16, 256
"""Answers to decode at a time, and the length of the queue."""

PROMPT_LENGTH, RESPONSE_LENGTH = 4096, 1024
"""Tokens."""

LOOK_SECONDS = 0.5
"""Seconds between the main thread's looks whether to stop."""


def serve(
    store: Store,
    record: RunRecord,
    stage: str | None,
    host: str,
    port: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Serve until Ctrl-C or SIGTERM; returns what was served.

    Args:
        host: one that other machines reach needs a key.
        say: called with each step, and with the address as soon as it answers.

    Raises:
        InputError: there is no key, the address cannot be used, the run has no such model, or its
            artifact is gone.
        StageFailed: the artifact is damaged, or answering failed.
    """
    key = _key(host)
    chosen, manifest = trained_stage(store, record, stage)
    check_port(port, any_port=True)
    try:
        place = bound("127.0.0.1" if host == "localhost" else host, port)
    except OSError as error:
        raise InputError(
            f"--host {host} --port {port} cannot be used ({error.strerror}); give another port, or"
            " an address of this machine."
        ) from error
    _find_devices(say)
    from tasks.devices.hosts import make_mesh
    from tasks.models.loading import load_model
    from tasks.serving.app import application
    from tasks.serving.continuous_batching import Engine
    from tasks.serving.server import served

    stop = threading.Event()
    with interruptible(stop), place:
        loaded = load_model(store.local_dir(manifest), make_mesh({"batch_size": SLOTS}))
        engine = Engine(
            loaded,
            slots=SLOTS,
            prompt_length=PROMPT_LENGTH,
            response_length=RESPONSE_LENGTH,
            places=PLACES,
        )
        name = f"{record.run_id}-{chosen.name}"
        hosts = ["*"] if key else [*LOOPBACK, "[::1]"]
        say(f"{name} is loaded; compiling what answers take")
        try:
            engine.warm_up()
            with served(engine, application(engine, name, key, hosts), place) as ended:
                url = f"http://{in_url(host)}:{place.getsockname()[1]}/v1"
                say(f"{name} answers at {url}{' with its key' if key else ''}; Ctrl-C stops it")
                while not (stop.wait(LOOK_SECONDS) or ended.is_set()):
                    pass
        except Exception as error:
            raise StageFailed(f"the endpoint ended: {type(error).__name__}: {error}") from error
    return {"run_id": record.run_id, "stage": chosen.name, "stopped": True}


def _key(host: str) -> str | None:
    """The key that clients need. Raises InputError if other machines can connect and there is
    none."""
    key = os.environ.get(KEY, "").strip()
    if not key and host not in LOOPBACK:
        raise InputError(
            f"--host {host} lets other machines ask, so a key is needed: set {KEY}, e.g. to what"
            f" `openssl rand -hex 24` prints. Without TLS everybody on the way reads it."
        )
    if key and (len(key) < LEAST or not key.isascii() or " " in key):
        raise InputError(f"{KEY}: a key has at least {LEAST} characters, of ASCII, without blanks.")
    return key or None


def _find_devices(say: Callable[[str], None]) -> None:
    """Let JAX use this machine's accelerator, or else the CPU."""
    found = find()
    if found.wrong:
        say(found.why)
    if found.accelerator:
        os.environ.update(found.accelerator.environment({}))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    keep_compiled()
    start_jax()
