"""Conversion of a network's parameters to a plain nested dict, and back."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from pipeline.errors import InputError


def to_dict(network: nnx.Module, dtype: DTypeLike) -> dict[str, Any]:
    """Return the parameters in a dtype, in nested dicts by module names.

    List indices are names too. Norms' parameters have the dtype of the others, as in diffusers.
    """
    flat = nnx.to_flat_state(nnx.state(network, nnx.Param))
    return unflatten_dict(
        {_names(path): param.get_value().astype(dtype, copy=False) for path, param in flat}
    )


def set_params(
    name: str, make: Callable[[DTypeLike], nnx.Module], params: Mapping[str, Any]
) -> nnx.Module:
    """Return a network that has these parameters and computes in their dtype.

    Args:
        name: the network's name, for messages.
        make: makes the network in a dtype; only its shapes are used.
        params: the parameters in the form that `to_dict` returns.

    Raises:
        InputError: if a parameter is unknown, missing or of the wrong shape or dtype; the message
            names it.
    """
    flat_params: dict[tuple[str, ...], Any] = dict(flatten_dict(params))
    dtypes = {jnp.dtype(leaf.dtype) for leaf in flat_params.values()}
    if dtypes not in ({jnp.dtype(jnp.float32)}, {jnp.dtype(jnp.bfloat16)}):
        dtype_names = " and ".join(sorted(map(str, dtypes)))
        right = "one dtype for all, float32 or bfloat16"
        raise InputError(f"params[{name!r}] are {dtype_names}; expected {right}")
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(*dtypes)))
    flat = dict(nnx.to_flat_state(state))
    for path, param in flat.items():
        names = _names(path)
        value = flat_params.pop(names, None)
        if value is None or value.shape != param.shape:
            fault = "is missing" if value is None else f"is {list(value.shape)}"
            raise InputError(
                f"params[{name!r}]: {'.'.join(names)} {fault}; expected {list(param.shape)} on each"
                " device: do they belong to another model, or have the wrong number of axes?"
            )
        flat[path] = param.replace(value.astype(param.dtype, copy=False))
    for names in flat_params:
        where = f"params[{name!r}]: {'.'.join(names)}"
        raise InputError(f"{where} is unknown; does it belong to another model?")
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(str(part) for part in path)
