"""Dependence of the text encoders' outputs on their inputs; test_golden checks the values."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.clip import ACTIVATION, CLIPTextEncoder
from pipeline.models.clip_config import ACTIVATIONS, TextEncoderConfig
from tests.checkpoints import random_module
from tests.networks import END, INPUT_IDS, TEXT_CONFIG


def encoder(config: TextEncoderConfig) -> CLIPTextEncoder:
    return CLIPTextEncoder(config, dtype=jnp.float32, rngs=shape_rngs())


def test_shapes() -> None:
    states, pooled = jax.eval_shape(lambda ids: encoder(TEXT_CONFIG)(ids), INPUT_IDS)
    assert (states.shape, pooled.shape) == ((2, 6, 8), (2, 5))
    first = replace(TEXT_CONFIG, projection_dim=None)
    assert jax.eval_shape(lambda ids: encoder(first)(ids), INPUT_IDS)[1] is None


@pytest.mark.parametrize("eos", [END, 2], ids=["named", "where ids are largest"])
def test_pooled_is_taken_at_the_end_token(eos: int) -> None:
    """Tokens after the end token change neither the pooled output nor earlier states."""
    module = random_module(lambda: encoder(replace(TEXT_CONFIG, eos_token_id=eos)))
    encode = partial(nnx.jit(lambda module, ids: module(ids)), module)
    states, pooled = encode(INPUT_IDS)
    changed = INPUT_IDS.copy()
    changed[0, 4:], changed[1, 2:] = 5, 6
    later_states, later = encode(changed)
    np.testing.assert_allclose(later, pooled, atol=1e-6)
    np.testing.assert_allclose(later_states[0, :4], states[0, :4], atol=1e-6)
    assert np.abs(later_states[0, 4:] - states[0, 4:]).max() > 1e-3
    changed = INPUT_IDS.copy()
    changed[0, 1] = 7
    _, earlier = encode(changed)
    assert np.abs(earlier[0] - pooled[0]).max() > 1e-4


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("penultimate", [True, False])
def test_states_are_taken_before_the_last_layer_or_after_the_final_norm(
    layers: int, penultimate: bool
) -> None:
    @jax.jit
    def both(ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        encode = encoder(replace(TEXT_CONFIG, num_hidden_layers=layers, penultimate=penultimate))
        x = encode.token_embedding(ids) + encode.position_embedding(jnp.arange(6))
        for layer in list(encode.layers)[: layers - penultimate]:
            x = layer(x)
        return encode(ids)[0], x if penultimate else encode.final_layer_norm(x)

    ours, right = both(INPUT_IDS)
    np.testing.assert_allclose(ours, right, atol=1e-6)


def test_every_activation_is_there_and_its_own() -> None:
    assert set(ACTIVATION) == set(ACTIVATIONS)
    x = jnp.linspace(-3, 3, 50)
    values = {name: np.asarray(ACTIVATION[name](x)) for name in ACTIVATIONS}
    np.testing.assert_allclose(values["quick_gelu"], x / (1 + np.exp(-1.702 * x)), rtol=1e-5)
    np.testing.assert_array_equal(values["gelu_new"], values["gelu_pytorch_tanh"])
    assert 1e-5 < np.abs(values["gelu"] - values["gelu_new"]).max() < 1e-2
    assert len({array.tobytes() for array in values.values()}) == len(ACTIVATIONS) - 1
