"""Adding a stage kind, loss, reward, check, suite, teacher or report section is adding one file.

Each is written to a temporary folder that is laid over its package's path, and then used as those
that are shipped are.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flows.recipe.resolve import resolve
from flows.report.page import report_of
from flows.runs.results import read_results
from infra.backend import FINAL
from infra.local import LocalBackend
from infra.process import ROOT
from infra.settings import Settings
from infra.store.store import open_store
from schemas.base import InputError
from schemas.examples import Domain, Prompt, Trace
from tasks.contract.kinds import stage_kind, stage_kinds, training_kinds
from tasks.contract.reward import REWARDS, Resources, Response
from tasks.data.sources import PromptMapping
from tasks.evaluation.suite_prompts import (
    parse_suites,
    suite_dependencies,
    suite_prompts,
    suite_size,
)
from tasks.reinforcement.rewarding import Scorer, parse_rewards
from tasks.verification.verify import check_versions, verify
from tests.flows.runs.synthetic_run import write_run
from tests.tasks.jobs import spec_of
from tests.tasks.worker.test_worker import TOY_WORKER, until

Add = Callable[[str, str, str], None]

KIND = """
from schemas.base import StrictModel
from tasks.contract.kind import Kind, Product

class Config(StrictModel):
    words: tuple[str, ...]
    seed: int

def run(job):
    (job.out / "words.txt").write_text(" ".join(sorted(job.config.words)))
    return {"words": len(job.config.words)}

KIND = Kind(
    version=7,
    config=Config,
    inputs={},
    produces=Product.ROWS,
    run=run,
    small=lambda config, sizes: config,
)
"""
LOSS = '''
"""IPO on pairs (Azar et al., 2310.12036, equation 17): L = (m - 1 / (2 tau))^2, of the margin m of
log-ratios to the reference."""
from pydantic import Field
from tasks.training.preference_kind import PreferenceConfig, preference_kind

class Config(PreferenceConfig):
    tau: float = Field(default=0.1, gt=0)

def loss_of(config):
    import jax.numpy as jnp
    from tasks.training.pair_batches import response_logps

    def loss(model, pairs):
        logps, _ = response_logps(model, pairs)
        chosen, rejected = logps - pairs.ref_logps.T
        return jnp.square(chosen - rejected - 1 / (2 * config.tau)), {}

    return loss

KIND = preference_kind(version=1, config=Config, loss_of=loss_of, reference=True)
'''
(REWARD,) = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
)
"""The one that README shows."""
CHECK = """
from tasks.contract.check import Check, Outcome

def agrees(prompt, answer):
    return Outcome(sorted(answer) == sorted(prompt.answer), "other letters")

CHECK = Check(version=4, agrees=agrees)
"""
SUITE = """
from typing import Literal
from schemas.evaluation import EvalPrompt
from schemas.examples import Domain
from tasks.contract.suite import Suite, SuiteConfig

class Config(SuiteConfig):
    name: Literal["doubles"]

def prompts(config, data):
    shared = {"suite": config.suite, "domain": Domain.MATH}
    return [
        EvalPrompt(id=f"{config.suite}/{n}", prompt=f"2 x {n}?", answer=str(2 * n), **shared)
        for n in range(5)
    ]

SUITE = Suite(
    version=5,
    config=Config,
    prompts=prompts,
    dependencies=lambda config, data: {},
    expected=lambda config: 5,
)
"""
TEACHER = """
from typing import Literal
from schemas.base import StrictModel
from schemas.examples import Domain, Example, prompt_id
from tasks.contract.teacher import Teacher

class Config(StrictModel):
    name: Literal["counting"]
    rows: int

def teach(config, lesson):
    for n in range(config.rows):
        text = f"What comes after {n}?"
        about = {"answer": str(n + 1), "reasoning": f"{n} + 1 = {n + 1}", "domain": Domain.MATH}
        yield Example(id=prompt_id(text), prompt=text, **about)

TEACHER = Teacher(
    version=6,
    config=Config,
    teach=teach,
    dependencies=lambda config, data: {},
    expected=lambda config: config.rows,
)
"""
SECTION = """
from flows.report.section import Section

def blocks(run):
    return [f"<{run.record.run_id}> was sunny"]

SECTION = Section(title="The weather", heading="Weather", order=15, blocks=blocks)
"""


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Write a file as if it lay in a package."""
    loaded = set(sys.modules)

    def write(package: str, name: str, text: str) -> None:
        room = tmp_path / package
        room.mkdir(exist_ok=True)
        (room / f"{name}.py").write_text(text, encoding="utf-8")
        module = importlib.import_module(package)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(room)])

    yield write
    for name in set(sys.modules) - loaded:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def recipe(tmp_path: Path, stage: str) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(f'name = "added"\nmodel = "gemma3-tiny"\n{stage}', encoding="utf-8")
    return str(path)


def ran(tmp_path: Path, stage: str, *places: str) -> tuple[Path, dict]:
    """The artifact and the metrics of a recipe's one stage, which a worker ran."""
    resolved = resolve(recipe(tmp_path, stage)).stages[0]
    store, script = open_store(tmp_path / "store"), tmp_path / "worker.py"
    overlays = "".join(
        f"import {place}\n{place}.__path__.append({str(tmp_path / place)!r})\n" for place in places
    )
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{overlays}"
        + TOY_WORKER.format(root=str(ROOT), kinds="nowhere")
    )
    spec = spec_of(resolved, store)
    backend = LocalBackend(Settings(compile_cache=""), command=[sys.executable, str(script)])
    handle = backend.submit(spec)
    status = until(lambda: backend.poll(handle), lambda status: status.state in FINAL)
    assert status.state == "succeeded", backend.log(handle, 0)[0]
    manifest = store.lookup(spec.kind, spec.key)
    return store.local_dir(manifest), manifest.metrics


def test_a_stage_kind_is_validated_and_run_by_the_worker(add: Add, tmp_path: Path) -> None:
    add("tasks.stages", "wordlist", KIND)
    assert "wordlist" in stage_kinds()
    stage = '[stages.words]\nkind = "wordlist"\nconfig = {{ words = ["b", "a"]{} }}\n'.format
    unknown = r"stages\.words\.config: unknown key 'wrods'\. Did you mean 'words'"
    with pytest.raises(InputError, match=unknown):
        resolve(recipe(tmp_path, stage(", wrods = 1")))
    directory, metrics = ran(tmp_path, stage(""), "tasks.stages")
    assert (directory / "words.txt").read_text() == "a b"
    assert metrics == {"words": 2}


def test_a_loss_is_a_stage_kind_that_trains_with_it(add: Add) -> None:
    from tests.tasks.losses.bigram import EOS, Bigram, logp, pairs

    add("tasks.stages", "ipo", LOSS)
    assert "ipo" in training_kinds()
    table = {"prompts": 8, "prompt_length": 8, "response_length": 8, "steps": 1, "batch_size": 2}
    table |= {"optimizer": {"learning_rate": 0.1}, "tau": 0.5}
    config = stage_kind("ipo").config.parse(table)
    batch = pairs([[4, EOS]], [[5, EOS]], ref_logps=np.array([[-3.0, -2.0]], np.float32))
    (loss,), _ = importlib.import_module("tasks.stages.ipo").loss_of(config)(Bigram(), batch)
    of_model = sum(
        sign * (logp(Bigram(), 3, token) + logp(Bigram(), token, EOS))
        for sign, token in ((1, 4), (-1, 5))
    )
    assert float(loss) == pytest.approx((of_model + 1.0 - 1.0) ** 2, rel=1e-5)


def test_a_reward_scores(add: Add) -> None:
    add("tasks.rewards", "brief", REWARD)
    tables = [{"name": "brief", "tokens": 5}, {"name": "format", "weight": 3.0}]
    assert REWARDS.versions(["brief"]) == {"rewards.brief": 1}
    asked = [Prompt(id="0" * 16, prompt="?", domain=Domain.MATH)] * 2
    trace = Trace(reasoning="a", answer="b").render()
    with closing(Scorer(parse_rewards(tables, "rewards"), Resources({}, answers=None))) as scorer:
        found = scorer.score(asked, [Response("thanks", 5), Response(trace, 6)])
    assert found.components["brief"].tolist() == [1.0, 0.0]
    assert found.total.tolist() == [0.25, 0.75]


def test_a_check_verifies(add: Add) -> None:
    add("tasks.checks", "anagram", CHECK)
    mapping = {"domain": "general", "prompt": "question", "answer": "word", "check": "anagram"}
    asked = Prompt(
        id="0" * 16,
        prompt="?",
        domain=Domain.GENERAL,
        answer="listen",
        check=PromptMapping.parse(mapping).check,
    )
    assert verify(asked, Trace(reasoning="a", answer="silent").render()).exact
    assert verify(asked, Trace(reasoning="a", answer="listing").render()).detail == "other letters"
    assert check_versions()["checks.anagram"] == 4
    with pytest.raises(ValueError, match=r"unknown check 'anagrams'\. Did you mean 'anagram'"):
        PromptMapping.parse({**mapping, "check": "anagrams"})


def test_a_suite_is_asked(add: Add) -> None:
    add("tasks.suites", "doubles", SUITE)
    (config,) = parse_suites([{"name": "doubles", "first": 3}], "reasoning_eval")
    assert [prompt.answer for prompt in suite_prompts(config, None)] == ["0", "2", "4"]
    assert suite_size(config) == 3
    found = suite_dependencies([{"name": "doubles"}], "reasoning_eval", None)
    assert found == {"suites.doubles": 5}
    elsewhere = "suite 'doubles' is asked by a stage of kind reasoning_eval"
    with pytest.raises(InputError, match=elsewhere):
        parse_suites([{"name": "doubles"}], "safety_eval")


def test_a_teacher_gives_rows_to_the_stage_distill(add: Add, tmp_path: Path) -> None:
    add("tasks.teachers", "counting", TEACHER)
    teacher = '[[stages.distill.config.teachers]]\nname = "counting"\nrows = 4\n'
    stage = f'[stages.distill]\nkind = "distill"\n{teacher}'
    directory, metrics = ran(tmp_path, stage, "tasks.teachers")
    lines = (directory / "examples.jsonl").read_text().splitlines()
    assert [json.loads(line)["answer"] for line in lines] == ["1", "2", "3", "4"]
    assert metrics["rows"] == 4


def test_a_report_section_stands_in_its_place(add: Add, tmp_path: Path) -> None:
    results = read_results(*write_run(tmp_path))
    without = report_of(results).html()
    add("flows.report.sections", "weather", SECTION)
    page = report_of(results).html()
    links = '<a href="#effects">Effects</a><a href="#weather">The weather</a><a href="#safety">'
    assert links in page
    said = ('<h2 id="effects">', "&lt;demo-1&gt; was sunny", '<h2 id="safety">')
    places = [page.index(one) for one in said]
    assert places == sorted(places)
    assert "weather" not in without


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("VERSION = 1", r"it ends with REWARD = Reward\(\.\.\.\), and nothing is called so"),
        ("REWARD = 1", "and a int is called so"),
        (REWARD.replace('"brief"', '"nice"'), r'the name of its config is not Literal\["{name}"\]'),
        (REWARD.replace("version=1", "version='1'"), "version is a whole number, not '1'"),
        (REWARD.replace(", score=score", ""), "missing 1 required keyword-only argument: 'score'"),
        (
            f"from schemas.base import StrictModel\n{REWARD}".replace(
                "RewardConfig)", "StrictModel)"
            ),
            "Reward",
        ),
        (REWARD.replace("score=score", "score=score, computes=bool"), "programs if, and only if,"),
    ],
)
def test_a_file_that_ends_with_something_else_is_named(add, text, problem, request):
    name = f"wrong{request.node.callspec.indices['text']}"
    add("tasks.rewards", name, text)
    problem = problem.replace("{name}", name)
    with pytest.raises(TypeError, match=rf"tasks/rewards/{name}\.py: .*{problem}"):
        REWARDS[name]


def test_what_an_editor_or_a_system_leaves_beside_plugins_is_none(add) -> None:
    """Emacs locks a file so, macOS says something of it on an exFAT disk."""
    add("tasks.rewards", ".#brief", REWARD)
    add("tasks.rewards", "._brief", "\0")
    assert [name for name in REWARDS.names() if name.startswith(".")] == []
