"""Live agreement with torch's pipelines that begin with a picture, on random checkpoints.

The pipelines sample the VAE's posterior; here they take its mean, and the noise that is given.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.families import FamilyReader
from pipeline.families.halves import joined, split
from pipeline.images import inputs
from pipeline.runtime.sampler import step_noise
from pipeline.schedulers.config import SCHEDULERS, SchedulerConfig
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import (
    REMEMBERED,
    State,
    Table,
    add_noise,
    blend,
    scale_model_input,
    step,
)
from tests.reference.samples import LATENTS_BOUND, NUDGES_BOUND, PICTURE_BOUND, apart, nudged
from tools import agreement, torch_reference
from tools.agreement import Networks
from tools.tiny_checkpoints import TINY, Files, Pipeline, load, write
from tools.torch_reference import Sample

IMAGES = 2
STEPS = 8
SCALE = 4.0
PROMPTS = ["a red star on blue", "night"]
NEGATIVE = ["blue", "a star"]


class Compiled:
    """This project's networks, and what they compute; everything is compiled once."""

    def __init__(self, networks: Networks):
        family = networks.config.family
        encoders = zip(networks.config.text_encoders, networks.text_encoders, strict=True)
        parts = {"unet": networks.unet, "vae": networks.vae, **dict(encoders)}
        self.networks = networks
        self.family = family
        self.factor: int = networks.vae.config.scale_factor
        self.encode_image = jax.jit(partial(family.encode_image.run, parts))
        self.encode = jax.jit(partial(family.encode.run, parts))
        self.decode = jax.jit(partial(family.decode.run, parts))
        self._predict = partial(family.predict.run, parts)
        self.evaluate = jax.jit(self._evaluate)

    def _evaluate(
        self, state: State, row: Table[jax.Array], noise: jax.Array, context: Any
    ) -> State:
        """Run one evaluation with guidance."""
        scaled = scale_model_input(state.latents, row)
        both = joined(jnp.broadcast_to(scaled, (2, *scaled.shape)))
        times = jnp.broadcast_to(row.timesteps, len(both))
        uncond, cond = split(self._predict(both, times, jax.tree.map(joined, context)))
        return step(uncond + SCALE * (cond - uncond), state, row, noise)

    def context(self, side: int) -> Any:
        """Return the prompts' context for square pictures."""
        both, _ = self.networks.tokenizers.tokenize([*NEGATIVE, *PROMPTS])
        ids = jnp.asarray(both).reshape(2, IMAGES, *both.shape[1:])
        size = jnp.array([side, side], jnp.float32)
        zeroed, scales = jnp.zeros((2, IMAGES), bool), jnp.full(IMAGES, SCALE, jnp.float32)
        return self.encode(ids, zeroed, size, scales)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, loaded by torch's diffusers and by this project."""

    theirs: Pipeline
    ours: Compiled


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    torch_reference.prepare_for_tiny()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Loaded]:
    """Return a function that makes a checkpoint of the shape of `TINY[name]`.

    Its UNet takes a mask if asked to.
    """

    @cache
    def make(name: str, takes_mask: bool = False) -> Loaded:
        unet = {**TINY[name].unet, **({"in_channels": 9, "out_channels": 4} if takes_mask else {})}
        folder: Path = tmp_path_factory.mktemp(name)
        write(dataclasses.replace(TINY[name], unet=unet, files=Files()), folder)
        ours = agreement.load_networks(folder, FamilyReader(inpainting=True).read(folder))
        assert ours.config.takes_mask == takes_mask
        return Loaded(load(folder), Compiled(ours))

    return make


def drawn(
    ours: Compiled,
    config: SchedulerConfig,
    noise: np.ndarray,
    images: np.ndarray,
    mask: np.ndarray | None = None,
    **part: float,
) -> Sample:
    """Draw from pictures, or go on from latents, with this project's parts."""
    schedule = make_schedule(config, STEPS, **part)
    context = ours.context(noise.shape[1] * ours.factor)
    x0, small = jnp.asarray(images), None
    if images.shape[-1] == 3:
        x0 = ours.encode_image(images)
    latents = x0
    if "strength" in part:
        latents = add_noise(x0, jnp.asarray(noise), jnp.asarray(schedule.noised[0]))
    if mask is not None:
        small = jnp.stack([inputs.latent_mask(each, ours.factor) for each in mask])
        if part["strength"] == 1:
            latents = jnp.asarray(noise) * schedule.init_noise_sigma
        if ours.networks.config.takes_mask:
            hidden = ours.encode_image(np.stack([*map(inputs.masked, images, mask)]))
            context, small = ours.family.with_mask(context, small, hidden), None
    state = State(latents, jnp.zeros((REMEMBERED, *latents.shape)))
    for i in range(len(schedule.timesteps)):
        row = jax.tree.map(lambda column, i=i: jnp.asarray(column[i]), schedule.table)
        new = step_noise(jnp.arange(IMAGES, dtype=jnp.uint32), i, latents.shape[1:])
        state = ours.evaluate(state, row, new, context)
        if small is not None:
            known = jnp.asarray(schedule.noised[i + 1])
            blended = blend(state.latents, x0, small, jnp.asarray(noise), known)
            state = state._replace(latents=blended)
    return Sample(np.asarray(state.latents), np.asarray(ours.decode(state.latents)))


def use_scheduler(loaded: Loaded, name: str) -> SchedulerConfig:
    """Let torch draw by a scheduler, and return its configuration."""
    kind, own = SCHEDULERS[name], loaded.theirs.scheduler
    supported = {key: kind.supported[key][0] for key in kind.own_defaults}
    loaded.theirs.scheduler = getattr(diffusers, kind.name).from_config(
        own.config, **kind.implied, **supported
    )
    return loaded.ours.networks.config.schedulers.choose(name)


def pictures(rng: np.random.Generator, loaded: Loaded) -> tuple[np.ndarray, ...]:
    """Return noise `[B, h, w, C]`, pictures `[B, H, W, 3]` and masks `[B, H, W]`."""
    height, width = loaded.ours.networks.config.networks["unet"].sample_size
    factor = loaded.ours.factor
    noise = rng.standard_normal((IMAGES, height, width, 4), dtype=np.float32)
    images = rng.uniform(size=(IMAGES, height * factor, width * factor, 3)).astype(np.float32)
    masks = np.zeros(images.shape[:3], np.float32)
    masks[0, 3:-4, : width * factor // 2] = 1
    masks[1, :5] = 1
    return noise, images, masks


def check(ours: Sample, theirs: Callable[[np.ndarray], Sample], noise: np.ndarray) -> None:
    """Assert that samples agree; `theirs` samples by torch."""
    right = theirs(noise)
    errors = apart(ours, right)
    bounds = np.array([[LATENTS_BOUND], [PICTURE_BOUND]])
    if (errors > bounds).any():
        moved = [apart(theirs(each), right) for each in nudged(noise)]
        bounds = np.maximum(bounds, NUDGES_BOUND * np.max(moved, axis=0))
    assert (errors <= bounds).all(), (errors, bounds)


@pytest.mark.parametrize(
    ("name", "scheduler", "strength"),
    [
        ("plain", "euler", 0.5),
        ("plain", "dpmsolver++", 0.8),
        ("plain", "heun", 0.3),
        ("plain", "euler-ancestral", 1.0),
        ("plain", "unipc", 0.6),
        ("sd_1", "pndm", 0.5),
        ("sd_1", "ddim", 0.8),
        ("sd_1", "lms", 0.6),
        ("sd_1", "dpmsolver++-sde", 0.5),
    ],
)
def test_image_to_image(
    name: str,
    scheduler: str,
    strength: float,
    start: Callable[..., Loaded],
    request: pytest.FixtureRequest,
) -> None:
    loaded = start(name)
    config = use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, _ = pictures(rng, loaded)

    def theirs(noise: np.ndarray) -> Sample:
        return torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, noise, SCALE, STEPS, images, strength=strength
        )

    check(drawn(loaded.ours, config, noise, images, strength=strength), theirs, noise)


@pytest.mark.parametrize(
    ("name", "scheduler", "strength", "takes_mask"),
    [
        ("plain", "euler", 0.7, False),
        ("plain", "heun", 1.0, False),
        ("plain", "dpmsolver++-2m-sde", 0.5, False),
        ("sd_1", "pndm", 0.7, False),
        ("sd_1", "ddim", 1.0, False),
        ("plain", "euler", 1.0, True),
        ("plain", "dpmsolver++", 0.6, True),
        ("sd_1", "pndm", 1.0, True),
        ("sd_1", "euler-ancestral", 0.6, True),
    ],
)
def test_inpainting(
    name: str,
    scheduler: str,
    strength: float,
    takes_mask: bool,
    start: Callable[..., Loaded],
    request: pytest.FixtureRequest,
) -> None:
    loaded = start(name, takes_mask)
    config = use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise, images, masks = pictures(rng, loaded)

    def theirs(noise: np.ndarray) -> Sample:
        return torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, noise, SCALE, STEPS, images, masks, strength=strength
        )

    check(drawn(loaded.ours, config, noise, images, masks, strength=strength), theirs, noise)


@pytest.mark.parametrize(("scheduler", "share"), [("euler", 0.6), ("heun", 0.5), ("unipc", 0.7)])
def test_a_second_model_goes_on(
    scheduler: str,
    share: float,
    start: Callable[..., Loaded],
    request: pytest.FixtureRequest,
) -> None:
    loaded = start("plain")
    config = use_scheduler(loaded, scheduler)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    latents, *_ = pictures(rng, loaded)

    def theirs(latents: np.ndarray) -> Sample:
        return torch_reference.sample_from_picture(
            loaded.theirs, PROMPTS, NEGATIVE, latents, SCALE, STEPS, latents, denoising_start=share
        )

    check(drawn(loaded.ours, config, latents, latents, denoising_start=share), theirs, latents)
