"""A reward model in `transformers`: a classifier with the same logits."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tasks.devices.hosts import make_mesh
from tasks.models.decoder import SIZES
from tasks.models.loading import LoadedModel, load_model, save_model
from tasks.models.scalar_head import add_head, load_scoring_model
from tasks.models.weights import initialise
from tasks.reward_models.scoring import TraceScorer
from tasks.reward_models.steps import trace_row
from tests.tasks.reward_models.step_traces import EXAMPLES, LENGTHS, TOKENIZER


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_transformers_loads_it_as_a_classifier_with_the_same_logits(family: str, tmp_path: Path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ropes = {"local_rope": 10_000.0, "global_rope": 10_000.0}
    gemma2 = {"attention_softcap": 50.0, "final_softcap": 30.0, **ropes}
    own = gemma2 if family == "gemma2" else {}
    table = replace(SIZES["gemma3-tiny"], num_layers=2, family=family, global_every=2, **own)
    loaded = LoadedModel("test", table, initialise(table, 0), TOKENIZER, make_mesh())
    add_head(
        loaded,
        np.random.Generator(np.random.Philox(2)).normal(size=table.embed_dim).astype(np.float32),
    )
    save_model(loaded, tmp_path)

    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, attn_implementation="eager"
    ).eval()
    assert theirs.config.num_labels == 1
    rows = [trace_row(TOKENIZER, one.prompt, one.trace()) for one in EXAMPLES[:3]]
    scorer = TraceScorer(load_scoring_model(tmp_path, make_mesh()), 2, SimpleNamespace(**LENGTHS))
    ours = scorer.score(rows)
    for row, scores in zip(rows, ours, strict=True):
        ids = torch.tensor([[*row.prompt, *row.response.tokens]])
        with torch.no_grad():
            tokens = theirs.score(theirs.model(ids).last_hidden_state)[
                0, len(row.prompt) :, 0
            ].numpy()
            assert scores.answer == pytest.approx(theirs(ids).logits.item(), abs=1e-4)
        assert np.allclose([*scores.steps, scores.answer], tokens[row.response.ends], atol=1e-4)
    assert load_model(tmp_path).config == table  # the Gemma below the head is a model like others
