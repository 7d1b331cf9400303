"""Train a miniature in parts: `python -m tools.trainer vae words unet`.

Each part goes on from what the parts before have written into `--work`. The parts of one command
share `--minutes`, so that it fills a lent machine. A part that was stopped, or has ended, resumes;
"unet" of the same `--name` goes on with its latents. `weights` beside this file has a trained VAE
and text encoders: copy them to `runs/trainer/checkpoint` to begin with "unet".
"""

import argparse
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

import jax
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
from tools.trainer.captions import vocabulary
from tools.trainer.composition import make_scene
from tools.trainer.examples import AT_ONCE, Examples, compose_all
from tools.trainer.export import write_weights
from tools.trainer.reader import TextEncoders, teach
from tools.trainer.shape import write_configs
from tools.trainer.things import all_things
from tools.trainer.train_unet import batches, loss_fn
from tools.trainer.train_vae import make_encoder, normalise, train_vae
from tools.trainer.training import (
    M,
    Run,
    Tree,
    first_state,
    for_device,
    make_advance,
    minimise,
    parameters,
    start_as_identity,
    until,
    with_parameters,
)
from tools.vocabulary import write_tokenizers

SEED = 0
VAE_PICTURES = 8192  # the most that the VAE learns from
SHARES = {"vae": 0.2, "words": 0.1, "unet": 0.7}  # of the time
VAE_PEAK, GOING_ON = 0.02, 0.005  # its learning rate, new and trained
PIECE = 15 * 2**20  # bytes
MakePool: TypeAlias = Callable[[], tuple[np.ndarray, np.ndarray]]


def main() -> None:
    """Train some parts, or all."""
    parser = argparse.ArgumentParser(prog="python -m tools.trainer", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=tuple(SHARES))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--work", type=Path, default=Path("runs/trainer"))
    parser.add_argument("--out", type=Path, help="for few files with the results so far")
    parser.add_argument("--pictures", type=int, default=40000)
    parser.add_argument("--names", type=int, default=len(all_things()), help="the first of all")
    parser.add_argument("--plain", action="store_true", help="one thing on a plain background")
    parser.add_argument("--batch", type=int, default=32, help="for the UNet; others follow it")
    parser.add_argument("--peak", type=float, default=0.02, help="the UNet's learning rate")
    parser.add_argument("--name", default="gate", help="of a part of the training")
    parser.add_argument(
        "--go-on", nargs="*", default=(), choices=("vae", "unet"),
        help="parts to begin with the checkpoint's networks",
    )  # fmt: skip
    options = parser.parse_args()
    began = time.monotonic()
    checkpoint = options.work / "checkpoint"
    signs = [sign for thing in all_things() for sign in thing.signs]
    tokens = write_tokenizers(checkpoint, vocabulary(), signs)
    write_configs(checkpoint, tokens)
    config = read_config(checkpoint)
    tokenizers = Tokenizers.load(checkpoint, config.tokenizers)
    shares = np.cumsum([SHARES[part] for part in options.parts])
    times = began + 60 * options.minutes * shares / shares[-1]
    ends = dict(zip(options.parts, map(float, times), strict=True))
    latents_file = options.work / f"latents-{options.name}.npz"
    if options.parts == ["unet"] and latents_file.exists():
        with np.load(latents_file) as pool:
            arrays = pool["latents"], pool["ids"]
        make_unet(config, options, lambda: arrays, ends["unet"])
        return
    only_vae = options.parts == ["vae"]
    count = min(options.pictures, VAE_PICTURES) if only_vae else options.pictures
    make = partial(make_scene, options.names, options.plain)
    with_pictures = options.parts != ["words"]
    examples = compose_all(make, tokenizers, count, SEED + 10, with_pictures)
    first_examples = list(islice(examples, VAE_PICTURES // AT_ONCE))
    if "vae" in ends:
        make_vae(config, options, first_examples, ends["vae"])
    examples = chain(first_examples, examples)
    if "words" in ends:
        examples = [*examples]
        make_encoders(config, options, examples, ends["words"])
    if "unet" in ends:
        make_unet(
            config,
            options,
            partial(encode_all, config, checkpoint, examples, latents_file),
            ends["unet"],
        )


def make_vae(
    config: Config, options: argparse.Namespace, examples: Sequence[Examples], end: float
) -> None:
    """Train the VAE."""
    vae = begin(VAE, config, "vae", options)
    run = Run(options.work / f"vae-{options.name}")
    pictures = np.concatenate([part.pictures for part in examples])
    vae = train_vae(
        vae,
        run,
        pictures,
        SEED,
        size=max(1, options.batch // 16),
        end=end,
        peak=GOING_ON if "vae" in options.go_on else VAE_PEAK,
    )
    normalise(vae, pictures[:512])
    write_weights(options.work / "checkpoint", "vae", vae)
    (options.work / f"latents-{options.name}.npz").unlink(missing_ok=True)  # another VAE's


def make_encoders(
    config: Config, options: argparse.Namespace, examples: Sequence[Examples], end: float
) -> None:
    """Train the text encoders."""
    checkpoint = options.work / "checkpoint"
    build_encoder = partial(CLIPTextEncoder, dtype=jnp.float32, rngs=nnx.Rngs(SEED))
    encoders = TextEncoders(*map(build_encoder, config.text_encoders.values()))
    scenes = [scene for part in examples for scene in part.scenes]
    run = Run(options.work / "words")
    encoders = teach(encoders, scenes, _ids(examples), 3 * options.batch, run, until(end), SEED)
    write_weights(checkpoint, "text_encoder", encoders.first)
    write_weights(checkpoint, "text_encoder_2", encoders.second)


def encode_all(
    config: Config, checkpoint: Path, examples: Iterable[Examples], file: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Return the latents `[n, h, w, C]` of all pictures, and their captions' token ids.

    They are kept in a file.
    """
    encode = make_encoder(load_module(VAE, config.networks["vae"], checkpoint / "vae"))
    parts = [(encode(part.pictures), part.ids) for part in examples]
    latents, ids = (np.concatenate(part) for part in zip(*parts, strict=True))
    np.savez(file, latents=latents, ids=ids)
    return latents, ids


def make_unet(config: Config, options: argparse.Namespace, pool: MakePool, end: float) -> None:
    """Train the UNet; its step is compiled while the pool of latents and captions is made."""
    began = time.monotonic()
    checkpoint = options.work / "checkpoint"
    encoders = [
        load_module(CLIPTextEncoder, part, checkpoint / name)
        for name, part in config.text_encoders.items()
    ]
    unet = begin(UNet, config, "unet", options)
    run = Run(options.work / f"unet-{options.name}")

    def check(average: Tree) -> dict[str, float]:
        write_weights(checkpoint, "unet", with_parameters(unet, average))
        run.plot({"loss": "weighted loss"})
        if options.out:
            give_back(options)
        return {"minutes": round((time.monotonic() - began) / 60, 1)}

    network = for_device(UNet, unet.config)

    # The text encoders' weights are data: a program that was compiled with others stays valid.
    def loss(params: Tree, words: Sequence[Tree], *arrays: jax.Array) -> jax.Array:
        current_encoders = TextEncoders(*map(with_parameters, encoders, words))
        return loss_fn(network, current_encoders, config, params, *arrays)

    words = [*map(parameters, encoders)]
    advance = make_advance(loss, options.peak)

    def compile_it() -> None:
        blank_latents = np.zeros(
            (1, *config.networks["unet"].sample_size, unet.config.in_channels), np.float16
        )
        batch = batches(
            blank_latents, np.zeros((1, 1, 2, 77), np.int16), options.batch, SEED, words
        )
        state = first_state(parameters(unet), options.peak)
        for i in range(2):  # what a step returns may need a program of its own
            state, _ = advance(state, 0.0, *batch(i))

    with ThreadPoolExecutor() as compiler:
        future = compiler.submit(compile_it)
        latents, ids = pool()
        future.result()
    batch = batches(latents, ids, options.batch, SEED, words)
    start, pace = parameters(unet), until(end)
    minimise(run, loss, start, batch, pace, peak=options.peak, check=check, advance=advance)


def begin(kind: Callable[..., M], config: Config, part: str, options: argparse.Namespace) -> M:
    """Return the network that the training of a part begins with, float32."""
    if part in options.go_on:
        return load_module(kind, config.networks[part], options.work / "checkpoint" / part)
    network = kind(config.networks[part], dtype=jnp.float32, rngs=nnx.Rngs(SEED))
    start_as_identity(network)
    return network


def give_back(options: argparse.Namespace) -> None:
    """Write the checkpoint as pieces of a tar into `--out`, and the curves."""
    options.out.mkdir(parents=True, exist_ok=True)
    archive = shutil.make_archive(f"{options.work}/packed", "tar", options.work, "checkpoint")
    content = Path(archive).read_bytes()
    for i, start in enumerate(range(0, len(content), PIECE)):
        (options.out / f"checkpoint.tar.{i}").write_bytes(content[start : start + PIECE])
    for curve in options.work.glob(f"*-{options.name}/curve.png"):
        shutil.copy(curve, options.out / f"{curve.parent.name}.png")


def _ids(examples: Sequence[Examples]) -> np.ndarray:
    return np.concatenate([part.ids for part in examples])
