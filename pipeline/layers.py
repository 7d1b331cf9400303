"""Building blocks that the UNet and the VAE share. Activations are `[B, H, W, C]`."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.attention import attention


def linear(d_in: int, d_out: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
    """`[..., d_in] -> [..., d_out]`."""
    return nnx.Linear(d_in, d_out, use_bias=bias, dtype=dtype, param_dtype=dtype, rngs=rngs)


def conv(
    c_in: int,
    c_out: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    padding: tuple[int, int] | None = None,
    dtype: DTypeLike,
    rngs: nnx.Rngs,
) -> nnx.Conv:
    """A square convolution; by default padded so that stride 1 keeps the size."""
    pad = (kernel // 2, kernel // 2) if padding is None else padding
    return nnx.Conv(
        c_in,
        c_out,
        kernel_size=(kernel, kernel),
        strides=stride,
        padding=[pad, pad],
        dtype=dtype,
        param_dtype=dtype,
        rngs=rngs,
    )


def group_norm(channels: int, groups: int, eps: float, *, dtype: DTypeLike, rngs: nnx.Rngs):
    """Statistics in float32 and in two passes: E[x^2] - E[x]^2 cancels."""
    return nnx.GroupNorm(
        channels,
        groups,
        epsilon=eps,
        use_fast_variance=False,
        dtype=dtype,
        param_dtype=dtype,
        rngs=rngs,
    )


def layer_norm(width: int, eps: float, *, dtype: DTypeLike, rngs: nnx.Rngs):
    """Statistics in float32 and in two passes."""
    return nnx.LayerNorm(
        width, epsilon=eps, use_fast_variance=False, dtype=dtype, param_dtype=dtype, rngs=rngs
    )


def sinusoid(values: Array, dim: int, *, flip_sin_to_cos: bool, freq_shift: float) -> Array:
    """Sinusoidal embedding of `values` `[B]` in float32, `[B, dim]` (dim even).

    Ho et al. 2020, section 3.3, as in diffusers' get_timestep_embedding with max_period 10000.
    """
    half = dim // 2
    # On the host: XLA turns the division into a multiplication, and a frequency that is a few units
    # in the last place off moves the angle of a timestep of 999 by a thousandth.
    exponent = np.float32(-math.log(10000.0)) * np.arange(half, dtype=np.float32)
    exponent /= np.float32(half - freq_shift)
    frequencies = np.exp(exponent.astype(np.float64)).astype(np.float32)
    angles = values.astype(jnp.float32)[:, None] * frequencies
    parts = (
        (jnp.cos(angles), jnp.sin(angles))
        if flip_sin_to_cos
        else (jnp.sin(angles), jnp.cos(angles))
    )
    return jnp.concatenate(parts, axis=-1)


class TimestepEmbedding(nnx.Module):
    """Two linear layers over a sinusoidal embedding, `[B, d_in] -> [B, d_out]`."""

    def __init__(self, d_in: int, d_out: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.linear_1 = linear(d_in, d_out, dtype=dtype, rngs=rngs)
        self.linear_2 = linear(d_out, d_out, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """`[B, d_in] -> [B, d_out]`."""
        return self.linear_2(jax.nn.silu(self.linear_1(x)))


class ResnetBlock(nnx.Module):
    """Norm, SiLU, convolution, twice, around a skip; the time embedding is added in between.

    `time_dim` None leaves the time embedding out (the VAE has none).
    """

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        groups: int,
        eps: float,
        time_dim: int | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        make = partial(conv, dtype=dtype, rngs=rngs)
        self.norm1 = group_norm(c_in, groups, eps, dtype=dtype, rngs=rngs)
        self.conv1 = make(c_in, c_out)
        if time_dim is not None:
            self.time_emb_proj = linear(time_dim, c_out, dtype=dtype, rngs=rngs)
        self.norm2 = group_norm(c_out, groups, eps, dtype=dtype, rngs=rngs)
        self.conv2 = make(c_out, c_out)
        if c_in != c_out:
            self.conv_shortcut = make(c_in, c_out, kernel=1)

    def __call__(self, x: Array, time_embed: Array | None = None) -> Array:
        """`[B, H, W, c_in]` and time_embed `[B, time_dim]` -> `[B, H, W, c_out]`."""
        h = self.conv1(jax.nn.silu(self.norm1(x)))
        if time_embed is not None:
            h = h + self.time_emb_proj(jax.nn.silu(time_embed))[:, None, None, :]
        h = self.conv2(jax.nn.silu(self.norm2(h)))
        return h + (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x)


class Attention(nnx.Module):
    """Multi-head attention of x `[B, L, width]` to a context `[B, S, context_dim]`, or to itself.

    `bias` is about query, key and value; the output projection always has one.
    """

    def __init__(
        self,
        width: int,
        context_dim: int,
        heads: int,
        *,
        bias: bool,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        make = partial(linear, dtype=dtype, rngs=rngs)
        self.heads = heads
        self.to_q = make(width, width, bias=bias)
        self.to_k = make(context_dim, width, bias=bias)
        self.to_v = make(context_dim, width, bias=bias)
        self.to_out = make(width, width)

    def __call__(self, x: Array, context: Array | None = None) -> Array:
        """`[B, L, width]`, and a context `[B, S, context_dim]` -> `[B, L, width]`."""
        context = x if context is None else context
        q, k, v = (
            projected.reshape(*projected.shape[:2], self.heads, -1)  # [B, L, N, K]
            for projected in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out(attention(q, k, v).reshape(x.shape))


def upsample_nearest(x: Array) -> Array:
    """`[B, H, W, C] -> [B, 2H, 2W, C]`, each pixel four times."""
    b, h, w, c = x.shape
    wide = jnp.broadcast_to(x[:, :, None, :, None, :], (b, h, 2, w, 2, c))
    return wide.reshape(b, 2 * h, 2 * w, c)
