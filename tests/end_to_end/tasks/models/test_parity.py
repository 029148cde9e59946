"""Our model against `transformers` on small random checkpoints of both families, in float32.

Tunix's models are used in benchmarks only. What Tunix 0.1.7 does otherwise than `transformers`:

- Gemma 2: the sliding window compares a key's index with a query's position, so in a row padded on
  the left it lies beside its place; with as much padding as the window is wide, a token does not
  even see itself.
- Gemma 2 9B: `gemma2_9b` has hidden_dim = 28672, twice that of the checkpoint (the report counts
  gate and up together).
- Gemma 2: `num_embed` is 256128, the checkpoints on Hugging Face have 256000.
- Gemma 2 and 3: queries are scaled by head_dim ** -0.5 (or (embed_dim / heads) ** -0.5), whatever
  query_pre_attn_scalar is.
- Gemma 3: the sliding window of a call with a cache and several tokens counts from index 0, so a
  prompt cannot be read in parts.
- The sampler stops at the tokenizer's eos id alone unless it is told others: an instruction-tuned
  Gemma ends its turn with <end_of_turn>.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tasks.data.tokens import prompt_tokens
from tasks.devices.hosts import make_mesh
from tasks.models.decoder import Gemma, GemmaConfig, weight_shapes
from tasks.models.loading import LoadedModel
from tasks.models.tiny import SIZE, tiny_tokenizer
from tasks.sampling.sampler import Sampler

torch = pytest.importorskip("torch", reason="parity needs torch (CPU): uv sync --extra export")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)  # these models are too small for more

WINDOW = 8
LENGTH = 40
TOLERANCE = 1e-4

GEMMA3 = GemmaConfig(
    family="gemma3", num_layers=12,  # more than UNROLLED_LAYERS: the layers are scanned
    vocab_size=SIZE, embed_dim=64, hidden_dim=96, num_heads=4, num_kv_heads=2, head_dim=16,
    window=WINDOW, global_every=6, local_rope=10_000.0, global_rope=1_000_000.0,
    global_rope_scale=8.0, query_scale=24**-0.5, attention_softcap=None, final_softcap=None,
    dtype="float32",
)  # fmt: skip
GEMMA2 = replace(
    GEMMA3, family="gemma2", num_layers=9, global_every=2, global_rope=10_000.0,
    global_rope_scale=1.0, attention_softcap=3.0,
    final_softcap=2.0,  # 50 and 30 would hardly bend scores and logits of this size
)  # fmt: skip
CONFIGS = {
    "gemma3 gqa scanned rope-scaled": GEMMA3,
    "gemma3 mqa unrolled": replace(GEMMA3, num_layers=6, num_kv_heads=1, global_rope_scale=1.0),
    "gemma2 gqa scanned": GEMMA2,
    "gemma2 mqa unrolled": replace(GEMMA2, num_layers=2, num_kv_heads=1, head_dim=32),
}


@dataclass
class Pair:
    """The same weights in both libraries."""

    ours: LoadedModel
    theirs: Any

    def logits(self, rows: np.ndarray, positions: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """(B, T, V) of ours."""
        return np.asarray(forward(self.ours.model, rows, positions, segments))

    def their_logits(self, tokens: list[int]) -> np.ndarray:
        """(T, V) of theirs for one text."""
        with torch.no_grad():
            return self.theirs(torch.tensor([tokens])).logits[0].numpy()


@nnx.jit
def forward(model: Gemma, rows: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
    return model.unembed(model(rows, positions, segments)[0])


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest) -> Pair:
    config = CONFIGS[request.param]
    torch.manual_seed(0)
    theirs = their_model(config)
    ours = Gemma(config, our_weights(config, theirs.state_dict()))
    return Pair(LoadedModel("test", config, ours, tiny_tokenizer(), make_mesh()), theirs)


def their_model(config: GemmaConfig) -> Any:
    """A random model: norm scales are no zeros, and scores are large enough that masks and
    soft-caps matter."""
    common = {
        "vocab_size": config.vocab_size, "hidden_size": config.embed_dim,
        "intermediate_size": config.hidden_dim, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "query_pre_attn_scalar": round(config.query_scale**-2),
        "sliding_window": config.window, "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.final_softcap, "attn_implementation": "eager",
    }  # fmt: skip
    if config.family == "gemma3":
        linear = {"rope_type": "linear", "factor": config.global_rope_scale}
        scaled = linear if config.global_rope_scale != 1 else {"rope_type": "default"}
        rope = {
            "full_attention": {**scaled, "rope_theta": config.global_rope},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rope},
        }
        text = transformers.Gemma3TextConfig(**common, rope_parameters=rope)
        model = transformers.Gemma3ForCausalLM(text)
    else:
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**common))
    for name, weight in model.named_parameters():
        scale = 0.3 if weight.ndim == 1 else weight.shape[-1] ** -0.5
        torch.nn.init.normal_(weight, std=scale)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.data += 0.5
        if name == "model.norm.weight":  # else the model says its last word again and again
            weight.data *= 8
    return model.eval()


def our_weights(config: GemmaConfig, state: dict[str, Any]) -> dict[str, jax.Array]:
    """Their weights under our names, stacked, transposed and split into heads: written anew here,
    so that it checks the reader's too."""
    module = {
        "q": "self_attn", "k": "self_attn", "v": "self_attn", "o": "self_attn", "gate": "mlp",
        "up": "mlp", "down": "mlp",
    }  # fmt: skip
    weights = {}
    for name, shape in weight_shapes(config).items():
        leaf = name.removeprefix("layers.")
        if name == "embedding":
            value = state["model.embed_tokens.weight"].numpy()
        elif name == "final_norm":
            value = state["model.norm.weight"].numpy()
        else:
            owner = f"{module[leaf.partition('_')[0]]}." if leaf.partition("_")[0] in module else ""
            names = [f"model.layers.{i}.{owner}{leaf}.weight" for i in range(config.num_layers)]
            value = np.stack([state[one].numpy().T for one in names])
        weights[name] = jnp.asarray(value.reshape(shape))
    return weights


def random_rows(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Texts without control tokens."""
    return np.random.default_rng(seed).integers(20, SIZE, (count, length)).tolist()


def test_logits_of_a_text_longer_than_the_window(pair: Pair) -> None:
    rows = random_rows(2, LENGTH)
    whole = np.ones((2, LENGTH), np.int32)
    logits = pair.logits(np.array(rows), np.tile(np.arange(LENGTH), (2, 1)), whole)
    for row, ours in zip(rows, logits, strict=True):
        assert_close(ours, pair.their_logits(row))


def test_padding_on_either_side_changes_nothing(pair: Pair) -> None:
    short, long = random_rows(1, 13)[0], random_rows(1, LENGTH, seed=1)[0]
    empty = LENGTH - len(short)
    for left in (True, False):
        pads = (empty, 0) if left else (0, empty)
        rows = np.array([np.pad(short, pads), long])
        segments = np.array([np.pad(np.ones(len(short), int), pads), np.ones(LENGTH, int)])
        positions = np.maximum(np.cumsum(segments, -1) - 1, 0)
        logits = pair.logits(rows, positions, segments)
        assert_close(logits[0][segments[0] > 0], pair.their_logits(short))
        assert_close(logits[1], pair.their_logits(long))


def test_packed_texts_do_not_see_each_other(pair: Pair) -> None:
    texts = [random_rows(1, length, seed=length)[0] for length in (11, 3, 19)]
    unused = LENGTH - sum(map(len, texts))
    row = np.array([*itertools.chain(*texts), *[0] * unused])
    segments = np.array(
        [number for number, text in enumerate(texts, start=1) for _ in text] + [0] * unused
    )
    positions = np.array([place for text in texts for place in range(len(text))] + [0] * unused)
    logits = pair.logits(*(np.tile(one, (2, 1)) for one in (row, positions, segments)))[1]
    for number, text in enumerate(texts, start=1):
        assert_close(logits[segments == number], pair.their_logits(text))


PROMPTS = ["Hi", "Name a colour that is warm, and say in three short sentences why."]
"""The longest takes more tokens than the window; each is left-padded to the fixed length."""


def test_greedy_generation_beyond_the_window(pair: Pair) -> None:
    sampler = Sampler(pair.ours, batch_size=2, prompt_length=48, response_length=2 * WINDOW)
    tokenizer = pair.ours.tokenizer
    for prompt, completion in zip(PROMPTS, sampler.generate(PROMPTS), strict=True):
        tokens = torch.tensor([prompt_tokens(tokenizer, prompt)])
        generated = pair.theirs.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=2 * WINDOW,
            do_sample=False,
            eos_token_id=tokenizer.end_of_turn_id,
            pad_token_id=tokenizer.pad_id,
        )
        expected = generated[0, tokens.shape[1] :].tolist()
        assert completion.tokens == expected
        assert len(set(expected)) > WINDOW // 2


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
