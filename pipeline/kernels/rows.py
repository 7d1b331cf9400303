"""Rows of one picture on several devices: each has a band of them, in order from the top.

A program names the axes of its mesh over which it spreads rows with `spread`, around the network's
call. The layers that look beyond a device's band then fetch the rest by the functions here. In all
other programs these functions return their arguments, and nothing changes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from jax import Array

Padding = Sequence[tuple[int, int]]

_AXES: ContextVar[tuple[str, ...]] = ContextVar("axes", default=())


@contextmanager
def spread(*axes: str) -> Iterator[None]:
    """Spread the rows of pictures over these axes of the mesh while this context is traced.

    It must be inside `jax.shard_map` over the axes. Without axes, every device has all rows.
    """
    token = _AXES.set(axes)
    try:
        yield
    finally:
        _AXES.reset(token)


def own(x: Array) -> Array:
    """Return this device's band of `x` `[B, H, ...]`, of which it has all rows."""
    if not (axes := _AXES.get()):
        return x
    size = x.shape[1] // jax.lax.axis_size(axes)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * size, size, 1)


def whole(band: Array) -> Array:
    """Return all rows of a picture, or all tokens, `[B, H, ...]`, from every device's band."""
    if not (axes := _AXES.get()):
        return band
    return jax.lax.all_gather(band, axes, axis=1, tiled=True)


def others(band: Array) -> list[Array]:
    """Return the other devices' bands, in an order of this device's own."""
    if not (axes := _AXES.get()):
        return []
    count = jax.lax.axis_size(axes)
    shifts = ([(i, (i + shift) % count) for i in range(count)] for shift in range(1, count))
    return [jax.lax.ppermute(band, axes, shift) for shift in shifts]


def with_neighbours(band: Array, taps: int, stride: int, padding: Padding) -> tuple[Array, Padding]:
    """Return a band with the rows around it that a convolution reads, and the padding then.

    The rows are of the bands above and below, and zeros beyond the picture.

    Args:
        band: `[B, H, W, C]`.
        taps: the number of rows of the kernel.
        stride: that along the columns.
        padding: that of the rows and the columns of a whole picture.
    """
    if not (axes := _AXES.get()):
        return band, padding
    (above, _), across = padding
    below = taps - stride - above
    down = [(i, i + 1) for i in range(jax.lax.axis_size(axes) - 1)]
    up = [(after, before) for before, after in down]
    parts = [band]
    if above:
        parts.insert(0, jax.lax.ppermute(band[:, -above:], axes, down))
    if below:
        parts.append(jax.lax.ppermute(band[:, :below], axes, up))
    return jnp.concatenate(parts, axis=1), ((0, 0), across)


def largest(numbers: Array) -> Array:
    """Return the largest numbers of the whole picture, from those of the bands."""
    return jax.lax.pmax(numbers, axes) if (axes := _AXES.get()) else numbers


def mean(*means: Array) -> tuple[Array, ...]:
    """Return means over the whole picture, from those of the bands, which are of equal size."""
    if not (axes := _AXES.get()):
        return means
    return tuple(jax.lax.pmean(jnp.stack(means), axes))
