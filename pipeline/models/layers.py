"""Building blocks that the UNet and the VAE share. Activations are `[B, H, W, C]`."""

import math
from functools import partial
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels.attention import cross_attention, self_attention
from pipeline.kernels.matmul_conv import convolution, dot_general

A = TypeVar("A", Array, np.ndarray)
M = TypeVar("M", bound=nnx.Module)


def _initial(draw: nnx.Initializer) -> nnx.Initializer:
    """Draws a parameter; where there is no key, as from `weights.shape_rngs`, it is zeros.

    Random numbers are most of the time of tracing a network that is made for its shapes alone.
    """

    def init(key: Array | None, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return jnp.zeros(shape, dtype) if key is None else draw(key, shape, dtype)

    return cast(nnx.Initializer, init)


_kernel = _initial(nnx.initializers.lecun_normal())
_embedding = _initial(nnx.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0))


def linear(d_in: int, d_out: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
    """`[..., d_in] -> [..., d_out]`."""
    return nnx.Linear(
        d_in,
        d_out,
        use_bias=bias,
        kernel_init=_kernel,
        dtype=dtype,
        param_dtype=dtype,
        dot_general=dot_general,
        rngs=rngs,
    )


def embedding(rows: int, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Embed:
    """`[...]` integers below `rows` -> `[..., width]`."""
    return nnx.Embed(
        rows, width, embedding_init=_embedding, dtype=dtype, param_dtype=dtype, rngs=rngs
    )


def conv(
    c_in: int,
    c_out: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    padding: tuple[int, int] | None = None,
    bias: bool = True,
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
        use_bias=bias,
        kernel_init=_kernel,
        conv_general_dilated=convolution,
        dtype=dtype,
        param_dtype=dtype,
        rngs=rngs,
    )


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and variance in float32, the axes kept.

    E[x^2] - E[x]^2 cancels where a mean is large, so float32 takes a second pass for the variance.
    With bfloat16 one pass is enough, which an accelerator does while it writes x: where those sums
    lose their digits the 8 bits of x hold nothing but its mean.
    """
    wide = x.astype(jnp.float32)
    mean = wide.mean(axes, keepdims=True)
    if x.dtype == jnp.bfloat16:
        square = (wide**2).mean(axes, keepdims=True)
        return mean, jnp.maximum(square - mean**2, 0)
    return mean, ((wide - mean) ** 2).mean(axes, keepdims=True)


class GroupNorm(nnx.Module):
    """Over the pixels and channels of each group (Wu and He 2018), the statistics in float32.

    Those of channels are joined to those of groups (Chan et al. 1979): a reshape of the picture to
    groups would cost an accelerator a copy of it.
    """

    def __init__(self, channels: int, groups: int, eps: float, *, dtype: DTypeLike):
        self.groups = groups
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((channels,), dtype))
        self.bias = nnx.Param(jnp.zeros((channels,), dtype))

    @jax.named_scope("group_norm")
    def __call__(self, x: Array) -> Array:
        """`[B, H, W, C] -> [B, H, W, C]`."""
        mean, variance = _moments(x, (1, 2))  # of channels, [B, 1, 1, C]
        middle = self._over_groups(mean)
        spread = self._over_groups(variance + (mean - middle) ** 2)
        factor = jax.lax.rsqrt(spread + self.eps) * self.scale.astype(jnp.float32)
        shift = self.bias.astype(jnp.float32) - middle * factor
        return (x.astype(jnp.float32) * factor + shift).astype(x.dtype)

    def _over_groups(self, values: Array) -> Array:
        """Each channel's `[B, 1, 1, C]` replaced by the mean of its group."""
        grouped = values.reshape(*values.shape[:-1], self.groups, -1)
        mean = grouped.mean(axis=-1, keepdims=True)
        return jnp.broadcast_to(mean, grouped.shape).reshape(values.shape)


class LayerNorm(nnx.Module):
    """Over the last axis (Ba et al. 2016), the statistics in float32."""

    def __init__(self, width: int, eps: float, *, dtype: DTypeLike):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.bias = nnx.Param(jnp.zeros((width,), dtype))

    @jax.named_scope("layer_norm")
    def __call__(self, x: Array) -> Array:
        """`[..., width] -> [..., width]`."""
        mean, variance = _moments(x, (-1,))
        factor = jax.lax.rsqrt(variance + self.eps) * self.scale.astype(jnp.float32)
        centred = x.astype(jnp.float32) - mean
        return (centred * factor + self.bias.astype(jnp.float32)).astype(x.dtype)


def gelu(x: Array) -> Array:
    """x Phi(x) (Hendrycks and Gimpel 2016), in float32, with erf as torch's is.

    `jax.nn.gelu` keeps more digits of the tail, with erfc, which takes a CPU three times as long.
    """
    wide = x.astype(jnp.float32)
    return (wide * (0.5 + 0.5 * jax.lax.erf(wide * np.float32(math.sqrt(0.5))))).astype(x.dtype)


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

    @jax.named_scope("time_embedding")
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
        self.norm1 = GroupNorm(c_in, groups, eps, dtype=dtype)
        self.conv1 = make(c_in, c_out)
        if time_dim is not None:
            self.time_emb_proj = linear(time_dim, c_out, dtype=dtype, rngs=rngs)
        self.norm2 = GroupNorm(c_out, groups, eps, dtype=dtype)
        self.conv2 = make(c_out, c_out)
        if c_in != c_out:
            self.conv_shortcut = make(c_in, c_out, kernel=1)

    @jax.named_scope("resnet")
    def __call__(self, x: Array, time_embed: Array | None = None) -> Array:
        """`[B, H, W, c_in]` and time_embed `[B, time_dim]` -> `[B, H, W, c_out]`."""
        h = self.conv1(jax.nn.silu(self.norm1(x)))
        if time_embed is not None:
            h = h + self.time_emb_proj(jax.nn.silu(time_embed))[:, None, None, :]
        h = self.conv2(jax.nn.silu(self.norm2(h)))
        return h + (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x)


class SelfAttention(nnx.Module):
    """Multi-head attention of a sequence `[B, L, width]` to itself.

    `bias` is about query, key and value; the output projection always has one.
    """

    def __init__(self, width: int, heads: int, *, bias: bool, dtype: DTypeLike, rngs: nnx.Rngs):
        self.heads = heads
        self.to_qkv = linear(width, 3 * width, bias=bias, dtype=dtype, rngs=rngs)
        self.to_out = linear(width, width, dtype=dtype, rngs=rngs)

    @jax.named_scope("self_attention")
    def __call__(self, x: Array) -> Array:
        """`[B, L, width] -> [B, L, width]`."""
        return self.to_out(self_attention(self.to_qkv(x), self.heads))


class CrossAttention(nnx.Module):
    """Multi-head attention of a sequence `[B, L, width]` to a context `[B, S, context_dim]`."""

    def __init__(
        self, width: int, context_dim: int, heads: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        self.heads = heads
        self.to_q = linear(width, width, bias=False, dtype=dtype, rngs=rngs)
        self.to_kv = linear(context_dim, 2 * width, bias=False, dtype=dtype, rngs=rngs)
        self.to_out = linear(width, width, dtype=dtype, rngs=rngs)

    @jax.named_scope("cross_attention")
    def __call__(self, x: Array, key_value: Array) -> Array:
        """`[B, L, width]`, and of the context `to_kv`, `[B, S, 2 width]` -> `[B, L, width]`."""
        return self.to_out(cross_attention(self.to_q(x), key_value, self.heads))


class Upsample(nnx.Module):
    """Each pixel four times, then a 3x3 convolution: `[B, H, W, C] -> [B, 2H, 2W, C]`.

    Done as four 2x2 convolutions of the small picture, one for each place of a pixel among its
    four: taps that meet the same pixel are summed, and 4/9 of the multiplications are left.
    """

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        made = conv(width, width, dtype=dtype, rngs=rngs)
        self.kernel, self.bias = made.kernel, made.bias

    def fold(self) -> None:
        """Keeps the sums alone, for a network that is not trained any more."""
        self.taps = nnx.Param(summed_taps(self.kernel[...]))
        del self.kernel

    @jax.named_scope("upsample")
    def __call__(self, x: Array) -> Array:
        """`[B, H, W, C] -> [B, 2H, 2W, C]`."""
        taps = self.taps[...] if hasattr(self, "taps") else summed_taps(self.kernel[...])
        b, h, w, c = x.shape
        rows = []
        for i in range(2):
            places = [_conv_2x2(x, taps[i, j], i, j) for j in range(2)]
            rows.append(jnp.stack(places, axis=3))  # [B, H, W, 2, C]
        pixels = jnp.stack(rows, axis=2)  # [B, H, 2, W, 2, C]
        assert self.bias is not None
        return pixels.reshape(b, 2 * h, 2 * w, c) + self.bias[...]


def _conv_2x2(x: Array, kernel: Array, i: int, j: int) -> Array:
    """Of the pixels in row i and column j of every four."""
    return convolution(x, kernel, (1, 1), ((1 - i, i), (1 - j, j)))


def summed_taps(kernel: A) -> A:
    """A kernel `[3, 3, I, O]` -> for each place among four pixels one, `[2, 2, 2, 2, I, O]`.

    Of JAX or NumPy; summed in float32.
    """
    stack = kernel.__array_namespace__().stack

    def along(taps: A) -> A:
        """`[3, ...] -> [2, 2, ...]`: for either place two, of a pixel and its neighbour."""
        a, b, c = taps
        return stack([stack([a, b + c]), stack([a + b, c])])

    rows = along(kernel.astype(np.float32))  # [2, 2, 3, I, O]
    both = along(rows.transpose(2, 0, 1, 3, 4))  # [2, 2, 2, 2, I, O]: columns, then rows
    return both.transpose(2, 0, 3, 1, 4, 5).astype(kernel.dtype)


def folded(network: M) -> M:
    """The network itself, ready to be used and not to be trained: see `Upsample.fold`."""
    for _, part in nnx.iter_modules(network):
        if isinstance(part, Upsample):
            part.fold()
    return network
