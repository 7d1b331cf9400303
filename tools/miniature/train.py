"""Train the bundled miniature from nothing: `python -m tools.miniature.train`.

Draws its own training pictures, trains the VAE, then the text encoders, then the UNet, and writes a
checkpoint in diffusers' layout. All randomness is seeded. A training that was stopped resumes.
"""

import argparse
import json
import shutil
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.default_model import BUNDLED
from pipeline.families import read_config
from pipeline.models.clip import CLIPTextEncoder
from pipeline.text.tokenizer import Tokenizers
from tools.miniature.export import write_weights
from tools.miniature.latents import draw_latents, normalise
from tools.miniature.reader import TextEncoders, teach
from tools.miniature.scenes import vocabulary
from tools.miniature.shape import write_configs
from tools.miniature.train_unet import train_unet
from tools.miniature.train_vae import draw_pool, train_vae
from tools.miniature.vocabulary import write_tokenizers
from tools.miniature.work import Run, Settings, Work, option

STAGES = ("vae", "reader", "unet")
SAVE_EVERY = 250  # steps


def main() -> None:
    """Train all three stages and replace the checkpoint in `--out`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.miniature.train",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=BUNDLED, help="the checkpoint's folder")
    parser.add_argument("--work", type=Path, default=Path("runs/miniature"), help="saved states")
    for item in fields(Settings):
        parser.add_argument(
            option(item.name), type=int, default=item.default, help=item.metadata["help"]
        )
    options = vars(parser.parse_args())
    out, folder = options.pop("out"), options.pop("work")
    try:
        work = Work(folder, Settings(**options))
    except ValueError as error:
        parser.error(str(error))
    checkpoint = folder / "checkpoint"
    write_configs(checkpoint, write_tokenizers(checkpoint, vocabulary()))
    train(work, checkpoint)
    publish(work, checkpoint, out)


def train(work: Work, checkpoint: Path) -> None:
    """Train every stage; write the weights into a checkpoint that has all its other files."""
    settings, seed = work.settings, work.settings.seed
    in_vae, in_reader, in_unet = (Run(work.folder / x, SAVE_EVERY, work.tick) for x in STAGES)
    config = read_config(checkpoint)
    size = config.networks["unet"].sample_size[0] * config.networks["vae"].scale_factor
    vae = train_vae(config.networks["vae"], in_vae, settings, size)
    normalise(vae, draw_pool(settings.normalised_over, seed + 2, size))
    write_weights(checkpoint, "vae", vae)
    tokenizers = Tokenizers.load(checkpoint, config.tokenizers)
    pool = draw_latents(vae, work.folder, settings.pictures, seed + 10, size)
    new = partial(CLIPTextEncoder, dtype=jnp.float32, rngs=nnx.Rngs(seed))
    encoders = TextEncoders(*map(new, config.text_encoders.values()))
    encoders = teach(encoders, tokenizers, pool.scenes, in_reader, settings.reading_steps, seed)
    write_weights(checkpoint, "text_encoder", encoders.first)
    write_weights(checkpoint, "text_encoder_2", encoders.second)
    unet = train_unet(config, encoders, tokenizers, pool, in_unet, settings)
    write_weights(checkpoint, "unet", unet)


def publish(work: Work, checkpoint: Path, out: Path) -> None:
    """Replace every part of the checkpoint in `out`, and record how it was made."""
    out.mkdir(parents=True, exist_ok=True)
    for part in checkpoint.iterdir():
        if part.is_dir():
            # Remove the folder first: weights in one file and in shards have different names.
            shutil.rmtree(out / part.name, ignore_errors=True)
            shutil.copytree(part, out / part.name)
        else:
            shutil.copy(part, out)
    for stage in STAGES:
        shutil.copy(work.folder / stage / "curve.png", out / f"curve-{stage}.png")
    work.tick()
    record = {
        "settings": asdict(work.settings),
        "seconds": round(work.seconds),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
