"""Log-probabilities by blocks of packed rows: each response's own, by one program."""

import numpy as np
from flax import nnx

from tasks.data.packing import Shape, in_groups
from tasks.devices.hosts import make_mesh
from tasks.planning.programs import compilations
from tasks.training.packed_logps import texts_logps, token_logps_fn
from tests.tasks.losses.bigram import EOS, PAD, Bigram, logp

TEXTS = [([2, 3], [4, EOS]), ([4, 2, 3], [5, 5, 5, EOS]), ([2], [3]), ([5, 4], [2, EOS, 4])]


def test_log_probabilities_stand_in_order_whatever_rows_the_responses_share():
    """Texts of 4, 7, 2 and 5 tokens: in rows of 9 they fill two, one block or two."""
    model, told = Bigram(), []
    program = token_logps_fn(model)
    for temperature in (1.0, 0.7):
        expected = np.zeros((4, 5))
        for row, (prompt, response) in enumerate(TEXTS):
            both = zip([prompt[-1], *response[:-1]], response, strict=True)
            expected[row, : len(response)] = [logp(model, *one, temperature) for one in both]
        for rows in (1, 2):
            found = texts_logps(
                program,
                nnx.state(model),
                in_groups(TEXTS, shared=False),
                Shape(rows, 9),
                5,
                pad_id=PAD,
                mesh=make_mesh(),
                temperature=temperature,
                progress=lambda *done: told.append(done),
            )
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert compilations(program) == 2, "one for each shape"
    assert told == [(1, 2), (2, 2), (2, 2)] * 2
