"""What both training runs share: the optimiser, the average, the saved state, the curve."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from optax import contrib

from pipeline.layers import ResnetBlock
from pipeline.unet import Transformer2D

Tree = Any


def parameters(module: nnx.Module) -> Tree:
    """A module's parameters as a nested dict of arrays."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def with_parameters(module: nnx.Module, params: Tree) -> nnx.Module:
    """The module with other parameters; the one given is left as it is. May be traced."""
    graphdef, state = nnx.split(module)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graphdef, state)


def start_as_identity(module: nnx.Module) -> None:
    """Sets to zero, in place, what every ResNet block and transformer adds to its input: the
    network starts nearly linear, and trains several times faster for it.
    """
    for _, part in nnx.iter_modules(module):
        if isinstance(part, ResnetBlock):
            part.conv2.kernel[...] = jnp.zeros_like(part.conv2.kernel[...])
        if isinstance(part, Transformer2D):
            part.proj_out.kernel[...] = jnp.zeros_like(part.proj_out.kernel[...])


def optimiser(steps: int, peak: float = 0.02, warmup: int = 100) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024) for the kernels of convolutions and linear layers, Adam for the
    rest; warmed up, then a cosine down to a fiftieth.

    On these networks Muon reaches in one hour of two CPU cores what Adam does in several.
    """
    matrices = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 50)
    others = optax.warmup_cosine_decay_schedule(0.0, peak / 10, warmup, steps, peak / 500)
    muon = contrib.muon(
        matrices, adam_learning_rate=others, muon_weight_dimension_numbers=_matrix_axes
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def _matrix_axes(params: Tree) -> Tree:
    def axes(path: tuple[Any, ...], value: jax.Array) -> contrib.MuonDimensionNumbers | None:
        if path[-1].key != "kernel":
            return None
        inputs = tuple(range(value.ndim - 1))
        return contrib.MuonDimensionNumbers(reduction_axis=inputs, output_axis=value.ndim - 1)

    return jax.tree_util.tree_map_with_path(axes, params)


def averaged(average: Tree, params: Tree, step: jax.Array, decay: float = 0.998) -> Tree:
    """One step of an exponential moving average that forgets its start."""
    rate = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda a, p: a * rate + p * (1 - rate), average, params)


@dataclass
class Run:
    """A training run's folder: its state, so that it can go on where it stopped, and its curve."""

    folder: Path
    curve: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._curve_file.exists():
            self.curve = [json.loads(line) for line in self._curve_file.read_text().splitlines()]

    @property
    def _curve_file(self) -> Path:
        return self.folder / "curve.jsonl"

    @property
    def started(self) -> bool:
        """Whether a state has been saved."""
        return (self.folder / "state.npz").exists()

    def save(self, state: Tree) -> None:
        """Writes a tree of arrays, whole or not at all."""
        part = self.folder / "state.part.npz"
        np.savez(part, *[np.asarray(leaf) for leaf in jax.tree.leaves(state)])
        part.replace(self.folder / "state.npz")

    def restore(self, like: Tree) -> Tree:
        """The saved state, in the structure of `like`; `like` itself if nothing was saved."""
        if not self.started:
            return like
        saved = np.load(self.folder / "state.npz")
        leaves, structure = jax.tree.flatten(like)
        arrays = [jnp.asarray(saved[f"arr_{i}"]) for i in range(len(leaves))]
        return jax.tree.unflatten(structure, arrays)

    def log(self, **values: float) -> None:
        """Adds a point to the curve, on disk and on the screen."""
        self.curve.append(values)
        with self._curve_file.open("a") as file:
            file.write(json.dumps(values) + "\n")
        print("  ".join(f"{key} {value:.5g}" for key, value in values.items()), flush=True)

    def plot(self, titles: Mapping[str, str]) -> None:
        """Draws the curve as curve.png, one panel for each logged name in `titles`."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, panels = pyplot.subplots(1, len(titles), figsize=(5 * len(titles), 3.5))
        for panel, (name, title) in zip(np.atleast_1d(panels), titles.items(), strict=True):
            points = [(point["step"], point[name]) for point in self.curve if name in point]
            panel.plot(*zip(*points, strict=True), color="#4c6ef5")
            panel.set(title=title, xlabel="step")
            panel.grid(alpha=0.3)
        figure.tight_layout()
        figure.savefig(self.folder / "curve.png", dpi=110)
        pyplot.close(figure)


def sheet(rows: np.ndarray, file: Path) -> None:
    """Writes pictures `[rows, columns, H, W, 3]` in 0..1 as one PNG."""
    from PIL import Image

    count, columns, height, width, _ = rows.shape
    joined = rows.transpose(0, 2, 1, 3, 4).reshape(count * height, columns * width, 3)
    Image.fromarray((joined * 255).round().clip(0, 255).astype(np.uint8)).save(file)
