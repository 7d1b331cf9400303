"""Weights of prompts: agreement with AUTOMATIC1111's rule on the states of torch's encoders."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pipeline.families.latent_unet import encode_prompts
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.emphasis import read_emphasis
from tests.checkpoints import GOLDEN
from tests.reference import torch_reference
from tests.reference.tiny_checkpoints import load
from tools import agreement
from tools.agreement import relative_error

WEIGHTED = "a (red:1.4) star ((on)) [blue], (background:-0.3)"
PLAIN = "a red star on blue, background"
WORDS = {"red": 1.4, "on": 1.21, "blue": 1 / 1.1, "background": -0.3}


@pytest.mark.parametrize("name", ["sd_1", "sd_2", "plain", "three_levels"])
def test_weighted_states_agree(name: str) -> None:
    folder = GOLDEN / name / "checkpoint"
    theirs = load(folder, "fp16" if list(folder.glob("unet/*.fp16*")) else None)
    ours = agreement.load_networks(folder)
    states = torch_reference.encode_text(theirs, [PLAIN])
    count = len(ours.text_encoders)
    expected = []
    for i in range(count):
        tokenizer = theirs.tokenizer if i == 0 else theirs.tokenizer_2
        z = torch.from_numpy(states[f"hidden_{i + 1}"])
        multipliers = torch.ones(z.shape[:2])
        place = 1
        for word in PLAIN.replace(",", " ,").split():
            length = len(tokenizer(word).input_ids) - 2
            multipliers[0, place : place + length] = WORDS.get(word, 1.0)
            place += length
        before = z.mean()
        z = z * multipliers[..., None]
        expected.append((z * (before / z.mean())).numpy())
    placement = Placement(Embeddings())
    (section,) = read_emphasis(WEIGHTED)
    parts = [part for fragment in section for part in placement.place(*fragment)]
    tokens = ours.tokenizers.tokens(parts)
    ids, weights = (
        [jnp.asarray(getattr(each, of))[None, None] for each in tokens]
        for of in ("input_ids", "weights")
    )
    for i in range(count):
        np.testing.assert_array_equal(ids[i][0, 0], states[f"input_ids_{i + 1}"][0])
    found, _ = encode_prompts(ours.text_encoders, ids, jnp.zeros((1, 1), bool), weights)
    assert relative_error(np.asarray(found[0]), np.concatenate(expected, axis=-1)) <= 1e-5


@pytest.mark.parametrize("clip_skip", [1, 2, 3])
def test_an_earlier_layer_agrees(clip_skip: int) -> None:
    """The final norm follows whichever layer is read, as in AUTOMATIC1111 and diffusers."""
    folder = GOLDEN / "sd_1" / "checkpoint"
    encoder = load(folder, "fp16" if list(folder.glob("unet/*.fp16*")) else None).text_encoder
    ours = agreement.load_networks(folder)
    ids, _ = ours.tokenizers.tokenize([PLAIN, ""])
    with torch.no_grad():
        output = encoder(torch.from_numpy(ids[:, 0]), output_hidden_states=True)
        expected = encoder.final_layer_norm(output.hidden_states[-clip_skip])
    found, _ = encode_prompts(
        ours.text_encoders,
        [jnp.asarray(ids[:, 0])[None]],
        jnp.zeros((1, 2), bool),
        clip_skip=jnp.full((1, 2), clip_skip),
    )
    assert relative_error(np.asarray(found[0]), expected.numpy()) <= 1e-5
