"""Rows of one picture on several devices: each has a band of them, in order from the top.

A program names the axes of its mesh over which it spreads rows with `spread`, around the network's
call. The layers that look beyond a device's band then fetch the rest by the functions here. In all
other programs these functions return their arguments, and nothing changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from jax import Array

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


def are_spread() -> bool:
    """Return whether this device has only a band of the rows."""
    return bool(_AXES.get())


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


def with_neighbours(band: Array, above: int, below: int) -> Array:
    """Return a band with so many rows from the bands above and below it, `[B, H, W, C]`.

    They are zeros above the picture's first row and below its last.
    """
    axes = _AXES.get()
    down = [(i, i + 1) for i in range(jax.lax.axis_size(axes) - 1)]
    up = [(after, before) for before, after in down]
    parts = [band]
    if above:
        parts.insert(0, jax.lax.ppermute(band[:, -above:], axes, down))
    if below:
        parts.append(jax.lax.ppermute(band[:, :below], axes, up))
    return jnp.concatenate(parts, axis=1)


def mean(*means: Array) -> tuple[Array, ...]:
    """Return means over the whole picture, from those of the bands, which are of equal size."""
    if not (axes := _AXES.get()):
        return means
    return tuple(jax.lax.pmean(jnp.stack(means), axes))
