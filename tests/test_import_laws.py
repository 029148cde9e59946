"""The laws of the house that can be checked by reading imports, and those that only a process can
show.

Every import counts, wherever it stands: at a file's top, inside a function, for type checkers only.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("schemas", "infra", "tasks", "flows")
"""From the lowest up: a room imports what is below it."""

PLUGINS = ("rewards", "checks", "suites", "teachers", "losses")
"""Folders of `tasks/` whose files are plugins, a file each. All but losses are found by name
(`tasks.contract.plugins`)."""

FLOW_FILES = ("flows.post_train", "flows.nightly", "flows.chain")
GOOGLE = (
    "gcsfs",
    "google.cloud",
    "google.api_core",
    "google.auth",
    "google.resumable_media",
    "grpc",
)
HEAVY = ("jax", "jaxlib", "flax", "optax", "tunix", "orbax", "qwix")


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_name(path): path for room in ROOMS for path in (ROOT / room).rglob("*.py")}


@functools.cache
def _imports() -> dict[str, set[str]]:
    """Module -> what its file imports."""
    return {name: set(_imports_of(path)) - {name} for name, path in FILES.items()}


def _imports_of(path: Path) -> Iterator[str]:
    """Modules that a file imports: of ours by their files, of others the name that is written."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module


def _below(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _offenders(
    importers: Sequence[str], imported: Sequence[str], allowed: Sequence[str] = ()
) -> list[str]:
    """`importer -> imported` for files in or below `importers`, but for those `allowed`, that
    import anything in or below `imported`."""
    return sorted(
        f"{name} -> {other}"
        for name, others in _imports().items()
        for other in others
        if _below(name, *importers) and not _below(name, *allowed) and _below(other, *imported)
    )


def _layer(name: str) -> int:
    """How high a file of `tasks/` stands: rooms, plugins, losses, stage kinds, then what runs
    them."""
    if _below(name, "tasks.worker", "tasks.stage"):
        return 4
    if _below(name, "tasks.stages"):
        return 3
    if _below(name, "tasks.losses"):
        return 2
    return int(_is_plugin(name))


def _is_plugin(name: str) -> bool:
    return any(_below(name, f"tasks.{family}") and name != f"tasks.{family}" for family in PLUGINS)


def test_rooms_import_one_way() -> None:
    """schemas <- infra <- tasks <- flows; Prefect in flows/ and tasks/stage.py alone; JAX from
    tasks/ on."""
    for place, room in enumerate(ROOMS):
        assert not _offenders([room], ROOMS[place + 1 :])
    assert not _offenders(ROOMS[:3], ["prefect"], allowed=["tasks.stage"])
    assert not _offenders(ROOMS[:2], HEAVY)


def test_no_file_imports_itself_in_a_circle() -> None:
    ours: Mapping[str, set[str]] = {
        name: others & FILES.keys() for name, others in _imports().items()
    }
    try:
        order = list(TopologicalSorter(ours).static_order())
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' <- '.join(error.args[1])}") from None
    assert len(order) == len(FILES) > 300


def test_inside_tasks_nothing_imports_what_stands_higher() -> None:
    """Rooms <- plugins <- losses <- stage kinds <- the worker and the task."""
    found = [
        f"{name} -> {other}"
        for name, others in _imports().items()
        for other in others
        if _below(name, "tasks") and _below(other, "tasks") and _layer(other) > _layer(name)
    ]
    assert not found


def test_no_plugin_and_no_stage_kind_is_a_library() -> None:
    """Plugins and stage kinds are found by name; a loss is imported by the stage kind that trains
    on it."""
    found = [
        f"{name} -> {other}"
        for name, others in _imports().items()
        for other in others
        if (_is_plugin(other) or (_below(other, "tasks.stages") and other != "tasks.stages"))
        and not (_below(name, "tasks.stages") and _below(other, "tasks.losses"))
    ]
    assert not found


def test_flows_do_not_reach_into_what_shows_them() -> None:
    """Promotion and planning decide without the report; the command line is for itself, the server
    and the flow files."""
    assert not _offenders(
        ["flows.promotion", "flows.planning", "flows.runs", "flows.scores", "flows.trackers"],
        ["flows.report"],
    )
    assert not _offenders(
        ["flows"], ["flows.cli"], allowed=["flows.cli", "flows.server", *FLOW_FILES]
    )


def test_evaluation_does_not_import_rewards() -> None:
    evaluation = [
        "tasks.evaluation",
        "tasks.suites",
        "tasks.stages.reasoning_eval",
        "tasks.stages.safety_eval",
    ]
    assert not _offenders(evaluation, ["tasks.rewards"])


def test_only_buckets_secrets_and_the_tpu_api_talk_to_google() -> None:
    assert not _offenders(
        ROOMS, GOOGLE, allowed=["infra.gcs", "infra.tpu.api", "infra.tpu.secret_manager"]
    )
    assert _offenders(["infra.tpu.api"], GOOGLE), "the law looks at what is imported there"


def test_the_flow_process_loads_no_jax_and_the_command_line_starts_without_prefect() -> None:
    """Every stage kind and plugin is loaded to validate a recipe; none may pull JAX in, not even
    through another module."""
    loaded = _run("""
import sys
def loaded(*names): print(sorted(set(names) & set(sys.modules)))
import flows.cli.main
loaded("prefect", "jax", "matplotlib", "datasets", "numpy", "rich", "tasks.contract.kinds")
from tasks.contract.check import CHECKS
from tasks.contract.kinds import KINDS
from tasks.contract.reward import REWARDS
from tasks.contract.suite import SUITES
from tasks.contract.teacher import TEACHERS
for family in (KINDS, REWARDS, TEACHERS, CHECKS, SUITES):
    for name in family.names(): family[name]
loaded("prefect", "jax", "tunix")
import flows.post_train
loaded("jax", "tunix")
""")
    assert loaded == ["[]", "[]", "[]"]


def test_the_worker_loads_no_prefect_and_nothing_of_google() -> None:
    """Who has a directory as the store and this machine as the target does not pay for the clients
    of buckets and TPUs."""
    script = (
        "import sys, infra.store.store, infra.targets, tasks.worker.__main__; print('flows' in"
        " sys.modules, 'prefect' in sys.modules)"
    )
    google = "; print([name for name in sys.modules if name.startswith(('google.cloud', 'grpc'))])"
    assert _run(script + google) == ["False False", "[]"]


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("infra.local", "tasks prefect jax"),
        ("infra.tpu.host", "tasks prefect jax grpc"),
        ("infra.gcs.bucket", "google.cloud.storage google.auth requests urllib3 gcsfs"),
    ],
)
def test_what_places_and_backends_load_only_when_it_is_used(module: str, never: str) -> None:
    script = f"import sys, {module}; print({set(never.split())} & set(sys.modules))"
    assert _run(script) == ["set()"]


def _run(script: str) -> list[str]:
    """Lines of output of a fresh Python process that runs `script` in the repository."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]
