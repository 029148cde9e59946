"""G-RaR's split mesh: the policy on one half of the devices, a judge on the other, both computing
at the same time.

The programs run in a process of their own, which has four fake CPU devices.
"""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from infra.process import ROOT
from tests.conftest import QUICK_COMPILE

PROGRAM = """
import json, sys, threading, time
from dataclasses import replace
import jax
from flax import nnx
from infra.store.answers import Answers
from infra.store.store import open_store
from tasks.devices.hosts import halves, make_mesh
from tasks.judging.judge import GemmaJudge, Question
from tasks.judging.judges import open_judge
from tasks.models import gemma
from tasks.models.loading import base_model
from tasks.contract.reward import Resources
from tasks.sampling.sampler import Sampler

gemma.SIZES["gemma3-tiny"] = replace(gemma.SIZES["gemma3-tiny"], num_layers=1, hidden_dim=96, embed_dim=64)
PROMPTS = [f"What is {i}?" for i in range(8)]
config = GemmaJudge.parse({"name": "gemma", "model": "gemma3-tiny", "prompt_length": 24, "batch_size": 4})
asked = [Question(({"role": "user", "content": f"How good is {i}?"},), tuple("0123456789")) for i in range(6)]


def devices(tree):
    return sorted({device.id for leaf in jax.tree.leaves(tree) for device in leaf.sharding.device_set})


def parts(judge):
    weight = judge.rater.loaded.model.embedding.get_value()
    return weight.shape[0] // weight.sharding.shard_shape(weight.shape)[0]


found = []
for name, pair in (("one", ([jax.devices()[0]],) * 2), ("split", halves())):
    policy = base_model("gemma3-tiny", 1, make_mesh({"batch_size": 8}, pair[0]))
    sampler = Sampler(policy, batch_size=8, prompt_length=16, response_length=96)
    judge = open_judge(config, Resources({}, Answers(open_store(f"{sys.argv[1]}/{name}")), devices=pair[1]))
    ended, stop, failed = [], threading.Event(), []
    sampler.generate(PROMPTS, temperature=1.0, seed=1)
    rulings = judge.ask(asked)

    def judging():
        try:
            number = 0
            while not stop.is_set():
                judge.ask([Question(({"role": "user", "content": f"How good is {number}, later?"},), ("1", "0"))])
                number += 1
                ended.append(time.monotonic())
        except BaseException as error:
            failed.append(repr(error))

    thread = threading.Thread(target=judging)
    thread.start()
    while not ended and thread.is_alive():
        time.sleep(0.001)
    meanwhile, deadline = 0, time.monotonic() + 60
    while meanwhile < 2 and time.monotonic() < deadline:  # each is one call of one program, of 96 steps; this machine may be busy
        before = len(ended)
        drawn = sampler.generate(PROMPTS, temperature=1.0, seed=1)
        meanwhile = len(ended) - before
    stop.set()
    thread.join()
    assert not failed, failed
    found.append({
        "policy": devices(nnx.state(policy.model)),
        "judge": devices(nnx.state(judge.rater.loaded.model)),
        "parts": parts(judge),
        "compiled": [sampler.compiles, judge.rater._program._cache_size()],
        "rulings": [ruling.probabilities for ruling in rulings],
        "tokens": [completion.tokens for completion in drawn],
        "logps": [float(completion.logps.sum()) for completion in drawn],
        "judged_meanwhile": meanwhile,
    })
    judge.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {QUICK_COMPILE}",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "LYCEUM_WHOLE_WEIGHTS_GIB": "0",
    }
    command = [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("stores"))]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def test_each_model_has_its_half_and_says_what_it_says_on_one_device(
    found: list[dict[str, Any]],
) -> None:
    one, split = found
    assert (one["policy"], one["judge"]) == ([0], [0])
    assert (split["policy"], split["judge"]) == ([0, 1], [2, 3])
    assert (one["parts"], split["parts"]) == (1, 2), "a large judge lies in parts on its half"
    assert one["compiled"] == split["compiled"] == [1, 1]
    np.testing.assert_allclose(split["rulings"], one["rulings"], rtol=2e-2)
    assert split["tokens"] == one["tokens"]
    np.testing.assert_allclose(split["logps"], one["logps"], rtol=1e-3)


def test_the_judge_answers_while_the_policy_s_program_runs(found: list[dict[str, Any]]) -> None:
    """Two rulings end within one call of the sampler's program: so one of them, from question to
    store, began there, too."""
    assert found[1]["judged_meanwhile"] >= 2
