"""From a checkpoint's folder to the parts of a pipeline, their parameters where they belong."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from tqdm import tqdm

from pipeline import weights
from pipeline.clip import CLIPTextEncoder
from pipeline.compiled import Networks
from pipeline.config import Config
from pipeline.errors import CheckpointError, InputError
from pipeline.layers import folded
from pipeline.safety_checker import SafetyChecker
from pipeline.tokenizer import Tokenizers
from pipeline.unet import UNet
from pipeline.vae import VAE
from pipeline.weights import Stored

log = logging.getLogger(__name__)


def network_dtype(dtype: DTypeLike | None, devices: Sequence[jax.Device]) -> np.dtype[Any]:
    """What networks run in on `devices`: what was asked for, or what suits them where None.

    Of a CPU that depends on the checkpoint too: `devices.worth_bfloat16`.
    """
    if dtype is None:
        return jnp.dtype(jnp.float32 if devices[0].platform == "cpu" else jnp.bfloat16)
    for supported in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
        if dtype in (supported, supported.name, supported.type):
            return supported
    right = "float32 or bfloat16 (the VAE overflows in float16)"
    raise InputError(f"dtype is {dtype}; expected {right}")


def load_tokenizers(folder: Path, config: Config) -> Tokenizers:
    """Of a checkpoint on this machine; they must fit the text encoders."""
    encoders = config.text_encoders
    lengths = [encoder.max_position_embeddings for encoder in encoders.values()]
    tokenizers = Tokenizers.load(folder, lengths)
    for tokenizer, (name, encoder) in zip(tokenizers.each, encoders.items(), strict=True):
        if tokenizer.vocabulary_size > encoder.vocab_size:
            raise CheckpointError(
                f"{folder}/{name}/config.json: vocab_size = {encoder.vocab_size} is less than the"
                f" {tokenizer.vocabulary_size} of its tokenizer"
            )
    return tokenizers


def find_networks(folder: Path, config: Config, dtype: DTypeLike) -> dict[str, Stored[Any]]:
    """Of a checkpoint on this machine, by the names of their folders; refuses what does not fit."""

    def find(name: str, make: Callable[[DTypeLike], nnx.Module]) -> Stored[Any]:
        # Thresholds with three decimals need more than 16 bits.
        own = np.float32 if name == "safety_checker" else dtype
        return weights.find(lambda: make(own), folder / name)

    return {name: find(name, make) for name, make in blueprints(config).items()}


def load_networks(found: dict[str, Stored[Any]], place: weights.Place) -> Networks:
    """What `find_networks` found; `place` puts each parameter where it belongs."""

    def load(name: str, stored: Stored[Any]) -> Any:
        with Timed(f"loaded {name}"), _progress_bar(f"Loading {name}") as bar:
            return stored.load(place, bar.update)

    return Networks.named({name: load(name, stored) for name, stored in found.items()})


def blueprints(config: Config) -> dict[str, Callable[[DTypeLike], nnx.Module]]:
    """By the name of its folder, what makes each network in a dtype, for its shapes alone."""

    def blueprint(make: Callable[..., nnx.Module], part: object) -> Callable[..., nnx.Module]:
        return lambda dtype: folded(make(part, dtype=dtype, rngs=weights.shape_rngs()))

    encoders = {
        name: blueprint(CLIPTextEncoder, part) for name, part in config.text_encoders.items()
    }
    made = {**encoders, "unet": blueprint(UNet, config.unet), "vae": blueprint(VAE, config.vae)}
    if config.safety_checker is not None:
        made["safety_checker"] = blueprint(SafetyChecker, config.safety_checker)
    return made


def _progress_bar(title: str) -> tqdm:
    """Bytes loaded; silent where nobody watches a terminal."""
    return tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024, disable=None)


class Timed:
    """Logs how long a stage of startup took."""

    def __init__(self, done: str):
        self.done = done

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            log.info("%s in %.1f s", self.done, time.perf_counter() - self.start)
