"""Train the bundled ControlNet: `python -m tools.miniature.control --minutes 60`.

It learns edges, scribbles and coarse areas of colour, all as pictures, from drawings of one thing
in any place and of two. The map alone decides what is followed. A training that was stopped, or has
ended, resumes.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline import BUNDLED
from pipeline.images.preparing import find_preprocessor
from pipeline.models.controlnet import ControlNet
from pipeline.models.controlnet_config import read_controlnet
from pipeline.models.unet import UNet
from tools.agreement import Networks, load_networks
from tools.miniature.drawing import draw, draw_anywhere
from tools.miniature.scenes import Scene, prompt, random_scene
from tools.trainer.export import write_weights
from tools.trainer.reader import TextEncoders
from tools.trainer.train_unet import NO_PROMPT, denoising_loss, prompt_embeddings, time_ids
from tools.trainer.train_vae import make_encoder
from tools.trainer.training import Run, Tree, minimise, parameters, until, with_parameters

NAME = "miniature-canny-scribble-tile"
FOLDER = BUNDLED / "controls"
SIDE = 256
SEED = 0
BATCH, AT_ONCE = 32, 64
PEAK = 0.01
SAVE_EVERY = 500  # steps
# The keys that differ from the UNet's. Without attention it has a third of the weights, and the
# UNet reads the prompt.
CONFIG = {
    "_class_name": "ControlNetModel",
    "down_block_types": ["DownBlock2D"] * 3,
    "mid_block_type": "UNetMidBlock2D",
    "conditioning_embedding_out_channels": [8, 16, 24, 32, 48],
    "controlnet_conditioning_channel_order": "rgb",
    "global_pool_conditions": False,
}
ONLY_UNET = ("sample_size", "out_channels", "up_block_types")


def main() -> None:
    """Train it, or go on, and write it beside the miniature's LoRAs."""
    parser = argparse.ArgumentParser(prog="python -m tools.miniature.control", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--pictures", type=int, default=8192)
    parser.add_argument("--work", type=Path, default=Path("runs/control"))
    parser.add_argument("--out", type=Path, default=FOLDER / NAME)
    options = parser.parse_args()
    networks = load_networks(BUNDLED)
    network = new_network(options.out, networks.unet)
    run = Run(options.work, SAVE_EVERY)
    scenes, pictures, latents = drawings(networks, options.pictures, SEED)

    def check(average: Tree) -> dict[str, float]:
        write_weights(options.out.parent, options.out.name, with_parameters(network, average))
        run.plot({"loss": "weighted loss"})
        return {}

    minimise(
        run,
        partial(loss_fn, network, networks),
        parameters(network),
        batches(networks, scenes, pictures, latents),
        until(time.monotonic() + 60 * options.minutes),
        peak=PEAK,
        check=check,
    )


def new_network(folder: Path, unet: UNet) -> ControlNet:
    """Write the configuration, and return the network that a training begins with.

    Its layers are the UNet's where the UNet has them, and its residuals are zero.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = json.loads((BUNDLED / "unet/config.json").read_text())
    values = {key: value for key, value in values.items() if key not in ONLY_UNET} | CONFIG
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    config = read_controlnet(folder / "config.json")
    network = ControlNet(config, dtype=jnp.float32, rngs=nnx.Rngs(SEED))
    known = _leaves(unet)
    for path, param in _leaves(network).items():
        if "controlnet_down_blocks" in path or "controlnet_mid_block" in path:
            param[...] = jnp.zeros_like(param[...])
        elif path in known:
            param[...] = known[path][...]
    return network


def _leaves(module: nnx.Module) -> dict[tuple[Any, ...], nnx.Variable]:
    return dict(nnx.to_flat_state(nnx.state(module, nnx.Param)))


def drawings(
    networks: Networks, count: int, seed: int
) -> tuple[list[Scene], np.ndarray, np.ndarray]:
    """Return scenes, their drawings `[n, SIDE, SIDE, 3]` uint8 and latents `[n, h, w, C]`."""
    rngs = [np.random.default_rng((seed, i)) for i in range(count)]
    scenes = [random_scene(rng) for rng in rngs]
    pictures = np.stack(
        [
            (draw_anywhere if len(scene.things) == 1 else draw)(scene, rng, SIDE)
            for scene, rng in zip(scenes, rngs, strict=True)
        ]
    )
    encode = make_encoder(networks.vae)
    parts = [encode(pictures[i : i + AT_ONCE]) for i in range(0, count, AT_ONCE)]
    return [*map(unplaced, scenes)], pictures, np.concatenate(parts)


def unplaced(scene: Scene) -> Scene:
    """Return a scene of one thing without its size and place, which a map says."""
    thing, *others = scene.things
    if others:
        return scene
    return replace(scene, things=(replace(thing, size="medium"),), layout="centre")


def random_map(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return what a network follows of a picture `[H, W, 3]` uint8: edges, a scribble or areas."""
    chance = rng.random()
    if chance < 0.3:
        return areas(picture, rng.uniform(1, 40), smooth=rng.random() < 0.5)
    low = rng.uniform(40, 120)
    lines = edges(picture, low, 2 * low)
    if chance < 0.55:  # strokes as by hand, some of them missing
        width = int(rng.integers(2, 8))
        stroke = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (width, width))
        lines = cv2.dilate(lines, stroke)
        top, left = rng.integers(0, SIDE - 24, 2)
        lines[top : top + 24, left : left + 24] = 0
    elif chance < 0.7:
        lines = find_preprocessor("scribble_xdog").function(picture, 32, 0)
    return np.repeat(lines[..., None], 3, axis=2)


def edges(picture: np.ndarray, low: float = 100, high: float = 200) -> np.ndarray:
    """Return Canny's edges `[H, W]`, 0 or 255."""
    return find_preprocessor("canny").function(picture, low, high)


def areas(picture: np.ndarray, rate: float, *, smooth: bool) -> np.ndarray:
    """Return a picture of coarse areas: reduced by `rate`, and enlarged again."""
    coarse = find_preprocessor("tile_resample").function(picture, rate, 0)
    how = cv2.INTER_LINEAR if smooth else cv2.INTER_NEAREST
    height, width, _ = picture.shape
    return cv2.resize(coarse, (width, height), interpolation=how)


def batches(
    networks: Networks, scenes: list[Scene], pictures: np.ndarray, latents: np.ndarray
) -> Callable[[int], tuple[Tree, ...]]:
    """Return a function that makes the batch of a step."""
    ids, _ = networks.tokenizers.tokenize([prompt(scene) for scene in scenes])
    frozen = parameters(networks.unet)

    def batch(i: int) -> tuple[Tree, ...]:
        rng = np.random.default_rng((SEED, i))
        chosen = rng.integers(len(pictures), size=BATCH)
        maps = np.stack([random_map(pictures[j], rng) for j in chosen])
        dropped = rng.random(BATCH) < NO_PROMPT
        key = jax.random.fold_in(jax.random.key(SEED), i)
        return frozen, latents[chosen].astype(np.float32), ids[chosen], maps, dropped, key

    return batch


def loss_fn(
    network: ControlNet,
    networks: Networks,
    params: Tree,
    frozen: Tree,
    latents: jax.Array,
    ids: jax.Array,
    maps: jax.Array,
    dropped: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Return the weighted squared error of the velocity that the UNet predicts with the network.

    Args:
        network: the network; `params` replace its parameters.
        networks: the miniature's, which are not trained.
        params: the network's parameters.
        frozen: the UNet's.
        latents: `[B, h, w, C]`.
        ids: token ids `[B, 2, L]` of the prompts.
        maps: `[B, H, W, 3]` uint8.
        dropped: `[B]`, which prompts are left out.
        key: the random key for the timesteps and the noise.
    """
    config = networks.config
    control, unet = with_parameters(network, params), with_parameters(networks.unet, frozen)
    embeds, pooled = prompt_embeddings(
        TextEncoders(*networks.text_encoders), ids, dropped, unet.dtype
    )
    inputs = embeds, pooled, time_ids(config, latents)
    context, guide = unet.condition(*inputs), control.condition(*inputs)
    zeros = jnp.zeros(len(maps), jnp.int32)
    hint = control.hint(maps.astype(jnp.float32) / 255, zeros, zeros)

    def predict(noisy: jax.Array, times: jax.Array) -> jax.Array:
        residuals = control(noisy, times, guide, hint)
        return unet(noisy, times, context._replace(residuals=residuals))

    return denoising_loss(predict, config, latents, key)


if __name__ == "__main__":
    main()
