"""Slots draw from what the plain sampler draws from."""

from tasks.models.loading import LoadedModel
from tasks.sampling.sampler import Sampler
from tasks.sampling.slots import SlotSampler
from tests.tasks.sampling.test_slots import PROMPTS, REQUESTS, SHAPE, loaded  # noqa: F401


def test_truncated_samples_are_those_of_the_plain_sampler(loaded: LoadedModel) -> None:
    few = {"top_k": 4, "top_p": 0.9}
    slots = SlotSampler(loaded, batch_size=8, **SHAPE, sampled=True, **few)
    plain = Sampler(loaded, batch_size=29, **SHAPE, **few)
    ours = [one.tokens for one in slots.generate(REQUESTS, temperature=0.9)]
    assert ours == [one.tokens for one in plain.generate(PROMPTS, temperature=0.9)]
    whole = Sampler(loaded, batch_size=29, **SHAPE)
    assert ours != [one.tokens for one in whole.generate(PROMPTS, temperature=0.9)]
    assert slots.excess == 0
