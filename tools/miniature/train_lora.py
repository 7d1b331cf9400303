"""Train the LoRAs that come with the miniature: `python -m tools.miniature.train_lora`.

Draws scenes in the LoRA's style and trains low-rank changes to the UNet on them, with the captions
that the miniature itself was trained on. All randomness is seeded. A training that was stopped
resumes.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pipeline.default_model import BUNDLED
from tools.agreement import Networks, load_networks
from tools.miniature.latents import draw_latents
from tools.miniature.lora import STYLES, Lora, Style, describe, merge, new_lora, save_lora
from tools.miniature.reader import TextEncoders
from tools.miniature.scenes import Scene
from tools.miniature.train_unet import NO_PROMPT, chooser, denoising_loss, encode_prompts, say
from tools.miniature.training import minimise, parameters
from tools.miniature.work import Run

BATCH = 16
PAIRS = 0.6  # share of pictures with two things
TRIGGERED = 0.3  # share of captions that have the trigger word
PEAK = 0.1  # ten times the learning rate of the factors
SAVE_EVERY = 50  # steps


@dataclass(frozen=True)
class Size:
    """The size of a training: optimiser steps, and pictures to choose from."""

    steps: int
    pictures: int
    seed: int


def main() -> None:
    """Train LoRAs and write their files into `--out`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.miniature.train_lora",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("styles", nargs="*", help="which to train", default=list(STYLES))
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--out", type=Path, default=BUNDLED / "loras")
    parser.add_argument("--work", type=Path, default=Path("runs/loras"), help="saved states")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pictures", type=int, default=1024, help="a multiple of 16")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := set(options.styles) - set(STYLES):
        parser.error(f"unknown styles {sorted(unknown)}; known: {', '.join(STYLES)}")
    networks = load_networks(options.model)
    size = Size(options.steps, options.pictures, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.styles:
        style = STYLES[name]
        lora = train_lora(networks, style, options.work / name, size)
        captions = round(TRIGGERED * size.pictures)
        save_lora(lora, options.out / f"{name}.safetensors", describe(style, captions, size.steps))


def train_lora(networks: Networks, style: Style, folder: Path, size: Size) -> Lora:
    """Train a LoRA, or resume its training, and return its average."""
    unet, config = networks.unet, networks.config
    side = config.networks["unet"].sample_size[0] * config.networks["vae"].scale_factor
    pool = draw_latents(networks.vae, folder, size.pictures, size.seed + 10, side, style.decoration)
    run = Run(folder / f"{size.steps}-{size.pictures}-{size.seed}", SAVE_EVERY)
    embeds, pooled = _encode_captions(networks, style, pool.scenes, size.seed)
    base, choose = parameters(unet), chooser(pool, BATCH, PAIRS)

    def batch(i: int) -> tuple[ArrayLike, ...]:
        rng = np.random.default_rng((size.seed, 2, i))
        chosen = choose(rng)
        latents = pool.latents[chosen].astype(np.float32)
        key = jax.random.fold_in(jax.random.key(size.seed), i)
        return latents, embeds[chosen], pooled[chosen], rng.random(BATCH) < NO_PROMPT, key

    def loss(lora: Lora, *given: jax.Array) -> jax.Array:
        return denoising_loss(unet, config, merge(base, lora), *given)

    state = minimise(run, loss, new_lora(unet, size.seed), batch, size.steps, warmup=30, peak=PEAK)
    run.plot({"loss": "weighted loss"})
    return state["average"]


def _encode_captions(
    networks: Networks, style: Style, scenes: list[Scene], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the embeddings `[n, L, D]` and pooled embeddings `[n, P]` of a caption per scene."""
    rng = np.random.default_rng((seed, 1))
    ids, _ = networks.tokenizers.tokenize([caption(style, scene, rng) for scene in scenes])
    encode = jax.jit(partial(encode_prompts, TextEncoders(*networks.text_encoders)))
    starts = range(0, len(scenes), BATCH)
    parts = [encode(jnp.asarray(ids[start : start + BATCH])) for start in starts]
    embeds, pooled = (np.concatenate(part) for part in zip(*parts, strict=True))
    return embeds, pooled


def caption(style: Style, scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption, now and then with the style's trigger word in front or at the end."""
    words, chance = say(scene, rng), rng.random()
    if chance < TRIGGERED / 2:
        return f"{style.trigger}, {words}"
    return f"{words}, {style.trigger}" if chance < TRIGGERED else words


if __name__ == "__main__":
    main()
