"""`python -m tasks.devices.probe`: the devices that JAX uses on this machine, as one line of JSON,
an `infra.accelerator.Accelerator` or `{"error": text}`. It is a process of its own, because JAX
keeps the devices that it finds."""

import json
import os
from typing import Any


def probe() -> dict[str, Any]:
    """The devices that JAX finds; `error` is the first line of its message when no platform comes
    up."""
    import jax
    from jax.extend.backend import backends

    try:
        devices = jax.devices()
    # AssertionError where none of JAX_PLATFORMS is here
    except (RuntimeError, AssertionError) as error:
        return {"error": (str(error) or "no such platform comes up").splitlines()[0]}
    first = devices[0]
    names = [name for name, client in backends().items() if client is first.client]
    stats = first.memory_stats() or {}
    return {
        "platform": names[0],
        "kind": first.device_kind,
        "devices": len(devices),
        "memory_bytes": stats.get("bytes_limit"),
        "driver": " ".join(first.client.platform_version.split()),
    }


def main() -> None:
    """Print the answer; the output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers.write(json.dumps(probe()) + "\n")
    answers.flush()
    os._exit(0)  # nothing of the platform has to be torn down


if __name__ == "__main__":
    main()
