"""Live agreement with torch's diffusers on random checkpoints and prompts.

Each checkpoint is drawn from the session's `--seed` and its own number, so that it can be drawn
again alone. The bounds are the same as for the golden files. A larger difference is allowed where
rounding explains it: where torch's own output changes as much when the input's last bits change.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusers import StableDiffusionXLPipeline
from flax import nnx

from pipeline import BUNDLED, SDXLPipeline
from pipeline.images.moderation import prepare
from pipeline.models.clip_config import read_safety_checker
from pipeline.models.safety_checker import SafetyChecker
from pipeline.schedulers.config import ONE_MORE
from pipeline.schedulers.dpm_solver import solver_sigmas
from pipeline.schedulers.euler import euler_sigmas
from pipeline.schedulers.methods import make_schedule
from tests.reference.drawing import NASTY_PROMPTS, draw_checkpoint, draw_safety_checker, draw_text
from tools import agreement, torch_reference
from tools.agreement import Networks, relative_error
from tools.make_goldens import draw_pictures, draw_thresholds
from tools.tiny_checkpoints import (
    Pipeline,
    Tiny,
    build_safety_checker,
    load,
    randomise,
    write,
)

COMPONENT_BOUND = 2e-5
LATENTS_BOUND = 1e-4
PICTURE_BOUND = 1 / 255
NUDGES_BOUND = 10  # times torch's own change when the last bits of its input change
IMAGES = 2


@dataclass(frozen=True)
class Drawn:
    """A random checkpoint, loaded by torch's diffusers and by this project."""

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


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    torch_reference.prepare_for_tiny()


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
    yield Drawn(tiny, folder, theirs, agreement.load_networks(folder), rng)
    jax.clear_caches()


@pytest.fixture(scope="module")
def pipe(drawn: Drawn) -> SDXLPipeline:
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


def nudged(x: np.ndarray) -> list[np.ndarray]:
    """Return copies of x whose last bits are rounded down, towards zero and up."""
    return [np.nextafter(x, np.float32(to)) for to in (-np.inf, 0, np.inf)]


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
    inputs = [
        drawn.latents(2),
        drawn.rng.uniform(0, 999, 2).astype(np.float32),
        drawn.noise(2, 77, config.networks["unet"].cross_attention_dim),
    ]
    if drawn.tiny.text_encoder_2 is not None:
        inputs.append(drawn.noise(2, drawn.tiny.text_encoder_2["projection_dim"]))
        inputs.append(drawn.rng.integers(0, 2048, (2, 6)).astype(np.float32))
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
    sigmas_of = solver_sigmas if config.name in ONE_MORE else euler_sigmas
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


def reference_sample(
    drawn: Drawn,
    prompts: list[str],
    negative: Sequence[str],
    latents: np.ndarray,
    scale: float,
    rescale: float,
) -> torch_reference.Sample:
    """Sample with torch, with each picture's own negative prompt or none.

    diffusers takes a negative prompt for all pictures or for none, so two runs are combined.
    """
    without, given = (
        torch_reference.sample(
            drawn.theirs, prompts, texts, latents, scale, guidance_rescale=rescale
        )
        for texts in (None, negative)
    )
    blank = np.array([not text.strip() for text in negative])[:, None, None, None]
    return torch_reference.Sample(
        np.where(blank, without.latents, given.latents),
        np.where(blank, without.images, given.images),
    )


def apart(one: torch_reference.Sample, other: torch_reference.Sample) -> np.ndarray:
    """Return each picture's relative error of latents and largest pixel difference, `[2, N]`."""
    latents = map(relative_error, one.latents, other.latents)
    return np.array([[*latents], [*np.abs(one.images - other.images).max(axis=(1, 2, 3))]])


def check_sample(
    drawn: Drawn,
    pipe: SDXLPipeline,
    prompts: list[str],
    negative: list[str],
    scale: float,
    rescale: float = 0.0,
) -> None:
    noise = drawn.latents(IMAGES)
    theirs = reference_sample(drawn, prompts, negative, noise, scale, rescale)
    request = {"latents": noise, "guidance_rescale": rescale}
    latents, images = (
        pipe.generate(prompts, negative, scale, output_type=kind, **request).images
        for kind in ("latent", "np")
    )
    errors = apart(torch_reference.Sample(latents, images), theirs)
    bounds = np.array([[LATENTS_BOUND], [PICTURE_BOUND]])
    if (errors > bounds).any():
        # Networks magnify rounding as in `check_component`, over 25 steps up to a millionfold.
        moved = [
            apart(reference_sample(drawn, prompts, negative, each, scale, rescale), theirs)
            for each in nudged(noise)
        ]
        bounds = np.maximum(bounds, NUDGES_BOUND * np.max(moved, axis=0))
    assert (errors <= bounds).all(), (errors, bounds, prompts, negative, scale)


def test_samples_of_drawn_prompts(drawn: Drawn, pipe: SDXLPipeline) -> None:
    prompts = [f"a {draw_text(drawn.rng)}" for _ in range(IMAGES)]
    scale = float(drawn.rng.uniform(1.5, 9))
    check_sample(drawn, pipe, prompts, [draw_text(drawn.rng), ""], scale)
    check_sample(drawn, pipe, prompts, [draw_text(drawn.rng), ""], scale, rescale=0.7)
    check_sample(drawn, pipe, prompts, [draw_text(drawn.rng), " \n"], 1.0)


def test_samples_of_nasty_prompts(
    drawn: Drawn, pipe: SDXLPipeline, request: pytest.FixtureRequest
) -> None:
    """Each nasty text, blank ones included, agrees as a prompt and as a negative prompt."""
    number = request.node.callspec.params["drawn"]
    for turn in (2 * number, 2 * number + 1):
        prompts = [NASTY_PROMPTS[(2 * turn + i) % len(NASTY_PROMPTS)] for i in range(IMAGES)]
        # The negative prompt differs from the prompt; otherwise guidance would change nothing.
        negative = [NASTY_PROMPTS[(2 * turn + i + 1) % len(NASTY_PROMPTS)] for i in range(IMAGES)]
        check_sample(drawn, pipe, prompts, negative, 5.0)


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


def psnr(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB of pictures in 0..1."""
    return float(-10 * np.log10(np.mean((ours - theirs) ** 2)))


def test_the_miniature_is_the_same_in_diffusers(request: pytest.FixtureRequest) -> None:
    pipe = SDXLPipeline.from_pretrained(BUNDLED, images_per_request=4, devices=jax.devices()[:1])
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
