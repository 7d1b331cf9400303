"""Building blocks that the UNet and the VAE share. Activations are `[B, H, W, C]`."""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.kernels import rows
from pipeline.kernels.attention import cross_attention, self_attention
from pipeline.kernels.matmul_conv import (
    convolution,
    dot_general,
    interleave,
    merged_upsample_kernels,
)

M = TypeVar("M", bound=nnx.Module)


def _initial(draw: nnx.Initializer) -> nnx.Initializer:
    """Wrap an initializer so that it returns zeros when it gets no random key.

    `shape_rngs` gives no keys. Drawing random numbers would otherwise take most of the time of
    tracing a network for its shapes alone.
    """

    def init(key: Array | None, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return jnp.zeros(shape, dtype) if key is None else draw(key, shape, dtype)

    return cast(nnx.Initializer, init)


_kernel = _initial(nnx.initializers.lecun_normal())
_embedding = _initial(nnx.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0))


def linear(d_in: int, d_out: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
    """Make a linear layer, `[..., d_in] -> [..., d_out]`."""
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
    """Make an embedding of integers below `rows`, `[...] -> [..., width]`."""
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
    """Make a square convolution; the default padding keeps the size at stride 1."""
    pad = (kernel // 2, kernel // 2) if padding is None else padding
    return nnx.Conv(
        c_in,
        c_out,
        kernel_size=(kernel, kernel),
        strides=(stride, stride),
        padding=[pad, pad],
        use_bias=bias,
        kernel_init=_kernel,
        conv_general_dilated=convolution,
        dtype=dtype,
        param_dtype=dtype,
        rngs=rngs,
    )


def _moments(
    x: Array,
    axes: tuple[int, ...],
    average: Callable[..., tuple[Array, ...]] = lambda *means: means,
) -> tuple[Array, Array]:
    """Return the mean and the variance over `axes`, in float32, with the axes kept.

    `average` turns means over this device's part of the axes into those over the whole.

    float32 takes a second pass for the variance, because E[x^2] - E[x]^2 cancels where the mean is
    large. bfloat16 takes one pass, which an accelerator does while it writes x. That is
    accurate enough: where the sums lose their digits, the 8 bits of x hold nothing but the mean.
    """
    wide = x.astype(jnp.float32)
    mean = wide.mean(axes, keepdims=True)
    if x.dtype == jnp.bfloat16:
        mean, square = average(mean, (wide**2).mean(axes, keepdims=True))
        return mean, jnp.maximum(square - mean**2, 0)
    (mean,) = average(mean)
    (variance,) = average(((wide - mean) ** 2).mean(axes, keepdims=True))
    return mean, variance


class GroupNorm(nnx.Module):
    """Group normalization (Wu and He 2018) with statistics and parameters in float32.

    Statistics are computed per channel and then merged per group (Chan et al. 1979), because a
    reshape of the picture to groups would cost an accelerator a copy of the picture.
    """

    def __init__(self, channels: int, groups: int, eps: float):
        self.groups = groups
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((channels,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((channels,), jnp.float32))

    @jax.named_scope("group_norm")
    def __call__(self, x: Array) -> Array:
        """Normalize `[B, H, W, C] -> [B, H, W, C]`."""
        mean, variance = _moments(x, (1, 2), rows.mean)  # per channel, [B, 1, 1, C]
        middle = self._over_groups(mean)
        group_variance = self._over_groups(variance + (mean - middle) ** 2)
        factor = jax.lax.rsqrt(group_variance + self.eps) * self.scale[...]
        shift = self.bias[...] - middle * factor
        return (x.astype(jnp.float32) * factor + shift).astype(x.dtype)

    def _over_groups(self, values: Array) -> Array:
        """Replace each channel's value, `[B, 1, 1, C]`, by the mean over the channel's group."""
        grouped = values.reshape(*values.shape[:-1], self.groups, -1)
        mean = grouped.mean(axis=-1, keepdims=True)
        return jnp.broadcast_to(mean, grouped.shape).reshape(values.shape)


class LayerNorm(nnx.Module):
    """Layer normalization over the last axis (Ba et al. 2016), in float32 as `GroupNorm`."""

    def __init__(self, width: int, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32))

    @jax.named_scope("layer_norm")
    def __call__(self, x: Array) -> Array:
        """Normalize `[..., width] -> [..., width]`."""
        mean, variance = _moments(x, (-1,))
        factor = jax.lax.rsqrt(variance + self.eps) * self.scale[...]
        centred = x.astype(jnp.float32) - mean
        return (centred * factor + self.bias[...]).astype(x.dtype)


def gelu(x: Array) -> Array:
    """Return x Phi(x) (Hendrycks and Gimpel 2016), computed in float32 with erf, as in torch.

    `jax.nn.gelu` uses erfc, which is more accurate in the tail but three times as slow on a CPU.
    """
    wide = x.astype(jnp.float32)
    return (wide * (0.5 + 0.5 * jax.lax.erf(wide * np.float32(math.sqrt(0.5))))).astype(x.dtype)


def sinusoid(values: Array, dim: int, *, flip_sin_to_cos: bool, freq_shift: float) -> Array:
    """Return the sinusoidal embedding of `values` `[B]`, `[B, dim]` float32; dim must be even.

    Ho et al. 2020, section 3.3, as in diffusers' get_timestep_embedding with max_period 10000.
    """
    half = dim // 2
    # The frequencies are computed on the host, because XLA turns the division into a
    # multiplication. A frequency that is off by a few units in the last place moves the angle of
    # timestep 999 by a thousandth.
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
    """Two linear layers over a sinusoidal embedding, `[B, d_in] -> [B, d_out]`.

    With `cond_dim`, a projection of a condition `[B, cond_dim]` can be added to the embedding.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        cond_dim: int | None = None,
        *,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.cond_proj = (
            None if cond_dim is None else linear(cond_dim, d_in, bias=False, dtype=dtype, rngs=rngs)
        )
        self.linear_1 = linear(d_in, d_out, dtype=dtype, rngs=rngs)
        self.linear_2 = linear(d_out, d_out, dtype=dtype, rngs=rngs)

    @jax.named_scope("time_embedding")
    def __call__(self, x: Array) -> Array:
        """Apply the layers, `[B, d_in] -> [B, d_out]`."""
        return self.linear_2(jax.nn.silu(self.linear_1(x)))


class ResnetBlock(nnx.Module):
    """Norm, SiLU and convolution, twice, with a skip connection around them.

    The time embedding is added after the first convolution, or with `scale_shift` scales and shifts
    the second norm's output. `time_dim` None leaves the time embedding out (the VAE has none).
    """

    def __init__(
        self,
        c_in: int,
        c_out: int,
        *,
        groups: int,
        eps: float,
        time_dim: int | None = None,
        scale_shift: bool = False,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        make = partial(conv, dtype=dtype, rngs=rngs)
        self.scale_shift = scale_shift
        self.norm1 = GroupNorm(c_in, groups, eps)
        self.conv1 = make(c_in, c_out)
        self.time_emb_proj = (
            None
            if time_dim is None
            else linear(time_dim, (1 + scale_shift) * c_out, dtype=dtype, rngs=rngs)
        )
        self.norm2 = GroupNorm(c_out, groups, eps)
        self.conv2 = make(c_out, c_out)
        self.conv_shortcut = make(c_in, c_out, kernel=1) if c_in != c_out else None

    @jax.named_scope("resnet")
    def __call__(self, x: Array, time_embed: Array | None = None) -> Array:
        """Map x `[B, H, W, c_in]` and time_embed `[B, time_dim]` to `[B, H, W, c_out]`."""
        h = self.conv1(jax.nn.silu(self.norm1(x)))
        if self.time_emb_proj is None:
            h = self.norm2(h)
        else:
            assert time_embed is not None
            h = self._conditioned(h, self.time_emb_proj(jax.nn.silu(time_embed))[:, None, None, :])
        h = self.conv2(jax.nn.silu(h))
        return h + (x if self.conv_shortcut is None else self.conv_shortcut(x))

    def _conditioned(self, h: Array, projected: Array) -> Array:
        """Apply the second norm, conditioned on the projected time embedding."""
        if not self.scale_shift:
            return self.norm2(h + projected)
        scale, shift = jnp.split(projected, 2, axis=-1)
        return self.norm2(h) * (1 + scale) + shift


class SelfAttention(nnx.Module):
    """Multi-head attention of a sequence `[B, L, width]` to itself.

    `bias` applies to query, key and value; the output projection always has a bias.
    """

    def __init__(self, width: int, heads: int, *, bias: bool, dtype: DTypeLike, rngs: nnx.Rngs):
        self.heads = heads
        self.to_qkv = linear(width, 3 * width, bias=bias, dtype=dtype, rngs=rngs)
        self.to_out = linear(width, width, dtype=dtype, rngs=rngs)

    @jax.named_scope("self_attention")
    def __call__(self, x: Array) -> Array:
        """Apply the layer, `[B, L, width] -> [B, L, width]`.

        Devices that share rows send each other their inputs, not the keys and values, which are
        twice as large: they arrive while a device projects its own.
        """
        other_bands = [self.to_qkv(band) for band in rows.others(x)]
        return self.to_out(self_attention(self.to_qkv(x), self.heads, other_bands))


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
    def __call__(self, x: Array, key_value: Array, chunks: Array | None = None) -> Array:
        """Apply the layer, `[B, L, width] -> [B, L, width]`.

        `key_value` `[B, S, 2 width]` is `to_kv` of the context. With `chunks`, see
        `cross_attention`.
        """
        return self.to_out(cross_attention(self.to_q(x), key_value, self.heads, chunks))


class Upsample(nnx.Module):
    """Nearest-neighbour upsampling, then a 3x3 convolution: `[B, H, W, C] -> [B, 2H, 2W, C]`.

    Both are computed together as four 2x2 convolutions of the small picture, one for each position
    in a 2x2 block of output pixels. Taps that read the same input pixel are summed, which leaves
    4/9 of the multiplications.
    """

    def __init__(self, width: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
        layer = conv(width, width, bias=bias, dtype=dtype, rngs=rngs)
        self.kernel: nnx.Param | None = layer.kernel  # None once it is merged
        self.merged_kernels: nnx.Param | None = nnx.data(None)
        self.bias = layer.bias

    def merge_kernel(self) -> None:
        """Replace the kernel by its merged ones, for a network that is no longer trained."""
        assert self.kernel is not None
        self.merged_kernels = nnx.Param(merged_upsample_kernels(self.kernel[...]))
        self.kernel = None

    @jax.named_scope("upsample")
    def __call__(self, x: Array) -> Array:
        """Upsample `[B, H, W, C] -> [B, 2H, 2W, C]`."""
        if self.merged_kernels is not None:
            kernels = self.merged_kernels[...]
        else:
            assert self.kernel is not None
            kernels = merged_upsample_kernels(self.kernel[...])
        places = [[_conv_2x2(x, kernels[i, j], i, j) for j in range(2)] for i in range(2)]
        picture = interleave(places)
        return picture if self.bias is None else picture + self.bias[...]


def _conv_2x2(x: Array, kernel: Array, i: int, j: int) -> Array:
    """Return the output pixels at row i and column j of every 2x2 block, `[B, H, W, C]`."""
    return convolution(x, kernel, (1, 1), ((1 - i, i), (1 - j, j)))


def merge_kernels(network: M) -> M:
    """Merge the kernels of a network's `Upsample` layers in place, and return the network.

    A network with merged kernels computes with fewer multiplications and cannot be trained.
    """
    for _, part in nnx.iter_modules(network):
        if isinstance(part, Upsample):
            part.merge_kernel()
    return network
