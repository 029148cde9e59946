"""G-RaR's split mesh: the policy on one half of the devices, a judge on the other, both computing
at the same time.

The programs run in a process of their own, which has four fake CPU devices.
"""

from typing import Any

import numpy as np
import pytest

from tests.tasks.devices.fake_devices import printed

PROGRAM = """
import json, sys, threading, time
from dataclasses import replace
import jax
from flax import nnx
from infra.store.answers import Answers
from infra.store.store import open_store
from tasks.devices.hosts import halves, make_mesh
from tasks.judging.judge import GemmaJudgeConfig, Question
from tasks.judging.open_judge import open_judge
from tasks.models import decoder
from tasks.models.loading import base_model
from tasks.contract.reward import Resources
from tasks.sampling.sampler import Sampler

sizes = {"num_layers": 1, "hidden_dim": 96, "embed_dim": 64}
decoder.SIZES["gemma3-tiny"] = replace(decoder.SIZES["gemma3-tiny"], **sizes)
PROMPTS = [f"What is {i}?" for i in range(8)]
table = {"name": "gemma", "model": "gemma3-tiny", "prompt_length": 24, "batch_size": 4}
config = GemmaJudgeConfig.parse(table)


def question(about, choices):
    return Question(f"How good is {about}?", tuple(choices))


asked = [question(i, "0123456789") for i in range(6)]


def devices(tree):
    leaves = jax.tree.leaves(tree)
    return sorted({device.id for leaf in leaves for device in leaf.sharding.device_set})


def parts(judge):
    weight = judge.rater.loaded.model.embedding.get_value()
    return weight.shape[0] // weight.sharding.shard_shape(weight.shape)[0]


found = []
for name, pair in (("one", ([jax.devices()[0]],) * 2), ("split", halves())):
    policy = base_model("gemma3-tiny", 1, make_mesh({"batch_size": 8}, pair[0]))
    sampler = Sampler(policy, batch_size=8, prompt_length=16, response_length=96)
    answers = Answers(open_store(f"{sys.argv[1]}/{name}"))
    judge = open_judge(config, Resources({}, answers, devices=pair[1]))
    ended, stop, failed = [], threading.Event(), []
    sampler.generate(PROMPTS, temperature=1.0, seed=1)
    rulings = judge.ask(asked)

    def judging():
        try:
            number = 0
            while not stop.is_set():
                judge.ask([question(f"{number}, later", "10")])
                number += 1
                ended.append(time.monotonic())
        except BaseException as error:
            failed.append(repr(error))

    thread = threading.Thread(target=judging)
    thread.start()
    while not ended and thread.is_alive():
        time.sleep(0.001)
    meanwhile, deadline = 0, time.monotonic() + 60
    # each is one call of one program, of 96 steps; this machine may be busy
    while meanwhile < 2 and time.monotonic() < deadline:
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
        "compiled": [sampler.compiles, judge.rater.compiles],
        "rulings": [ruling.probabilities for ruling in rulings],
        "tokens": [completion.tokens for completion in drawn],
        "logps": [float(completion.logps.sum()) for completion in drawn],
        "judged_meanwhile": meanwhile,
    })
    judge.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    fixed = {"JAX_ENABLE_COMPILATION_CACHE": "false", "LYCEUM_WHOLE_WEIGHTS_GIB": "0"}
    return printed(PROGRAM, str(tmp_path_factory.mktemp("stores")), devices=4, **fixed)


def test_each_model_has_its_half_and_says_what_it_says_on_one_device(found):
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
