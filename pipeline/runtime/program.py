"""A target to compile for, and a program: a function with the shapes of its arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.errors import InputError
from pipeline.families.family import Config, StepCache
from pipeline.platforms import CompilerOptions
from pipeline.schedulers.table import REMEMBERED, Kept, State

# A program's first argument: the parameters of its networks, by the network's name.
Weights = Mapping[str, list[Array]]

# The axes of the mesh over which a state's latents and history are spread.
SLOT_AXES = ("images",), (None, "images")


@dataclass(frozen=True)
class Shapes:
    """The sizes fixed at compilation: slots, the pictures' sides in pixels, and chunks.

    `images` is the number of slots, which is the most pictures of a request. `chunks` is the most
    chunks of a prompt.
    """

    images: int
    height: int
    width: int
    chunks: int = 1


@dataclass(frozen=True)
class Target:
    """The model, the devices and the sizes that programs are compiled for.

    `dtype` is that of the networks. With `step_cache`, a step may use deep features of an earlier
    one. `quantization` is one of `pipeline.models.quantized.QUANTIZATIONS`, or None. The mesh has
    the axes `guidance`, `images` and `rows`.
    """

    config: Config
    dtype: np.dtype[Any]
    mesh: Mesh
    shapes: Shapes
    step_cache: bool = False
    quantization: str | None = None

    def resized(self, height: int, width: int) -> "Target":
        """Return the same for pictures of another size, in pixels."""
        return replace(self, shapes=replace(self.shapes, height=height, width=width))

    @property
    def latents_shape(self) -> tuple[int, int, int]:
        """The shape `(h, w, C)` of a picture's latents."""
        size = self.shapes.height, self.shapes.width
        return self.config.architecture.latents_shape(*size)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """The most tokens of a prompt for each text encoder, with each chunk's start and end."""
        return tuple(self.shapes.chunks * count for count in self.config.tokens)

    @property
    def kept_spec(self) -> Kept:
        """The shapes and shardings of the kept parts of the pictures in all slots."""
        latents = self.state_spec.latents
        mask = spec((*latents.shape[:3], 1), jnp.float32, NamedSharding(self.mesh, P("images")))
        return Kept(latents, latents, mask)

    @property
    def predicted_halves(self) -> int:
        """The number of halves of guidance that the networks predict for, on all devices."""
        by_half = self.mesh.shape["guidance"] == 2
        return 2 if by_half or not self.config.architecture.embeds_guidance else 1

    @property
    def devices_per_picture(self) -> int:
        """The number of devices that draw a picture together."""
        return self.mesh.shape["guidance"] * self.mesh.shape["rows"]

    @property
    def shares_rows(self) -> bool:
        """Whether each device has only a part of a picture's rows."""
        return self.mesh.shape["rows"] > 1

    @property
    def deep_spec(self) -> Any:
        """The shape and sharding of all slots' deep features; None without step caching."""
        if (cache := self.caching) is None:
            return None
        shape = cache.shape(self.shapes.height, self.shapes.width)
        sharding = NamedSharding(self.mesh, P("guidance", "images", "rows"))
        return spec((self.predicted_halves, self.shapes.images, *shape), self.dtype, sharding)

    @property
    def caching(self) -> StepCache | None:
        """How a step uses deep features of an earlier one; None if it does not."""
        return self.config.architecture.step_cache if self.step_cache else None

    @property
    def state_spec(self) -> State:
        """The shapes and shardings of the state of all slots."""
        latents = self.shapes.images, *self.latents_shape
        by_slot, behind = (NamedSharding(self.mesh, P(*axes)) for axes in SLOT_AXES)
        return State(
            spec(latents, jnp.float32, by_slot), spec((REMEMBERED, *latents), jnp.float32, behind)
        )


def check_rows(config: Config, mesh: Mesh, height: int) -> None:
    """Raise InputError if a mesh's devices cannot share the rows of pictures of a height in pixels.

    Every device must have as many rows as the others wherever the networks shrink the picture.
    """
    if (rows := mesh.shape["rows"]) == 1:
        return
    architecture, devices = config.architecture, rows * mesh.shape["guidance"]
    latent_rows, *_ = architecture.latents_shape(height, height)
    multiple = max(architecture.size_multiple * rows, height // latent_rows * devices)
    if height % multiple:
        raise InputError(
            f"height is {height}; with devices_per_picture {devices}, expected a multiple of"
            f" {multiple}"
        )


@dataclass(frozen=True)
class Program:
    """A function, and the shapes and shardings that it is compiled for.

    Attributes:
        function: the function to compile.
        args: shapes, dtypes and shardings in place of its arguments.
        outputs: the sharding of its results, or a structure of shardings like theirs.
        options: compiler options.
        donated: positions of arguments whose memory the results take; callers lose these.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: Any
    options: CompilerOptions | None = None
    donated: tuple[int, ...] = ()

    @cached_property
    def jitted(self) -> Any:
        """The function under `jax.jit`, which is traced once."""
        return jax.jit(self.function, out_shardings=self.outputs, donate_argnums=self.donated)

    def compile(self) -> jax.stages.Compiled:
        """Compile ahead of time, which takes minutes for a large network."""
        return self.jitted.lower(*self.args).compile(self.options)


def weights(networks: Mapping[str, nnx.Module]) -> dict[str, list[Array]]:
    """Return each network's parameters as the programs take them, by its name."""
    return {name: jax.tree.leaves(nnx.state(network)) for name, network in networks.items()}


def spec(shape: tuple[int | None, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """Return a `ShapeDtypeStruct`, which can replace an array in any structure of arrays."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def shardings(specs: Any) -> Any:
    """Return the shardings of a structure of specs, in the same structure."""
    return jax.tree.map(lambda leaf: leaf.sharding, specs)
