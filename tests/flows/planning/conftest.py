"""A compiler of the TPU's protocol that answers at once, sizes by a formula of the config."""

import sys
from pathlib import Path

import pytest

from flows.planning import compile_cache
from flows.planning import stage_plans as planning
from tests.fakes.recipe import EVALUATED, TINY, TRAINED

FAKE = """
import hashlib, json, os, sys, time
GIB = 2**30
asked = open(os.environ["FAKE_LOG"], "a", buffering=1)
asked.write(f"process {os.getpid()}\\n")
for line in sys.stdin:
    question = json.loads(line)
    stage = question["stage"]
    config = stage["config"]
    names = ["train_step", "validation_loss"] if stage["kind"] == "sft" else ["generate"]
    if "program" not in question:
        asked.write(f"programs {stage['kind']} {stage['model']} {sorted(stage['upstream'])}\\n")
        def seen(name):
            keys = ["batch_size", "response_length"]
            if name != "generate":
                keys += ["micro_batch_size", "remat", "sequence_length"]
            looked = {key: config.get(key) for key in keys}
            return hashlib.sha256(json.dumps([name, looked]).encode()).hexdigest()
        sizes = {"calls": 100, "resident_bytes": GIB}
        answer = {"programs": [{"name": name, "digest": seen(name), **sizes} for name in names]}
    else:
        name = names[question["program"]]
        asked.write(f"compile {name} length={config.get('sequence_length')}\\n")
        if os.environ.get("FAKE_DIES") == name:
            print('{"report": {', end="", flush=True)
            sys.exit("the compiler crashed")
        killed = os.environ["FAKE_LOG"] + ".killed"
        if os.environ.get("FAKE_KILLED") == name and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), 9)
        if os.environ.get("FAKE_WAITS") == name:
            time.sleep(600)
        rows = (config.get("micro_batch_size") or config["batch_size"]) / 8
        share = {"none": 1.0, "dots": 0.5, "layer": 0.2, "chunks": 0.2}[config.get("remat", "none")]
        length = config.get("sequence_length") or config["response_length"]
        needed = rows * share * length / 1024 * float(os.environ["FAKE_GIB"])
        size = 1 + (needed if name == "train_step" else 0.5)
        refused = "Ran out of memory" if size > 15.75 else None
        answer = {"report": {
            "argument_bytes": GIB, "temporary_bytes": int((size - 1) * GIB), "output_bytes": 0,
            "alias_bytes": 0, "code_bytes": 0, "hbm_bytes": int(size * GIB),
            "flops": 0.0 if refused else 197e12, "bytes_accessed": 0.0, "link_bytes": 0.0,
            "uncounted": [], "compile_seconds": 0.1, "refusal": refused,
        }}
    print(json.dumps(answer), flush=True)
"""

LARGER = TRAINED.replace("4, sequence_length = 256", "64, sequence_length = 1024")
RECIPE = TINY + LARGER + EVALUATED


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that answers at once, a recipe, and an empty store and cache; returns the file in
    which it notes what it was asked."""
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compile_cache, "COMMAND", (sys.executable, str(tmp_path / "fake.py")))
    monkeypatch.setattr(compile_cache, "has_compiler", lambda: True)
    monkeypatch.setattr(planning, "has_compiler", lambda: True)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "asked.txt"))
    monkeypatch.setenv("FAKE_GIB", "1.0")
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "asked.txt"
