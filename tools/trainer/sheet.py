"""A sheet of pictures to look at: `python -m tools.trainer.sheet PROMPT ...`.

Its sampler takes less than the pipeline: a machine for training has few libraries.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.models.unet import UNet
from pipeline.models.vae import VAE
from pipeline.schedulers.euler import euler_sigmas
from tools.agreement import load_networks
from tools.miniature.reader import TextEncoders
from tools.miniature.train_unet import encode_prompts
from tools.miniature.training import sheet
from tools.miniature.trajectories import GUIDANCE, condition
from tools.trainer.captions import prompt
from tools.trainer.composition import make_scene
from tools.trainer.things import all_things

COLUMNS = 8
STEPS = 25
SHOWN = 64  # pictures, if no prompt is named


def main() -> None:
    """Draw the prompts that the command names, or random ones."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer.sheet", description=__doc__)
    parser.add_argument("prompts", nargs="*", help="in place of random ones")
    parser.add_argument("--model", type=Path, default=Path("runs/trainer/checkpoint"))
    parser.add_argument("--out", type=Path, default=Path("runs/trainer/sheet.png"))
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    scenes = (make_scene(len(all_things()), False, rng) for _ in range(SHOWN))
    draw_sheet(options.model, options.prompts or list(map(prompt, scenes)), options.out)


def draw_sheet(checkpoint: Path, prompts: Sequence[str], out: Path) -> None:
    """Draw a picture for each prompt, in rows of `COLUMNS`; write `out`, and the prompts beside."""
    prompts = [*prompts, *prompts[: -len(prompts) % COLUMNS]]
    networks = load_networks(checkpoint)
    parts = (TextEncoders(*networks.text_encoders), networks.unet, networks.vae)
    shape = (COLUMNS, *networks.unet.config.sample_size, networks.unet.config.in_channels)
    timesteps, sigmas = map(jnp.asarray, euler_sigmas(networks.config.scheduler, STEPS))
    rows = []
    for i in range(0, len(prompts), COLUMNS):
        ids, _ = networks.tokenizers.tokenize(prompts[i : i + COLUMNS])
        noise = jax.random.normal(jax.random.key(i), shape)
        rows.append(_draw(*parts, jnp.asarray(ids), noise, timesteps, sigmas))
    sheet(np.array(rows), out)
    out.with_suffix(".txt").write_text("\n".join(prompts) + "\n")


@nnx.jit
def _draw(
    encoders: TextEncoders,
    unet: UNet,
    vae: VAE,
    ids: jax.Array,
    noise: jax.Array,
    timesteps: jax.Array,
    sigmas: jax.Array,
) -> jax.Array:
    """Draw pictures `[B, H, W, 3]` in 0..1 by Euler's method, with a UNet that predicts velocities.

    Args:
        encoders: the text encoders.
        unet: the UNet.
        vae: the VAE.
        ids: the prompts' token ids `[B, 2, L]`.
        noise: `[B, h, w, C]`, of unit variance.
        timesteps: `[steps]`.
        sigmas: `[steps + 1]`.
    """
    words = encode_prompts(encoders, ids)
    embeds, pooled = (jnp.concatenate([jnp.zeros_like(part), part]) for part in words)
    context = condition(unet, embeds, pooled, float(noise.shape[1] * vae.config.scale_factor))

    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        scale = 1 / jnp.sqrt(sigmas[i] ** 2 + 1)
        both = jnp.concatenate([x, x]) * scale
        drawn = unet(both, jnp.full(len(both), timesteps[i]), context)
        without, prompted = jnp.split(drawn, 2)
        velocity = without + GUIDANCE * (prompted - without)
        slope = scale * velocity + sigmas[i] * scale**2 * x
        return x + (sigmas[i + 1] - sigmas[i]) * slope

    latents = jax.lax.fori_loop(0, len(timesteps), step, noise * sigmas[0])
    return jnp.clip(vae.decode(latents / vae.config.scaling_factor) / 2 + 0.5, 0, 1)


if __name__ == "__main__":
    main()
