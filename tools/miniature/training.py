"""The parts that the training of every network shares: optimiser, average, loop."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.typing import ArrayLike

from pipeline import platforms
from pipeline.models.layers import ResnetBlock
from pipeline.models.unet import Transformer2D
from tools.miniature.work import Run, Tree

LOG_EVERY = 50
M = TypeVar("M", bound=nnx.Module)


def parameters(module: nnx.Module) -> Tree:
    """Return a module's parameters as a nested dict of arrays."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def with_parameters(module: M, params: Tree) -> M:
    """Return a copy of a module with other parameters.

    The given module is not changed. May be traced.
    """
    graphdef, state = nnx.split(module)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graphdef, state)


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


def optimiser(steps: int, peak: float = 0.02, warmup: int = 100) -> optax.GradientTransformation:
    """Return Muon for the kernels of convolutions and linear layers, and Adam for the rest.

    The learning rate warms up, then follows a cosine down to a fiftieth. On these networks Muon
    (Jordan et al. 2024) reaches in one hour of two CPU cores what Adam reaches in several.
    """
    matrices = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 50)
    others = optax.warmup_cosine_decay_schedule(0.0, peak / 10, warmup, steps, peak / 500)
    muon = optax.chain(
        optax.trace(0.95, nesterov=True),
        optax.stateless(lambda updates, _: jax.tree.map(orthogonalised, updates)),
        optax.scale_by_learning_rate(matrices),
    )
    adam = optax.adamw(others, weight_decay=0.0, nesterov=True)
    kinds = optax.partition({"muon": muon, "adam": adam}, _kinds)
    return optax.chain(optax.clip_by_global_norm(1.0), kinds)


def _kinds(params: Tree) -> Tree:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "muon" if path[-1].key == "kernel" else "adam", params
    )


def orthogonalised(kernel: jax.Array) -> jax.Array:
    """Return about the nearest matrix with orthonormal columns or rows, scaled for its width.

    The last axis of the kernel is the matrix's columns. Muon's five Newton-Schulz iterations are
    polynomials of the smaller Gram matrix: a third of the arithmetic for a convolution's kernel.
    """
    matrix = kernel.reshape(-1, kernel.shape[-1])
    inputs, outputs = matrix.shape
    tall = inputs > outputs
    matrix = matrix if tall else matrix.T
    matrix /= jnp.linalg.norm(matrix) + 1e-8
    gram = matrix.T @ matrix
    product = identity = jnp.eye(len(gram))
    for _ in range(5):
        factor = 3.4445 * identity - 4.7750 * gram + 2.0315 * gram @ gram
        product, gram = factor @ product, factor @ gram @ factor
    matrix = matrix @ product * max(1, outputs / inputs) ** 0.5
    return (matrix if tall else matrix.T).reshape(kernel.shape)


def averaged(average: Tree, params: Tree, step: jax.Array, decay: float = 0.998) -> Tree:
    """Advance an exponential moving average that forgets its start by one step."""
    rate = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda a, p: a * rate + p * (1 - rate), average, params)


def minimise(
    run: Run,
    loss: Callable[..., jax.Array],
    params: Tree,
    batch: Callable[[int], tuple[ArrayLike, ...]],
    steps: int,
    *,
    warmup: int = 100,
    peak: float = 0.02,
    check: Callable[[Tree], dict[str, float]] = lambda _: {},
) -> Tree:
    """Train, or resume training.

    Args:
        run: keeps the state and the curve.
        loss: a function of the parameters and of what `batch` returns; returns a scalar.
        params: the initial parameters, which are not changed.
        batch: returns the data of step i, the same whether or not the training was interrupted.
        steps: the total number of steps.
        warmup: steps until the learning rate's peak, at most half of all.
        peak: the highest learning rate of kernels; that of other parameters is a tenth.
        check: returns more values for the curve, from averaged parameters about to be saved.

    Returns:
        The state: `params`, their `average`, the optimiser's `opt`, and the number of steps `step`.
    """
    optimise = optimiser(steps, peak, warmup=min(warmup, steps // 2))

    compiler_options = platforms.compiler_options(jax.devices()[0], jnp.float32)

    @partial(jax.jit, donate_argnums=0, compiler_options=compiler_options)
    def advance(state: Tree, *given: ArrayLike) -> tuple[Tree, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(state["params"], *given)
        updates, opt = optimise.update(gradient, state["opt"], state["params"])
        params = jax.tree.map(jnp.add, state["params"], updates)
        count = state["step"] + 1
        average = averaged(state["average"], params, count)
        return {"params": params, "average": average, "opt": opt, "step": count}, value

    state = run.restore(_first_state(optimise, params))
    values: list[float] = []
    for i in range(int(state["step"]), steps):
        state, value = advance(state, *batch(i))
        values.append(float(value))
        done = i + 1
        saving = done % run.save_every == 0 or done == steps
        if saving or done % LOG_EVERY == 0:
            checked = check(state["average"]) if saving else {}
            run.log(step=done, loss=float(np.mean(values)), **checked)
            values.clear()
        if saving:
            run.save(state)
    return state


def _first_state(optimise: optax.GradientTransformation, params: Tree) -> Tree:
    # `params` and `average` are separate copies, because a step overwrites the state it is given.
    params, average = (jax.tree.map(jnp.copy, params) for _ in range(2))
    opt = optimise.init(params)
    return {"params": params, "average": average, "opt": opt, "step": jnp.zeros((), jnp.int32)}


def sheet(rows: np.ndarray, file: Path) -> None:
    """Write pictures `[rows, columns, H, W, 3]` in 0..1 as one PNG."""
    from PIL import Image

    count, columns, height, width, _ = rows.shape
    joined = rows.transpose(0, 2, 1, 3, 4).reshape(count * height, columns * width, 3)
    Image.fromarray((joined * 255).round().clip(0, 255).astype(np.uint8)).save(file)
