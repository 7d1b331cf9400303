"""Live agreement with torch's diffusers on random checkpoints and prompts.

Each checkpoint is drawn from the session's `--seed` and its own number, so that it can be drawn
again alone. The bounds are the same as for the golden files. A larger difference is allowed where
rounding explains it: where torch's own output changes as much when the input's last bits change.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusers import LCMScheduler, StableDiffusionXLPipeline
from flax import nnx

from pipeline import BUNDLED, SDXLPipeline
from pipeline.images.moderation import prepare
from pipeline.models.clip_config import read_safety_checker
from pipeline.models.safety_checker import SafetyChecker
from pipeline.schedulers.config import SCHEDULERS
from pipeline.schedulers.dpm_solver import solver_sigmas
from pipeline.schedulers.euler import euler_sigmas
from pipeline.schedulers.methods import make_schedule
from tests import compiling
from tests.reference import torch_reference
from tests.reference.drawing import NASTY_PROMPTS, draw_checkpoint, draw_safety_checker, draw_text
from tests.reference.make_goldens import draw_pictures, draw_thresholds
from tests.reference.samples import NUDGES_BOUND, check_sample, nudged, psnr
from tests.reference.tiny_checkpoints import (
    SDXL_SCHEDULE,
    TINY,
    Files,
    Pipeline,
    Tiny,
    build_safety_checker,
    load,
    randomise,
    write,
)
from tools import agreement
from tools.agreement import Networks, relative_error

COMPONENT_BOUND = 2e-5
IMAGES = 2


@dataclass(frozen=True)
class Drawn:
    """A random checkpoint, loaded by torch's diffusers and by this project."""

    number: int
    tiny: Tiny
    folder: Path
    theirs: Pipeline
    ours: Networks
    rng: np.random.Generator

    def noise(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def latents(self, count: int) -> np.ndarray:
        config = self.ours.config.networks["unet"]
        return self.noise(count, *config.sample_size, config.in_channels)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "drawn" in metafunc.fixturenames:
        numbers = range(metafunc.config.getoption("--checkpoints"))
        metafunc.parametrize("drawn", numbers, indirect=True, scope="module")


@pytest.fixture(scope="module")
def drawn(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drawn]:
    seed = request.config.getoption("--seed")
    rng = np.random.default_rng([seed, request.param])
    tiny = draw_checkpoint(rng)
    print(f"--seed {seed}, checkpoint {request.param}: {dataclasses.asdict(tiny)}")
    folder = tmp_path_factory.mktemp("checkpoint")
    write(tiny, folder)
    theirs = load(folder, tiny.files.variant)
    yield Drawn(request.param, tiny, folder, theirs, agreement.load_networks(folder), rng)
    jax.clear_caches()


@pytest.fixture(scope="module")
def pipe(drawn: Drawn) -> SDXLPipeline:
    """Return the checkpoint's pipeline; the first one's is compiled as users' are."""
    with compiling.optimised(drawn.number == 0):
        return SDXLPipeline.from_pretrained(
            drawn.folder, images_per_request=IMAGES, devices=jax.devices()[:1]
        )


def test_text(drawn: Drawn) -> None:
    prompts = [*NASTY_PROMPTS, *(draw_text(drawn.rng) for _ in range(30))]
    theirs = torch_reference.encode_text(drawn.theirs, prompts)
    ids, _ = drawn.ours.tokenizers.tokenize(prompts)
    for i in range(ids.shape[1]):
        np.testing.assert_array_equal(ids[:, i], theirs[f"input_ids_{i + 1}"])
    outputs = [
        agreement.text_states(encoder, ids[:, i])
        for i, encoder in enumerate(drawn.ours.text_encoders)
    ]
    _, pooled = outputs[-1]
    assert (pooled is not None) == ("pooled" in theirs)
    ours = {"prompt_embeds": np.concatenate([states for states, _ in outputs], axis=-1)}
    if pooled is not None:
        ours["pooled"] = np.asarray(pooled)

    def encode(name: str, embeddings: np.ndarray) -> np.ndarray:
        with torch_reference.token_embeddings(drawn.theirs, embeddings):
            return torch_reference.encode_text(drawn.theirs, prompts)[name]

    embeddings = torch_reference.get_token_embeddings(drawn.theirs)
    for name, mine in ours.items():
        check_component(mine, partial(encode, name), embeddings)


def check_component(ours: Any, theirs: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> None:
    """Assert that `ours` is close to `theirs(x)`.

    Some of the drawn networks magnify rounding errors, in torch as well. The bound is therefore
    raised to a multiple of the change that other last bits of `x` make in `theirs(x)`.
    """
    right = theirs(x)
    error = bound = relative_error(np.asarray(ours), right)
    if error > COMPONENT_BOUND:
        bound = NUDGES_BOUND * max(relative_error(theirs(each), right) for each in nudged(x))
    assert error <= bound


def test_unet(drawn: Drawn) -> None:
    config = drawn.ours.config
    inputs: list[np.ndarray | None] = [
        drawn.latents(2),
        drawn.rng.uniform(0, 999, 2).astype(np.float32),
        drawn.noise(2, 77, config.networks["unet"].cross_attention_dim),
    ]
    if drawn.tiny.text_encoder_2 is not None:
        inputs.append(drawn.noise(2, drawn.tiny.text_encoder_2["projection_dim"]))
        inputs.append(drawn.rng.integers(0, 2048, (2, 6)).astype(np.float32))
    else:
        inputs += [None, None]
    if drawn.ours.config.architecture.embeds_guidance:
        inputs.append(drawn.rng.uniform(0, 15, 2).astype(np.float32))
    ours = agreement.unet_prediction(drawn.ours.unet, *inputs)
    latents, *others = inputs
    check_component(
        ours, lambda x: torch_reference.unet_forward(drawn.theirs.unet, x, *others), latents
    )


def test_vae(drawn: Drawn) -> None:
    z = drawn.latents(1)
    ours = agreement.vae_decoded(drawn.ours.vae, z)
    check_component(ours, partial(torch_reference.vae_decode, drawn.theirs.vae), z)
    images = drawn.rng.uniform(-1, 1, ours.shape).astype(np.float32)
    for i, mine in enumerate(agreement.vae_moments(drawn.ours.vae, images)):
        check_component(
            mine, lambda x, i=i: torch_reference.vae_encode(drawn.theirs.vae, x)[i], images
        )


def test_schedule(drawn: Drawn) -> None:
    config = drawn.ours.config.scheduler
    sigmas_of = solver_sigmas if SCHEDULERS[config.name].one_more else euler_sigmas
    for steps in {1, 25, 50, *drawn.rng.integers(2, 50, 5).tolist()}:
        schedule = make_schedule(config, steps)
        ours = {
            "timesteps": schedule.timesteps,
            "init_noise_sigma": schedule.init_noise_sigma,
            "sigmas": sigmas_of(config, steps)[1],
        }
        for key, theirs in torch_reference.schedule(drawn.theirs, steps).items():
            if key == "sigmas" and len(theirs) > steps + 1:
                theirs = np.append(theirs[:1], theirs[1::2])  # diffusers repeats them
            np.testing.assert_allclose(
                ours[key], theirs, rtol=COMPONENT_BOUND, atol=1e-4, err_msg=f"{steps} {key}"
            )


def test_samples_of_drawn_prompts(drawn: Drawn, pipe: SDXLPipeline) -> None:
    prompts = [f"a {draw_text(drawn.rng)}" for _ in range(IMAGES)]
    scale = float(drawn.rng.uniform(1.5, 9))
    for guidance_scale, second, rescale in ((scale, "", 0), (scale, "", 0.7), (1.0, " \n", 0)):
        negative, noise = [draw_text(drawn.rng), second], drawn.latents(IMAGES)
        check_sample(drawn.theirs, pipe, noise, prompts, negative, guidance_scale, rescale)


def test_samples_of_nasty_prompts(
    drawn: Drawn, pipe: SDXLPipeline, request: pytest.FixtureRequest
) -> None:
    """Each nasty text, blank ones included, agrees as a prompt and as a negative prompt."""
    number = request.node.callspec.params["drawn"]
    for turn in (2 * number, 2 * number + 1):
        prompts = [NASTY_PROMPTS[(2 * turn + i) % len(NASTY_PROMPTS)] for i in range(IMAGES)]
        # The negative prompt differs from the prompt; otherwise guidance would change nothing.
        negative = [NASTY_PROMPTS[(2 * turn + i + 1) % len(NASTY_PROMPTS)] for i in range(IMAGES)]
        check_sample(drawn.theirs, pipe, drawn.latents(IMAGES), prompts, negative, 5.0)


@pytest.mark.parametrize("name", ["plain", "sd_1"])
def test_guidance_inside_the_unet(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Latent consistency models of both families take the guidance scale as an input."""
    tiny = dataclasses.replace(
        TINY[name],
        unet={**TINY[name].unet, "time_cond_proj_dim": 16},
        scheduler=SDXL_SCHEDULE,
        scheduler_class=LCMScheduler,
        files=Files(),
    )
    write(tiny, tmp_path)
    theirs = load(tmp_path)
    pipe = SDXLPipeline.from_pretrained(
        tmp_path, images_per_request=IMAGES, devices=jax.devices()[:1]
    )
    rng = np.random.default_rng(request.config.getoption("--seed"))
    noise = rng.standard_normal((IMAGES, *pipe._compiled.latents_shape), dtype=np.float32)
    prompts, negative = ["a red star", "blue"], ["a", ""]
    for scale in (8.5, 1.0):
        check_sample(theirs, pipe, noise, prompts, negative, scale)


def test_samples_by_schedulers_of_requests(drawn: Drawn, pipe: SDXLPipeline) -> None:
    own = drawn.theirs.scheduler
    for name in drawn.rng.choice(pipe.facts.schedulers, 2, replace=False).tolist():
        kind = SCHEDULERS[name]
        supported = {key: kind.supported[key][0] for key in kind.own_defaults}
        other = getattr(diffusers, kind.name).from_config(own.config, **kind.implied, **supported)
        drawn.theirs.scheduler = other
        prompts, negative = ([draw_text(drawn.rng) for _ in range(IMAGES)] for _ in "ab")
        noise = drawn.latents(IMAGES)
        check_sample(drawn.theirs, pipe, noise, prompts, negative, 5.0, scheduler=name)
    drawn.theirs.scheduler = own


@pytest.mark.parametrize("number", range(3))
def test_safety_checker(number: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Embeddings agree for pictures of any size, and verdicts agree at close thresholds."""
    rng = np.random.default_rng([request.config.getoption("--seed"), 17, number])
    arguments = draw_safety_checker(rng)
    print(arguments)
    theirs, processor = build_safety_checker(arguments)
    randomise(theirs, rng)
    theirs.save_pretrained(tmp_path / "safety_checker")
    processor.save_pretrained(tmp_path / "feature_extractor")
    config = read_safety_checker(tmp_path / "safety_checker/config.json")
    ours = agreement.load_module(SafetyChecker, config, tmp_path / "safety_checker")
    images = draw_pictures(rng, 6, *rng.integers(8, 100, 2).tolist())
    embeds = torch_reference.safety_embeds(theirs, processor, images)
    pixels = jnp.asarray(prepare(images, config))
    assert relative_error(np.asarray(nnx.jit(SafetyChecker.embed)(ours, pixels)), embeds) <= (
        COMPONENT_BOUND
    )
    check = nnx.jit(SafetyChecker.__call__)
    for _ in range(20):
        thresholds = draw_thresholds(theirs, embeds, rng)
        torch_reference.set_thresholds(theirs, *thresholds)
        ours.concept_embeds_weights.set_value(jnp.asarray(thresholds[0]))
        ours.special_care_embeds_weights.set_value(jnp.asarray(thresholds[1]))
        verdicts = torch_reference.safety_verdicts(theirs, processor, images)
        np.testing.assert_array_equal(check(ours, pixels), verdicts)


def test_the_miniature_is_the_same_in_diffusers(request: pytest.FixtureRequest) -> None:
    with compiling.optimised():
        pipe = SDXLPipeline.from_pretrained(
            BUNDLED, images_per_request=4, devices=jax.devices()[:1]
        )
    theirs = StableDiffusionXLPipeline.from_pretrained(BUNDLED, local_files_only=True)
    theirs.set_progress_bar_config(disable=True)
    rng = np.random.default_rng(request.config.getoption("--seed"))
    side, channels = theirs.unet.config.sample_size, theirs.unet.config.in_channels
    noise = rng.standard_normal((4, side, side, channels), dtype=np.float32)
    prompts = [
        "a large red star on a blue background",
        "a small green circle above a yellow square",
        "a soft purple triangle on a white background",
        draw_text(rng) + " star",
    ]
    for negative in (None, ["red", "outlined", "a blue background", "star"]):
        expected = torch_reference.sample(theirs, prompts, negative, noise, 5.0)
        images = pipe.generate(prompts, negative, 5.0, latents=noise, output_type="np").images
        assert min(map(psnr, images, expected.images)) >= 50
