"""lm-evaluation-harness and inspect_ai, as they are, ask an endpoint: they find the rate that our
own greedy answers have.

Both are programs of their own, 750 MB together, whose packages are not ours:
`uv tool install "lm_eval[api]"` and `uv tool install --with openai inspect_ai`.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.models.loading import LoadedModel
from tests.tasks.sampling import test_slots
from tests.tasks.serving.place import Place, place

loaded = test_slots.loaded
ROWS = 8
WRONG = 3

LM_EVAL = """
task: lyceum
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["never said"], max_gen_toks: 24, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
INSPECT = """
import json
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

@task
def lyceum():
    rows = [json.loads(line) for line in open("ROWS")]
    samples = [Sample(input=row["question"], target=row["answer"]) for row in rows]
    return Task(dataset=samples, solver=generate(), scorer=exact())
"""


@pytest.fixture(scope="module")
def endpoint(loaded: LoadedModel) -> Iterator[Place]:
    with place(loaded) as found:
        yield found


@pytest.fixture
def rows(endpoint: Place, tmp_path: Path) -> Path:
    """Prompts with the greedy answers, of which some are put down wrong.

    Only answers with a word of four letters: inspect_ai's `exact` lets no target match of which
    nothing is left without punctuation and articles, so that it finds an answer `a`, or none, wrong
    that is right.
    """
    found: list[dict[str, str]] = []
    for prompt in test_slots.PROMPTS:
        said = endpoint.chat(prompt, temperature=0)["choices"][0]["message"]["content"]
        if re.search(r"[a-zA-Z]{4}", said) and len(found) < ROWS:
            answer = "nothing of it" if len(found) < WRONG else said
            found.append({"question": prompt, "answer": answer})
    assert len(found) == ROWS
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return path


def run(program: str, *arguments: str, at: Path, **environment: str) -> None:
    """Run one of the programs, away from the network."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not on the PATH: {__doc__}")
    alone = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(at / "hf")}
    variables = {**os.environ, **alone, **environment}
    done = subprocess.run(
        [found, *arguments], cwd=at, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_lm_eval_finds_our_rate(endpoint: Place, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "lyceum.yaml").write_text(LM_EVAL.replace("ROWS", str(rows)), encoding="utf-8")
    where = f"model=m,base_url={endpoint.url}/v1/chat/completions,num_concurrent=8"
    model = ["--model", "local-chat-completions", "--model_args", where]
    what = ["--tasks", "lyceum", "--include_path", str(tmp_path), "--output_path", "out"]
    run("lm_eval", *model, *what, "--apply_chat_template", at=tmp_path, OPENAI_API_KEY="none")
    (written,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(written.read_text(encoding="utf-8"))["results"]["lyceum"]
    assert results["exact_match,none"] == 1 - WRONG / ROWS


def test_inspect_finds_our_rate(endpoint: Place, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "lyceum.py").write_text(INSPECT.replace("ROWS", str(rows)), encoding="utf-8")
    model = ["--model", "openai-api/lyceum/m", "--temperature", "0", "--max-tokens", "24"]
    log = ["--log-dir", "logs", "--log-format", "json", "--display", "plain"]
    where = {"LYCEUM_BASE_URL": f"{endpoint.url}/v1", "LYCEUM_API_KEY": "none"}
    run("inspect", "eval", "lyceum.py", *model, *log, at=tmp_path, **where)
    (written,) = (tmp_path / "logs").glob("*.json")
    log_of = json.loads(written.read_text(encoding="utf-8"))
    assert log_of["status"] == "success"
    (score,) = log_of["results"]["scores"]
    assert score["metrics"]["mean"]["value"] == 1 - WRONG / ROWS
