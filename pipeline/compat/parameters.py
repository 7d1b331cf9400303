"""A network's parameters as a plain nested dict, and back."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from pipeline.errors import InputError


def to_dict(network: nnx.Module) -> dict[str, Any]:
    """Parameters by the names of the modules that they are in, list indices being names too."""
    flat = nnx.to_flat_state(nnx.state(network, nnx.Param))
    return unflatten_dict({_names(path): param.get_value() for path, param in flat})


def fill(
    name: str, make: Callable[[DTypeLike], nnx.Module], params: Mapping[str, Any]
) -> nnx.Module:
    """The network with these parameters, computing in their dtype.

    Args:
        name: of the network, for messages.
        make: makes it in a dtype, for its shapes alone.
        params: as `to_dict` gives them.

    Raises InputError, naming the parameter, for one that is unknown, missing or wrongly shaped.
    """
    given: dict[tuple[str, ...], Any] = dict(flatten_dict(params))
    dtypes = {jnp.dtype(leaf.dtype) for leaf in given.values()}
    if dtypes not in ({jnp.dtype(jnp.float32)}, {jnp.dtype(jnp.bfloat16)}):
        found = " and ".join(sorted(map(str, dtypes)))
        right = "one dtype for all, float32 or bfloat16"
        raise InputError(f"params[{name!r}] are {found}; expected {right}")
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(*dtypes)))
    flat = dict(nnx.to_flat_state(state))
    for path, param in flat.items():
        names = _names(path)
        value = given.pop(names, None)
        if value is None or value.shape != param.shape:
            found = "is missing" if value is None else f"is {list(value.shape)}"
            raise InputError(
                f"params[{name!r}]: {'.'.join(names)} {found}; expected {list(param.shape)} on each"
                " device: are these another model's, or with the wrong number of axes?"
            )
        flat[path] = param.replace(value)
    for names in given:
        raise InputError(f"params[{name!r}]: {'.'.join(names)} is unknown; another model's?")
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(str(part) for part in path)
