"""The parts that the training of every network shares: state, optimiser, average, loop."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.typing import ArrayLike

from pipeline import platforms
from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.layers import ResnetBlock
from pipeline.models.unet import Transformer2D

LOG_EVERY = 50
M = TypeVar("M", bound=nnx.Module)
Tree: TypeAlias = Any
Advance: TypeAlias = Callable[..., tuple[Tree, jax.Array]]
Pace: TypeAlias = Callable[[int], float]  # the share of a training that is done before step i


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `file` when the block ends.

    If the block raises, `file` stays as it was.
    """
    part = file.with_name(f"part-{file.name}")
    yield part
    part.replace(file)


@dataclass
class Run:
    """The state of one network's training, and its curve: a point every few steps.

    The state is saved every `save_every` steps, and at each quarter of the training.
    """

    folder: Path
    save_every: int = 10**9
    on_save: Callable[[], object] = lambda: None
    curve: list[dict[str, float]] = field(default_factory=list)

    def save(self, state: Tree) -> None:
        """Write a tree of arrays, completely or not at all."""
        with whole(self._state_file) as part:
            np.savez(part, *[np.asarray(leaf) for leaf in jax.tree.leaves(state)])
        self.on_save()

    def restore(self, like: Tree) -> Tree:
        """Return the saved state in the structure of `like`, or `like` if none was saved.

        The curve is cut off at the state's `step`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._state_file.exists():
            return like
        leaves, structure = jax.tree.flatten(like)
        with np.load(self._state_file) as saved:
            arrays = [jnp.asarray(saved[f"arr_{i}"]) for i in range(len(leaves))]
        state = jax.tree.unflatten(structure, arrays)
        points = map(json.loads, self._curve_file.read_text().splitlines())
        self.curve = [point for point in points if point["step"] <= state["step"]]
        return state

    def log(self, **values: float) -> None:
        """Add a point to the curve, on disk and on the screen."""
        self.curve.append(values)
        with whole(self._curve_file) as part:
            part.write_text("".join(json.dumps(point) + "\n" for point in self.curve))
        print("  ".join(f"{key} {value:.5g}" for key, value in values.items()), flush=True)

    def plot(self, titles: Mapping[str, str]) -> None:
        """Plot the curve as curve.png, with a panel for each logged name in `titles`."""
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

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.npz"

    @property
    def _curve_file(self) -> Path:
        return self.folder / "curve.jsonl"


def parameters(module: nnx.Module) -> Tree:
    """Return a module's parameters as a nested dict of arrays."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def with_parameters(module: M, params: Tree) -> M:
    """Return a copy of a module with other parameters, cast to the dtypes of its own.

    The given module is not changed. May be traced.
    """
    graphdef, state = nnx.split(module)
    cast = jax.tree.map(lambda new, old: new.astype(old.dtype), params, parameters(module))
    nnx.replace_by_pure_dict(state, cast)
    return nnx.merge(graphdef, state)


def for_device(kind: Callable[..., M], config: object) -> M:
    """Return the shapes of a network in the dtype in which the device should compute it.

    Use it in a loss with `with_parameters`: the parameters outside of it stay in float32.
    """
    dtype = jnp.dtype(platforms.platform_of(jax.devices()[0]).dtype)
    return nnx.eval_shape(lambda: kind(config, dtype=dtype, rngs=shape_rngs()))


def start_as_identity(module: nnx.Module) -> None:
    """Zero, in place, the output layer of every ResNet block and transformer.

    Each block then adds nothing to its input. The network starts nearly linear, and trains several
    times faster.
    """
    for _, part in nnx.iter_modules(module):
        if isinstance(part, ResnetBlock):
            part.conv2.kernel[...] = jnp.zeros_like(part.conv2.kernel[...])
        if isinstance(part, Transformer2D):
            part.proj_out.kernel[...] = jnp.zeros_like(part.proj_out.kernel[...])


def optimiser(peak: float) -> optax.GradientTransformation:
    """Return Muon for the kernels of convolutions and linear layers, and Adam for the rest.

    On these networks Muon (Jordan et al. 2024) reaches in one hour of two CPU cores what Adam
    reaches in several.
    """
    muon = optax.chain(
        optax.trace(0.95, nesterov=True),
        optax.stateless(lambda updates, _: _all_orthogonalised(updates)),
        optax.scale_by_learning_rate(peak),
    )
    adam = optax.adamw(peak / 10, weight_decay=0.0, nesterov=True)
    kinds = optax.partition({"muon": muon, "adam": adam}, _kinds)
    return optax.chain(optax.clip_by_global_norm(1.0), kinds)


def _kinds(params: Tree) -> Tree:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "muon" if path[-1].key == "kernel" else "adam", params
    )


def _all_orthogonalised(kernels: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(kernels)
    return jax.tree.unflatten(structure, orthogonalised(leaves))


def orthogonalised(kernels: Sequence[jax.Array]) -> list[jax.Array]:
    """Return about the nearest matrices with orthonormal columns or rows, scaled for their widths.

    The last axis of a kernel is its matrix's columns. Muon's five Newton-Schulz iterations are
    polynomials of the smaller Gram matrix: a third of the arithmetic for a convolution's kernel.
    Gram matrices of one size are one product.
    """
    matrices = [kernel.reshape(-1, kernel.shape[-1]) for kernel in kernels]
    matrices = [x if x.shape[0] > x.shape[1] else x.T for x in matrices]
    matrices = [x / (jnp.linalg.norm(x) + 1e-8) for x in matrices]
    done: dict[int, jax.Array] = {}
    for size in {x.shape[1] for x in matrices}:
        same = [i for i, x in enumerate(matrices) if x.shape[1] == size]
        products = _iterated(jnp.stack([matrices[i].T @ matrices[i] for i in same]))
        done |= {i: matrices[i] @ product for i, product in zip(same, products, strict=True)}
    return [_as_kernel(done[i], kernel) for i, kernel in enumerate(kernels)]


def _iterated(gram: jax.Array) -> jax.Array:
    """Return the matrices `[n, N, N]` by which Muon multiplies those with these Gram matrices."""
    product = identity = jnp.eye(gram.shape[-1])
    for _ in range(5):
        factor = 3.4445 * identity - 4.7750 * gram + 2.0315 * gram @ gram
        product, gram = factor @ product, factor @ gram @ factor
    return product


def _as_kernel(matrix: jax.Array, kernel: jax.Array) -> jax.Array:
    inputs, outputs = kernel.size // kernel.shape[-1], kernel.shape[-1]
    matrix = matrix if inputs > outputs else matrix.T
    return matrix.reshape(kernel.shape) * max(1, outputs / inputs) ** 0.5


def averaged(average: Tree, params: Tree, step: jax.Array, decay: float = 0.998) -> Tree:
    """Advance an exponential moving average that forgets its start by one step."""
    rate = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda a, p: a * rate + p * (1 - rate), average, params)


def until(end: float) -> Pace:
    """Return a pace that ends when `time.monotonic()` is `end`, after two steps or more.

    It begins when the first step has been compiled.
    """
    asked: list[float] = []

    def share(_: int) -> float:
        asked.append(time.monotonic())
        if len(asked) == 1:
            return 0.0
        return min((asked[-1] - asked[1]) / max(end - asked[1], 1e-9), 1.0)

    return share


def minimise(
    run: Run,
    loss: Callable[..., jax.Array],
    params: Tree,
    batch: Callable[[int], tuple[ArrayLike, ...]],
    steps: int | Pace,
    *,
    warmup: int = 100,
    peak: float = 0.02,
    check: Callable[[Tree], dict[str, float]] = lambda _: {},
    advance: Advance | None = None,
) -> Tree:
    """Train, or resume training.

    Args:
        run: keeps the state and the curve.
        loss: a function of the parameters and of what `batch` returns; returns a scalar.
        params: the initial parameters, which are not changed.
        batch: returns the data of step i, the same whether or not the training was interrupted.
        steps: the total number of steps, or a pace.
        warmup: steps in which the learning rate rises. From the first to the last step it follows
            a cosine down to a fiftieth.
        peak: the highest learning rate of kernels; that of other parameters is a tenth.
        check: returns more values for the curve, from averaged parameters about to be saved.
        advance: what `make_advance` returned for this loss and peak, if it is compiled already.

    Returns:
        The state: `params`, their `average`, the optimiser's `opt`, and the number of steps `step`.
    """
    pace = steps if callable(steps) else lambda i: i / steps
    advance = advance or make_advance(loss, peak)
    state = run.restore(first_state(params, peak))
    values: list[jax.Array] = []
    done = int(state["step"])
    share = pace(done)
    while share < 1:
        rate = float(min((done + 1) / warmup, 1) * (0.51 + 0.49 * np.cos(np.pi * share)))
        state, value = advance(state, rate, *batch(done))
        values.append(value)
        jax.block_until_ready(values[-3:-2])  # the clock should not run ahead of the device
        done, before = done + 1, share
        share = pace(done)
        saving = done % run.save_every == 0 or int(4 * share) > int(4 * before)
        if saving or done % LOG_EVERY == 0:
            checked = check(state["average"]) if saving else {}
            run.log(step=done, loss=float(np.mean(jax.device_get(values))), **checked)
            values.clear()
        if saving:
            run.save(state)
    return state


def make_advance(loss: Callable[..., jax.Array], peak: float) -> Advance:
    """Return a compiled step of training: of a state, a share of the learning rate and a batch."""
    optimise = optimiser(peak)
    compiler_options = platforms.compiler_options(jax.devices()[0], jnp.float32)

    @partial(jax.jit, donate_argnums=0, compiler_options=compiler_options)
    def advance(state: Tree, rate: float, *given: ArrayLike) -> tuple[Tree, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state["params"], *given)
        updates, opt = optimise.update(gradient, state["opt"], state["params"])
        params = jax.tree.map(lambda param, x: param + rate * x, state["params"], updates)
        count = state["step"] + 1
        average = averaged(state["average"], params, count)
        return {"params": params, "average": average, "opt": opt, "step": count}, value

    return advance


def first_state(params: Tree, peak: float) -> Tree:
    """Return the state that a training begins with."""
    # `params` and `average` are separate copies, because a step overwrites the state it is given.
    params, average = (jax.tree.map(jnp.copy, params) for _ in range(2))
    opt = optimiser(peak).init(params)
    return {"params": params, "average": average, "opt": opt, "step": jnp.zeros((), jnp.int32)}


def sheet(rows: np.ndarray, file: Path) -> None:
    """Write pictures `[rows, columns, H, W, 3]` in 0..1 as one PNG."""
    from PIL import Image

    count, columns, height, width, _ = rows.shape
    joined = rows.transpose(0, 2, 1, 3, 4).reshape(count * height, columns * width, 3)
    Image.fromarray((joined * 255).round().clip(0, 255).astype(np.uint8)).save(file)
