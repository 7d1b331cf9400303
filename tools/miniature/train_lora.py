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

from pipeline.default_model import BUNDLED
from tools.agreement import Networks, load_networks
from tools.miniature.latents import draw_latents
from tools.miniature.lora import STYLES, Lora, Style, describe, merge, new_lora, save_lora
from tools.miniature.reader import TextEncoders
from tools.miniature.scenes import Scene
from tools.miniature.train_unet import loss_fn, make_batches, say
from tools.miniature.training import minimise, parameters
from tools.miniature.work import Run

BATCH = 16
PAIRS = 0.6  # share of pictures with two things
TRIGGERED = 0.3  # share of captions that have the trigger word
SAVE_EVERY = 100  # steps


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
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pictures", type=int, default=2048, help="a multiple of 16")
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
        captions = round(TRIGGERED * size.steps * BATCH)
        save_lora(lora, options.out / f"{name}.safetensors", describe(style, captions, size.steps))


def train_lora(networks: Networks, style: Style, folder: Path, size: Size) -> Lora:
    """Train a LoRA, or resume its training, and return its average."""
    unet, config = networks.unet, networks.config
    side = config.networks["unet"].sample_size[0] * config.networks["vae"].scale_factor
    pool = draw_latents(
        networks.vae, folder, size.pictures, size.seed + 10, side, style.decoration
    )
    run = Run(folder / f"{size.steps}-{size.pictures}-{size.seed}", SAVE_EVERY)
    base, encoders = parameters(unet), TextEncoders(*networks.text_encoders)
    word = partial(caption, style)
    batch = make_batches(pool, networks.tokenizers, size.seed, BATCH, PAIRS, word)

    def loss(lora: Lora, *given: jax.Array) -> jax.Array:
        return loss_fn(unet, encoders, config, merge(base, lora), *given)

    state = minimise(run, loss, new_lora(unet, size.seed), batch, size.steps, warmup=30)
    run.plot({"loss": "weighted loss"})
    return state["average"]


def caption(style: Style, scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption, now and then with the style's trigger word in front or at the end."""
    words, chance = say(scene, rng), rng.random()
    if chance < TRIGGERED / 2:
        return f"{style.trigger}, {words}"
    return f"{words}, {style.trigger}" if chance < TRIGGERED else words


if __name__ == "__main__":
    main()
