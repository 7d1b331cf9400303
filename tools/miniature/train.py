"""Makes the bundled miniature from nothing: `python -m tools.miniature.train`.

Draws its own training pictures, trains the VAE, then the text encoders, then the UNet, and writes a
checkpoint in diffusers' layout. Seeded. Stopped and started again, it goes on where it was.
"""

import argparse
import json
import re
import shutil
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.clip import CLIPTextEncoder
from pipeline.config import read_config
from pipeline.default_model import BUNDLED
from pipeline.tokenizer import Tokenizers
from tools.miniature.export import write_weights
from tools.miniature.latents import draw_latents, normalise
from tools.miniature.reader import TextEncoders, teach
from tools.miniature.scenes import vocabulary
from tools.miniature.shape import END, PAD_2, write_configs
from tools.miniature.train_unet import train_unet
from tools.miniature.train_vae import draw_pool, train_vae
from tools.miniature.vocabulary import write_tokenizer

NORMALISED_OVER = 512
STAGES = ("vae", "reader", "unet")


def main() -> None:
    """Trains both stages and replaces the checkpoint in `--out`."""
    parser = argparse.ArgumentParser(prog="python -m tools.miniature.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=BUNDLED, help="the checkpoint's folder")
    parser.add_argument("--work", type=Path, default=Path("build/miniature"), help="saved states")
    parser.add_argument("--vae-steps", type=int, default=3600)
    parser.add_argument("--reading-steps", type=int, default=400)
    parser.add_argument("--steps", type=int, default=3000, help="of the UNet")
    parser.add_argument("--pictures", type=int, default=8192, help="that the UNet trains on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.time()
    train(options, options.work)
    _record(options, options.work, time.time() - start)


def train(options: argparse.Namespace, work: Path) -> None:
    """Every stage, in `work/checkpoint`, which then replaces the contents of `--out`."""
    folder = work / "checkpoint"
    _write_words(folder)
    config = read_config(folder)
    vae = train_vae(config.vae, work / "vae", options.vae_steps, options.seed)
    normalise(vae, draw_pool(NORMALISED_OVER, options.seed + 2))
    write_weights(folder, "vae", vae)
    tokenizers = Tokenizers.load(folder)
    pool = draw_latents(vae, work, options.pictures, options.seed + 10)
    new = partial(CLIPTextEncoder, dtype=jnp.float32, rngs=nnx.Rngs(options.seed))
    encoders = teach(
        TextEncoders(*map(new, config.text_encoders.values())),
        tokenizers,
        pool.scenes,
        work / "reader",
        options.reading_steps,
        options.seed,
    )
    write_weights(folder, "text_encoder", encoders.first)
    write_weights(folder, "text_encoder_2", encoders.second)
    unet = train_unet(
        config, encoders, tokenizers, pool, work / "unet", options.steps, options.seed
    )
    write_weights(folder, "unet", unet)
    shutil.copytree(folder, options.out, dirs_exist_ok=True)


def _write_words(folder: Path) -> None:
    """Tokenizers for the grammar's words, and the configurations that follow from them."""
    words = sorted({word for said in vocabulary() for word in re.findall("[a-z]+", said)})
    write_tokenizer(folder / "tokenizer", words, END)
    write_tokenizer(folder / "tokenizer_2", words, PAD_2)
    write_configs(folder, len(json.loads((folder / "tokenizer/vocab.json").read_text())))


def _record(options: argparse.Namespace, work: Path, seconds: float) -> None:
    """What was run, on what, for how long: beside the weights."""
    record = {
        "settings": {
            name: value for name, value in vars(options).items() if name not in ("out", "work")
        },
        "seconds": round(seconds),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }
    (options.out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    for stage in STAGES:
        shutil.copy(work / stage / "curve.png", options.out / f"curve-{stage}.png")


if __name__ == "__main__":
    main()
