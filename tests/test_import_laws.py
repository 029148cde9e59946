"""The laws of the house that can be checked by reading imports, and two that only a process can show."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("schemas", "infra", "tasks", "flows")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MAY_IMPORT_PREFECT = {"tasks/stage.py"}
ABOVE = ("stages", "worker", "stage.py")
"""Of tasks: what may know the stage kinds."""
TO_BE_TURNED_AROUND = {"tasks/teaching/topping_up.py", "tasks/distillation/batches.py"}
"""Rooms that still import a stage kind: its config, or the names of its files, belong into the room."""
HEAVY = {"jax", "jaxlib", "flax", "optax", "tunix", "orbax", "qwix"}


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all modules that a syntax tree imports, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def room(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    """schemas <- infra <- tasks <- flows, and Prefect only in flows/ and tasks/stage.py."""
    here = str(path.relative_to(ROOT))
    above = set(ROOMS[ROOMS.index(room(here.replace("/", "."))) + 1 :])
    found = set(imports(ast.parse(path.read_text(encoding="utf-8"))))
    assert not [name for name in found if room(name) in above], f"{here} imports a room above its own"
    if not here.startswith("flows/") and here not in MAY_IMPORT_PREFECT:
        assert not [name for name in found if room(name) == "prefect"], f"{here} imports prefect"
    if here.startswith(("schemas/", "infra/")):
        assert not [name for name in found if room(name) in HEAVY], f"{here} imports JAX"


def test_parts_of_stages_do_not_know_the_stages() -> None:
    """Inside tasks: rooms and plugins <- stage kinds <- worker and stage task."""
    parts = [path for path in FILES if path.is_relative_to(ROOT / "tasks") and path.relative_to(ROOT / "tasks").parts[0] not in ABOVE]
    assert parts
    knowing = {
        str(path.relative_to(ROOT))
        for path in parts
        for name in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith(("tasks.stages", "tasks.worker", "tasks.stage."))
    }
    assert knowing == TO_BE_TURNED_AROUND


def test_stages_rewards_and_teachers_load_no_jax() -> None:
    """The flow process imports every stage kind and plugin to validate a recipe; none may pull JAX in, not even through another module."""
    script = """
import sys
from tasks.contract.check import CHECKS
from tasks.contract.plugins import KINDS
from tasks.contract.reward import REWARDS
from tasks.contract.suite import SUITES
from tasks.contract.teacher import TEACHERS
for family in (KINDS, REWARDS, TEACHERS, CHECKS, SUITES):
    for name in family.names(): family[name]
print(sorted({"jax", "tunix", "prefect"} & set(sys.modules)))
"""
    assert run(script) == "[]"


def test_the_flow_process_never_loads_jax() -> None:
    assert run("import sys, flows.post_train; print('jax' in sys.modules)") == "False"


def test_the_worker_never_loads_prefect() -> None:
    assert run("import sys, tasks.worker.__main__; print('prefect' in sys.modules)") == "False"


def test_the_command_line_starts_without_prefect_and_jax() -> None:
    assert run("import sys, flows.cli.main; print(sorted({'prefect', 'jax', 'matplotlib', 'datasets'} & set(sys.modules)))") == "[]"


def test_only_buckets_secrets_and_the_tpu_api_talk_to_google() -> None:
    """Storage's clients, however they are imported, in `infra/gcs*.py` alone, that of TPUs in `infra/tpu/api.py` and credentials for
    secrets in `infra/tpu/secret_manager.py`; and nobody pays for them whose store is a directory and whose target is this machine."""
    clients = ("gcsfs", "google.cloud", "google.api_core", "google.auth", "google.resumable_media", "grpc")
    users = {
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.startswith(clients) for name in imports(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert "infra/tpu/api.py" in users
    assert all(user.startswith("infra/gcs") for user in users - {"infra/tpu/api.py", "infra/tpu/secret_manager.py"}), users
    loaded = "[name for name in sys.modules if name.startswith(('google.cloud', 'grpc'))]"
    assert run(f"import sys, infra.store.store, infra.targets, tasks.worker.__main__; print({loaded})") == "[]"


def run(script: str) -> str:
    """Standard output of a fresh Python process that runs `script` in the repository."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
