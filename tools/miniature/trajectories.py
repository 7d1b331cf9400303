"""Teacher's trajectories for the distillation: where guided steps lead from each timestep.

A run of `STEPS` steps is cut into as many intervals. In each of them the teacher, guided and in
`SUBSTEPS` smaller steps, goes from the interval's start to its end. Latents are x0 plus sigma *
noise, as in `pipeline.schedulers.euler`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.families.family import Config
from pipeline.models.unet import Context, UNet
from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.euler import euler_sigmas
from tools.agreement import Networks
from tools.miniature.reader import TextEncoders
from tools.miniature.scenes import Scene, prompt, random_scene
from tools.miniature.train_unet import encode_prompts, say
from tools.miniature.training import parameters, with_parameters
from tools.miniature.work import Tree, whole

STEPS = 4
SUBSTEPS = 3
GUIDANCE = 5.0
AT_ONCE = 32  # trajectories
PLAIN = 0.5  # share of prompts in the plain wording


class Trajectories(NamedTuple):
    """Intervals of n trajectories, float16.

    `start` and `end` are `[n, STEPS, h, w, C]`, divided by the standard deviation that latents have
    at the sigma of the start; `embeds` are `[n, L, D]` and `pooled` `[n, P]`.
    """

    start: np.ndarray
    end: np.ndarray
    embeds: np.ndarray
    pooled: np.ndarray


def student_scheduler(config: SchedulerConfig) -> SchedulerConfig:
    """Return the scheduler that the student is made for: Euler's, with trailing timesteps."""
    return replace(config, name="euler", timestep_spacing="trailing", sigma_schedule="default")


def grid(config: SchedulerConfig, substeps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return timesteps `[STEPS, substeps]` and sigmas `[STEPS, substeps + 1]` of each interval."""
    timesteps, sigmas = euler_sigmas(student_scheduler(config), STEPS * substeps)
    ends = [sigmas[i * substeps : (i + 1) * substeps + 1] for i in range(STEPS)]
    return timesteps.reshape(STEPS, substeps), np.stack(ends).astype(np.float32)


def latent_scale(config: SchedulerConfig) -> np.ndarray:
    """Return the standard deviation of latents at each interval's start, `[STEPS]` float32."""
    _, sigmas = grid(config, 1)
    return np.sqrt(sigmas[:, 0] ** 2 + 1)


def pred_x0(
    unet: UNet, x: jax.Array, sigma: jax.Array, timestep: jax.Array, context: Context
) -> jax.Array:
    """Return the predicted x0 `[B, h, w, C]` of latents x; sigma and timestep are `[B]`."""
    wide = sigma[:, None, None, None]
    return x - wide * unet(x / jnp.sqrt(wide**2 + 1), timestep, context)


def picture_side(config: Config) -> float:
    """Return the pixels on each side of the pictures that a model is made for."""
    return float(config.networks["unet"].sample_size[0] * config.networks["vae"].scale_factor)


def condition(unet: UNet, embeds: jax.Array, pooled: jax.Array, side: float) -> Context:
    """Return the UNet's inputs of prompts for square pictures of `side` pixels."""
    time_ids = jnp.array([side, side, 0.0, 0.0, side, side], jnp.float32)
    return unet.condition(embeds, pooled, jnp.broadcast_to(time_ids, (len(embeds), 6)))


def guided_end(
    teacher: UNet, x: jax.Array, sigmas: jax.Array, timesteps: jax.Array, context: Context
) -> jax.Array:
    """Return where the guided teacher ends an interval that starts at x `[B, h, w, C]`.

    DPM-Solver++ of second order (Lu et al. 2022, algorithm 2), whose first step is of first order.

    Args:
        teacher: the network.
        x: the latents.
        sigmas: `[substeps + 1]`, the last of which may be 0.
        timesteps: `[substeps]`.
        context: `[2B]`, without the prompts and with them.
    """
    count, previous, last_h = len(x), jnp.zeros_like(x), jnp.float32(0)
    for i in range(len(timesteps)):
        full = partial(jnp.full, 2 * count)
        both = jnp.concatenate([x, x])
        drawn = pred_x0(teacher, both, full(sigmas[i]), full(timesteps[i]), context)
        without, prompted = jnp.split(drawn, 2)
        guided = without + GUIDANCE * (prompted - without)
        ratio = sigmas[i + 1] / sigmas[i]
        h = -jnp.log(jnp.maximum(ratio, 1e-6))
        # At sigma 0 second order has no meaning: the end is the predicted x0.
        slope = jnp.where((i > 0) & (ratio > 0), h / jnp.maximum(2 * last_h, 1e-6), 0.0)
        x = ratio * x + (1 - ratio) * (guided + slope * (guided - previous))
        previous, last_h = guided, h
    return x


def make_follow(networks: Networks) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return a compiled function that follows trajectories.

    It takes noise `[B, h, w, C]` and the prompts' `embeds` and `pooled`. It returns starts and
    ends, `[B, STEPS, h, w, C]` each.
    """
    unet, config = networks.unet, networks.config
    side = picture_side(config)
    timesteps, sigmas = map(jnp.asarray, grid(config.scheduler, SUBSTEPS))

    @jax.jit
    def follow(
        params: Tree, noise: jax.Array, embeds: jax.Array, pooled: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        teacher = with_parameters(unet, params)
        context = condition(teacher, _after_none(embeds), _after_none(pooled), side)

        def interval(x: jax.Array, k: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            end = guided_end(teacher, x, sigmas[k], timesteps[k], context)
            return end, (x, end)

        _, (starts, ends) = jax.lax.scan(interval, noise * sigmas[0, 0], jnp.arange(STEPS))
        return jnp.swapaxes(starts, 0, 1), jnp.swapaxes(ends, 0, 1)

    return partial(follow, parameters(unet))


def _after_none(embeds: jax.Array) -> jax.Array:
    """Return embeddings `[2B, ...]`: zeros, which stand for no prompt, then the given ones."""
    return jnp.concatenate([jnp.zeros_like(embeds), embeds])


def follow_trajectories(networks: Networks, folder: Path, count: int, seed: int) -> Trajectories:
    """Follow `count` trajectories (a multiple of `AT_ONCE`) of scenes without held-out pairs.

    It takes minutes, so batches are kept in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encode = jax.jit(partial(encode_prompts, TextEncoders(*networks.text_encoders)))
    follow = make_follow(networks)
    unet = networks.config.networks["unet"]
    shape = (AT_ONCE, *unet.sample_size, unet.in_channels)
    scale = latent_scale(networks.config.scheduler)[:, None, None, None]
    parts = []
    for first in range(0, count, AT_ONCE):
        file = folder / f"{seed}-{first}.npz"
        if not file.exists():
            rng = np.random.default_rng((seed, first))
            words = [_words(random_scene(rng), rng) for _ in range(AT_ONCE)]
            ids, _ = networks.tokenizers.tokenize(words)
            embeds, pooled = encode(jnp.asarray(ids))
            noise = rng.standard_normal(shape, dtype=np.float32)
            start, end = follow(noise, embeds, pooled)
            values = (start / scale, end / scale, embeds, pooled)
            half = [np.asarray(value).astype(np.float16) for value in values]
            with whole(file) as part:
                np.savez(part, *half)
            print(f"followed {first + AT_ONCE} of {count} trajectories", flush=True)
        with np.load(file) as saved:
            parts.append([saved[f"arr_{i}"] for i in range(4)])
    return Trajectories(*map(np.concatenate, zip(*parts, strict=True)))


def _words(scene: Scene, rng: np.random.Generator) -> str:
    return prompt(scene) if rng.random() < PLAIN else say(scene, rng)
