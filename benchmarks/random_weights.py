"""Random parameters, made on the device that they are for; for either environment with JAX."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding


def fill(shapes: Any, key: jax.Array, place: Sharding | None = None) -> Any:
    """The same tree with arrays in place of shapes: values of bfloat16 in each one's own dtype.

    Kernels are scaled by their inputs. One array is made after the other. `place`: where they go,
    the default device where None.
    """
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(key, len(leaves))
    drawn = (_draw(leaf.shape, leaf.dtype, key) for leaf, key in zip(leaves, keys, strict=True))
    placed = [values if place is None else jax.device_put(values, place) for values in drawn]
    return jax.tree.unflatten(structure, placed)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(shape: tuple[int, ...], dtype: Any, key: jax.Array) -> jax.Array:
    values = jax.random.normal(key, shape, jnp.float32)
    # Kernels end with their outputs; what has one axis is a bias, or a scale.
    values *= float(np.prod(shape[:-1])) ** -0.5 if len(shape) > 1 else 0.1
    return values.astype(jnp.bfloat16).astype(dtype)
