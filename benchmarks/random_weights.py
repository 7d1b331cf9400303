"""Random parameters, from one buffer of random values.

Works in either environment with JAX. Nothing compiles: a program for every shape would take longer
than the networks take to load.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

VALUES = 2**22


def fill(shapes: Any, seed: int, place: Sharding | None = None) -> Any:
    """Return a tree of random arrays for a tree of shapes.

    Each array has its shape's dtype, with values that bfloat16 can represent. Kernels are scaled by
    their number of inputs. Arrays begin at different places of the buffer and repeat it.

    Args:
        shapes: the tree of shapes and dtypes.
        seed: chooses these places.
        place: the sharding of the arrays; None means the default device.
    """
    leaves, structure = jax.tree.flatten(shapes)
    starts = np.random.default_rng(seed).integers(VALUES // 2, size=len(leaves))
    # Every array is a copy: where a CPU's device takes arrays as they are, no two share memory.
    return jax.tree.unflatten(
        structure,
        [
            jax.device_put(
                np.resize(_buffer(_scale(leaf.shape))[start:], leaf.shape).astype(leaf.dtype), place
            )
            for leaf, start in zip(leaves, starts, strict=True)
        ],
    )


def _scale(shape: tuple[int, ...]) -> float:
    # The last axis of a kernel is its outputs; an array with one axis is a bias or a scale.
    return float(np.prod(shape[:-1])) ** -0.5 if len(shape) > 1 else 0.1


@cache
def _buffer(scale: float) -> np.ndarray:
    return (scale * _normal()).astype(jnp.bfloat16)


@cache
def _normal() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(VALUES, np.float32)
