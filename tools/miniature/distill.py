"""Distil the miniature to four steps without guidance: `python -m tools.miniature.distill`.

A LoRA of every layer learns where the guided miniature goes from each of the four timesteps of
Euler's method with trailing spacing. All randomness is seeded. A training that was stopped resumes.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from pipeline.default_model import BUNDLED
from tools.agreement import Networks, load_networks
from tools.miniature.lora import PEFT, Lora, file_metadata, merge, new_lora, save_lora
from tools.miniature.training import minimise, parameters, with_parameters
from tools.miniature.trajectories import (
    AT_ONCE,
    STEPS,
    Trajectories,
    condition,
    follow_trajectories,
    grid,
    latent_scale,
    picture_side,
    pred_x0,
)
from tools.miniature.work import Run, Tree

NAME = "miniature-quick"
RANK = 48
BATCH = 48  # a multiple of STEPS
PEAK = 0.03  # ten times the learning rate of the factors
WARMUP = 20  # steps
SAVE_EVERY = 25  # steps
INTERVAL = np.arange(BATCH) % STEPS  # of each item of a batch


def distil(networks: Networks, folder: Path, trajectories: int, steps: int, seed: int) -> Lora:
    """Distil, or resume, and return the averaged LoRA."""
    pool = follow_trajectories(networks, folder / "teacher", trajectories, seed + 20)
    run = Run(folder / f"{steps}-{trajectories}-{seed}", SAVE_EVERY)
    return train(networks, new_lora(networks.unet, seed, RANK, left_out=()), pool, run, steps, seed)


def train(
    networks: Networks, lora: Lora, pool: Trajectories, run: Run, steps: int, seed: int
) -> Lora:
    """Train a LoRA on trajectories, or resume, and return its average."""

    def batch(i: int) -> tuple[ArrayLike, ...]:
        return choose(pool, np.random.default_rng((seed, 2, i)))

    flat, restored = ravel_pytree(lora)  # one vector compiles much faster than 270 factors
    error = make_loss(networks)

    def loss(params: Tree, *given: jax.Array) -> jax.Array:
        return error(restored(params["factors"]), *given)

    state = minimise(run, loss, {"factors": flat}, batch, steps, warmup=WARMUP, peak=PEAK)
    run.plot({"loss": "squared error of x0"})
    return restored(state["average"]["factors"])


def choose(pool: Trajectories, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return `BATCH` intervals of the pool, as many of each timestep: the loss's data."""
    chosen = rng.integers(len(pool.start), size=BATCH)
    ends = (part[chosen, INTERVAL].astype(np.float32) for part in (pool.start, pool.end))
    words = (part[chosen].astype(np.float32) for part in (pool.embeds, pool.pooled))
    return *ends, *words


def make_loss(networks: Networks) -> Callable[..., jax.Array]:
    """Return the loss of a LoRA on what `choose` returns: the squared error of the predicted x0.

    The right x0 is the one towards which a straight line leads from an interval's start to its end.
    """
    unet, config = networks.unet, networks.config
    base, side = parameters(unet), picture_side(config)
    timesteps, sigmas = map(jnp.asarray, grid(config.scheduler, 1))
    before, after = sigmas[INTERVAL].T
    deviation = jnp.asarray(latent_scale(config.scheduler))[INTERVAL]
    scale, ratio = (v[:, None, None, None] for v in (deviation, after / before))

    def loss(
        lora: Lora, start: jax.Array, end: jax.Array, embeds: jax.Array, pooled: jax.Array
    ) -> jax.Array:
        student = with_parameters(unet, merge(base, lora))
        context = condition(student, embeds, pooled, side)
        drawn = pred_x0(student, start * scale, before, timesteps[INTERVAL, 0], context)
        right = (end - ratio * start) / (1 - ratio) * scale
        return jnp.mean((drawn - right) ** 2)

    return loss


def describe(steps: int) -> dict[str, str]:
    """Return the metadata of the LoRA's file."""
    description = f"Draws in {STEPS} steps without guidance: Euler, trailing timesteps."
    return file_metadata(NAME, "Quick", description, RANK, steps)


def main() -> None:
    """Distil, and write the LoRA's file."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.miniature.distill",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--out", type=Path, default=BUNDLED / f"loras/{NAME}.safetensors")
    parser.add_argument("--work", type=Path, default=Path("runs/distilled"), help="saved states")
    parser.add_argument("--trajectories", type=int, default=672, help=f"a multiple of {AT_ONCE}")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.trajectories % AT_ONCE:
        right = f"it must be a multiple of {AT_ONCE}"
        parser.error(f"--trajectories is {options.trajectories}; {right}")
    networks = load_networks(options.model)
    lora = distil(networks, options.work, options.trajectories, options.steps, options.seed)
    save_lora(lora, options.out, describe(options.steps), PEFT)


if __name__ == "__main__":
    main()
