"""Losses over the vocabulary in parts: each device takes its own tokens and its part."""

import numpy as np
import pytest

from tests.tasks.devices.fake_devices import printed
from tests.tasks.models.test_vocabulary import (
    CHUNK,
    D,
    V,
    _names_of_this_code,  # noqa: F401
    _small_chunks,  # noqa: F401
)

DEVICES = """
import json, re, sys
from functools import partial
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
sys.path.insert(0, "tests/tasks/models")
import test_vocabulary as t
from tasks.models import vocabulary

vocabulary.CHUNK, t.B = t.CHUNK, 4
embedding, hidden, targets, mask, weights = t.drawn(1)
# the first two rows have 22 targets, the others one
mask = mask.at[2:].set(False).at[2, 0].set(True)
COLLECTIVE = r"= (.*) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\\("
found = []
for shape, spec in (((1, 1), P()), ((2, 1), P()), ((2, 2), P("tp", "fsdp"))):
    mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("fsdp", "tp"))
    by_row = NamedSharding(mesh, P("fsdp"))
    rows = [jax.device_put(x, by_row) for x in (hidden, targets, mask, weights)]
    arrays = [jax.device_put(embedding, NamedSharding(mesh, spec)), *rows]
    for differentiated in (1, (0, 1)):
        with jax.set_mesh(mesh):
            step = jax.jit(jax.value_and_grad(partial(t.ours, t.CAPPED, 0.7), differentiated))
            text = step.lower(*arrays).compile().as_text()
            loss, gradients = step(*arrays)
        found.append({
            "loss": float(loss),
            "gradients": [np.asarray(gradient).tolist() for gradient in jax.tree.leaves(gradients)],
            "collectives": re.findall(COLLECTIVE, text),
            "logits": sorted(set(re.findall(r"f32\\[7,(?:25|50)\\]", text))),
        })
print(json.dumps(found))
"""


def test_each_device_takes_its_own_tokens_and_its_part_of_the_vocabulary() -> None:
    """On two devices, where one has four chunks and the other one; on two times two, with the
    embedding spread over all of them."""
    runs = printed(DEVICES, devices=4)
    one, one_trained, two, two_trained, parts, parts_trained = runs
    for run, expected in (
        (two, one),
        (parts, one),
        (two_trained, one_trained),
        (parts_trained, one_trained),
    ):
        assert run["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        for gradient, wanted in zip(run["gradients"], expected["gradients"], strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6)
    # of the loss; of nothing that it is computed from
    assert [kind for _, kind in two["collectives"]] == ["all-reduce"]
    assert f"f32[{V},{D}]" in str(two_trained["collectives"])
    gathered = [array for array, kind in parts["collectives"] if kind == "all-gather"]
    assert len(gathered) == 1  # outside of the loop
    assert f"f32[{V // 2},{D}]" in gathered[0]
    assert parts["logits"] == [f"f32[{CHUNK},{V // 2}]"]
