"""Random parameters, made on the device that uses them.

Works in either environment with JAX.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding


def fill(shapes: Any, key: jax.Array, place: Sharding | None = None) -> Any:
    """Return a tree of random arrays for a tree of shapes.

    Each array has its shape's dtype, with values that bfloat16 can represent. Kernels are scaled by
    their number of inputs. Arrays are made one after another.

    Args:
        shapes: the tree of shapes and dtypes.
        key: the random key.
        place: the sharding of the arrays; None means the default device.
    """
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(key, len(leaves))
    arrays = (_draw(leaf.shape, leaf.dtype, key) for leaf, key in zip(leaves, keys, strict=True))
    placed_arrays = [
        values if place is None else jax.device_put(values, place) for values in arrays
    ]
    return jax.tree.unflatten(structure, placed_arrays)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(shape: tuple[int, ...], dtype: Any, key: jax.Array) -> jax.Array:
    values = jax.random.normal(key, shape, jnp.float32)
    # The last axis of a kernel is its outputs; an array with one axis is a bias or a scale.
    values *= float(np.prod(shape[:-1])) ** -0.5 if len(shape) > 1 else 0.1
    return values.astype(jnp.bfloat16).astype(dtype)
