"""The two halves of guidance in a batch.

The order is [uncond, cond]: arrays with a leading axis of 2 hold the negative prompt's half first.
Networks get one batch of 2B in which a picture's two halves are neighbours. Each device's pictures
are then a contiguous part of that batch, and stay on their device.
"""

import jax.numpy as jnp
from jax import Array


def joined(halves: Array) -> Array:
    """Reshape `[H, B, ...]` to `[HB, ...]`, with a picture's halves side by side."""
    return jnp.swapaxes(halves, 0, 1).reshape(-1, *halves.shape[2:])


def split(batch: Array, count: int = 2) -> Array:
    """Reshape `[HB, ...]` to `[H, B, ...]`, the inverse of `joined`."""
    return jnp.swapaxes(batch.reshape(-1, count, *batch.shape[1:]), 0, 1)
