"""CLIP's text encoder (Radford et al. 2021), as Stable Diffusion uses it."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels.attention import attention
from pipeline.models.clip_config import EncoderConfig, TextEncoderConfig
from pipeline.models.layers import LayerNorm, embedding, gelu, linear

# Files written when CLIP was new give 2 as the end token, whatever the tokenizer says. The end
# token is then the largest id of the prompt.
LEGACY_EOS_TOKEN_ID = 2


def quick_gelu(x: Array) -> Array:
    """Return CLIP's approximation of GELU."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATION: dict[str, Callable[[Array], Array]] = {
    "quick_gelu": quick_gelu,
    "gelu": gelu,
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


class SelfAttention(nnx.Module):
    """Multi-head attention, `[B, L, D] -> [B, L, D]`.

    `causal` limits each position to itself and to earlier positions.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, dtype: DTypeLike, rngs: nnx.Rngs):
        make = partial(linear, width, width, dtype=dtype, rngs=rngs)
        self.heads = heads
        self.causal = causal
        self.q_proj = make()
        self.k_proj = make()
        self.v_proj = make()
        self.out_proj = make()

    def __call__(self, x: Array) -> Array:
        """Apply the layer, `[B, L, D] -> [B, L, D]`."""
        q, k, v = (
            projection(x).reshape(*x.shape[:2], self.heads, -1)  # [B, L, N, K]
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(attention(q, k, v, causal=self.causal).reshape(x.shape))


class MLP(nnx.Module):
    """Two linear layers with the config's activation between them."""

    def __init__(self, config: EncoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        make = partial(linear, dtype=dtype, rngs=rngs)
        self.activation = config.hidden_act
        self.fc1 = make(config.hidden_size, config.intermediate_size)
        self.fc2 = make(config.intermediate_size, config.hidden_size)

    def __call__(self, x: Array) -> Array:
        """Apply the layers, `[B, L, D] -> [B, L, D]`."""
        return self.fc2(ACTIVATION[self.activation](self.fc1(x)))


class EncoderLayer(nnx.Module):
    """A pre-norm transformer layer; `causal` as in `SelfAttention`."""

    def __init__(self, config: EncoderConfig, *, causal: bool, dtype: DTypeLike, rngs: nnx.Rngs):
        width, heads = config.hidden_size, config.num_attention_heads
        norm = partial(LayerNorm, width, config.layer_norm_eps)
        self.layer_norm1 = norm()
        self.self_attn = SelfAttention(width, heads, causal=causal, dtype=dtype, rngs=rngs)
        self.layer_norm2 = norm()
        self.mlp = MLP(config, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Apply the layer, `[B, L, D] -> [B, L, D]`."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class CLIPTextEncoder(nnx.Module):
    """Encoder of token ids to hidden states and, with a projection, to one pooled embedding."""

    def __init__(self, config: TextEncoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width = config.hidden_size
        embed = partial(embedding, width=width, dtype=dtype, rngs=rngs)
        self.config = config
        self.token_embedding = embed(config.vocab_size)
        self.position_embedding = embed(config.max_position_embeddings)
        self.layers = nnx.List(
            EncoderLayer(config, causal=True, dtype=dtype, rngs=rngs)
            for _ in range(config.num_hidden_layers)
        )
        self.final_layer_norm = LayerNorm(width, config.layer_norm_eps)
        if config.projection_dim is not None:
            self.text_projection = linear(
                width, config.projection_dim, bias=False, dtype=dtype, rngs=rngs
            )

    def __call__(
        self, input_ids: Array, vectors: Array | None = None, clip_skip: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Encode input_ids `[B, L]` int32.

        Args:
            input_ids: the ids of tokens. With `vectors`, the id -1 - i stands for its row i.
            vectors: token embeddings beside those of the vocabulary, `[R, D]`.
            clip_skip: `[B]` int32, the layer whose output becomes the hidden states, counted from
                the last one, which is 1. Only for encoders without a projection that take the
                last layer's; None takes it always.

        Returns:
            The hidden states `[B, L, D]` and the pooled embedding `[B, P]`, which is None without a
            projection. With `config.penultimate`, the hidden states are the input of the last
            layer, without the final norm; otherwise its output after the final norm.
        """
        positions = jnp.arange(input_ids.shape[1])
        x = self._embed(input_ids, vectors) + self.position_embedding(positions)
        outputs = []
        for layer in self.layers[:-1]:
            x = layer(x)
            outputs.append(x)
        if self.config.penultimate and self.config.projection_dim is None:
            return x, None
        last = self.layers[-1](x)
        if clip_skip is not None:
            last = jnp.stack([*outputs, last])[-clip_skip, jnp.arange(len(last))]
        final = self.final_layer_norm(last)
        states = x if self.config.penultimate else final
        if self.config.projection_dim is None:
            return states, None
        pooled = final[jnp.arange(final.shape[0]), self._end(input_ids)]  # [B, D]
        return states, self.text_projection(pooled)

    def _embed(self, input_ids: Array, vectors: Array | None) -> Array:
        if vectors is None:
            return self.token_embedding(input_ids)
        token_embeds = self.token_embedding(jnp.maximum(input_ids, 0))
        vector_embeds = vectors[jnp.maximum(-1 - input_ids, 0)].astype(token_embeds.dtype)
        return jnp.where((input_ids >= 0)[..., None], token_embeds, vector_embeds)

    def _end(self, input_ids: Array) -> Array:
        """Return the position of the end token in each row, `[B]`."""
        if self.config.eos_token_id == LEGACY_EOS_TOKEN_ID:
            return jnp.argmax(input_ids, axis=-1)
        return jnp.argmax(input_ids == self.config.eos_token_id, axis=-1)
