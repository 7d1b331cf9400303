"""Work on some of the items along an axis, traced under `jit`; the other items cost nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

Carry = TypeVar("Carry")


def for_each(mask: Array, work: Callable[[Array, Carry], Carry], carry: Carry) -> Carry:
    """Return the carry after `work(i, carry)` for each i with `mask[i]`, in order.

    `mask` is `[B]` bool. The other numbers cost nothing.
    """
    order = jnp.argsort(~mask, stable=True)
    return jax.lax.fori_loop(0, mask.sum(), lambda i, carry: work(order[i], carry), carry)


def map_wanted(mask: Array, function: Callable[[Array], Any]) -> Any:
    """Return the arrays of `function(i)`, stacked: zeros for each i without `mask[i]`.

    `mask` is `[B]` bool. The other numbers cost nothing.
    """
    shapes = jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.int32))
    blank = jax.tree.map(lambda leaf: jnp.zeros((len(mask), *leaf.shape), leaf.dtype), shapes)

    def work(i: Array, arrays: Any) -> Any:
        return jax.tree.map(lambda array, item: put(array, item, i), arrays, function(i))

    return for_each(mask, work, blank)


def take(array: Array, i: Array, axis: int = 0) -> Array:
    """Return item i of an axis, without the axis."""
    return jax.lax.dynamic_index_in_dim(array, i, axis, keepdims=False)


def take_one(array: Array, i: Array, axis: int = 0) -> Array:
    """Return item i of an axis, with the axis, which has length 1."""
    return jax.lax.dynamic_slice_in_dim(array, i, 1, axis)


def put(array: Array, item: Array, i: Array, axis: int = 0) -> Array:
    """Return the array with another item i along an axis."""
    return jax.lax.dynamic_update_index_in_dim(array, item, i, axis)


def put_rows(array: Array, items: Array, rows: Array, axis: int = 0) -> Array:
    """Return the array with other items at `rows`, `[n]` int32, of an axis."""
    return array.at[(slice(None),) * axis + (rows,)].set(items)


def along(axes: Any, function: Callable[..., Array], *structures: Any) -> Any:
    """Return the structure of what `function(*arrays, axis=axis)` makes of structures' arrays.

    `axes` has the axis of each array, or is the upper part of such a structure.
    """
    return jax.tree.map(
        lambda axis, *parts: jax.tree.map(partial(function, axis=axis), *parts), axes, *structures
    )


def put_at(array: Array, items: Array, starts: tuple[Array | int, ...]) -> Array:
    """Return the array with other items from `starts` on, along the first axes.

    Where `items` are as long as the array, they are put at 0.
    """
    all_starts = (*starts, *[0] * array.ndim)[: array.ndim]
    sizes = zip(array.shape, items.shape, all_starts, strict=True)
    places = [start if length > item_length else 0 for length, item_length, start in sizes]
    return jax.lax.dynamic_update_slice(array, items, places)


def chunk(array: Array, i: Array | int, count: int) -> Array:
    """Return chunk i of `count` chunks of equal length along the last axis."""
    length = array.shape[-1] // count
    return jax.lax.dynamic_slice_in_dim(array, i * length, length, -1)
