"""Train a miniature in parts: `python -m tools.trainer.train vae | words | unet`.

Each part goes on from what the parts before have written into `--work`. All randomness is seeded. A
part that was stopped resumes.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.families import read_config
from pipeline.families.family import Config
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.unet import UNet
from pipeline.models.vae import VAE
from pipeline.text.tokenizer import Tokenizers
from tools.agreement import load_module
from tools.miniature.export import write_weights
from tools.miniature.latents import encode_scenes, normalise
from tools.miniature.reader import TextEncoders
from tools.miniature.shape import write_configs
from tools.miniature.train_unet import loss_fn
from tools.miniature.training import minimise, parameters, start_as_identity, with_parameters
from tools.miniature.vocabulary import write_tokenizers
from tools.miniature.work import Run
from tools.trainer import shape
from tools.trainer.captions import vocabulary
from tools.trainer.composition import Plain, Scene, draw, random_scene
from tools.trainer.reader import teach
from tools.trainer.things import all_things
from tools.trainer.train_unet import Batch, batches
from tools.trainer.train_vae import draw_pool, train_vae

SEED = 0


def main() -> None:
    """Train one part."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer.train", description=__doc__)
    parser.add_argument("part", choices=("vae", "words", "unet"))
    parser.add_argument("--work", type=Path, default=Path("runs/trainer"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pictures", type=int, default=4000, help="a multiple of 16")
    parser.add_argument("--names", type=int, default=len(all_things()), help="the first of all")
    parser.add_argument("--plain", action="store_true", help="one thing on a plain background")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--crops", type=float, default=0.5, help="share of steps on quarters")
    parser.add_argument("--peak", type=float, default=0.02, help="learning rate of kernels")
    parser.add_argument("--name", default="gate", help="of a part of the training")
    parser.add_argument("--go-on", action="store_true", help="begin with the checkpoint's network")
    options = parser.parse_args()
    checkpoint = options.work / "checkpoint"
    emoji = [thing.emoji for thing in all_things()]
    tokens = write_tokenizers(checkpoint, vocabulary(), emoji)
    write_configs(checkpoint, tokens, shape.UNET, shape.VAE, shape.SCHEDULER)
    config = read_config(checkpoint)
    {"vae": make_vae, "words": make_encoders, "unet": make_unet}[options.part](config, options)


def make_vae(config: Config, options: argparse.Namespace) -> None:
    """Train the VAE."""
    if options.go_on:
        vae = load_module(VAE, config.networks["vae"], options.work / "checkpoint/vae")
    else:
        vae = VAE(config.networks["vae"], dtype=jnp.float32, rngs=nnx.Rngs(SEED))
        start_as_identity(vae)
    run = Run(options.work / f"vae-{options.name}", 100)
    whole = 1.0 if options.go_on else 0.5
    vae = train_vae(
        vae, run, options.pictures, SEED, steps=options.steps, whole=whole, peak=options.peak
    )
    normalise(vae, draw_pool(512, SEED + 2))
    write_weights(options.work / "checkpoint", "vae", vae)


def make_encoders(config: Config, options: argparse.Namespace) -> None:
    """Train the text encoders."""
    checkpoint = options.work / "checkpoint"
    new = partial(CLIPTextEncoder, dtype=jnp.float32, rngs=nnx.Rngs(SEED))
    encoders = TextEncoders(*map(new, config.text_encoders.values()))
    tokenizers = Tokenizers.load(checkpoint, config.tokenizers)
    run = Run(options.work / "words", 250)
    encoders = teach(encoders, tokenizers, run, options.steps, SEED)
    write_weights(checkpoint, "text_encoder", encoders.first)
    write_weights(checkpoint, "text_encoder_2", encoders.second)


def make_unet(config: Config, options: argparse.Namespace) -> None:
    """Train the UNet."""
    checkpoint = options.work / "checkpoint"
    tokenizers = Tokenizers.load(checkpoint, config.tokenizers)
    vae = load_module(VAE, config.networks["vae"], checkpoint / "vae")
    encoders = TextEncoders(
        *(
            load_module(CLIPTextEncoder, part, checkpoint / name)
            for name, part in config.text_encoders.items()
        )
    )
    make = partial(make_scene, options)
    folder = options.work / f"latents-{options.name}"
    began = time.monotonic()
    scenes, latents = encode_scenes(vae, folder, make, draw, options.pictures, SEED + 10)
    print(f"encoded {len(scenes)} in {time.monotonic() - began:.0f} s", flush=True)
    if options.go_on:
        unet = load_module(UNet, config.networks["unet"], checkpoint / "unet")
    else:
        unet = UNet(config.networks["unet"], dtype=jnp.float32, rngs=nnx.Rngs(SEED))
        start_as_identity(unet)
    run = Run(options.work / f"unet-{options.name}", 100)

    def check(average: dict) -> dict[str, float]:
        write_weights(checkpoint, "unet", with_parameters(unet, average))
        return {"minutes": round((time.monotonic() - began) / 60, 1)}

    make_batch = batches(scenes, latents, tokenizers, options.batch, SEED)
    full = latents.shape[1]

    def batch(i: int) -> Batch:
        return make_batch(i, full // 2 if i < options.crops * options.steps else full)

    loss = partial(loss_fn, unet, encoders, config)
    minimise(run, loss, parameters(unet), batch, options.steps, peak=options.peak, check=check)
    run.plot({"loss": "weighted loss"})


def make_scene(options: argparse.Namespace, rng: np.random.Generator) -> Scene:
    """Draw a random scene that the options allow."""
    things = all_things()[: options.names]
    if not options.plain:
        return random_scene(rng, things, (0.6, 0.25, 0.15))
    while True:
        scene = random_scene(rng, things, (1.0, 0.0, 0.0))
        if isinstance(scene.background, Plain) and not scene.background.to:
            return scene


if __name__ == "__main__":
    main()
