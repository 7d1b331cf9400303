"""Agreement with torch's diffusers, through the files that `tests/reference/make_goldens.py` wrote.

The bounds are the project's promise in float32; a larger difference is a defect.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.families import read_config
from pipeline.images.canvas import soft_edge
from pipeline.schedulers.dpm_solver import solver_sigmas
from pipeline.schedulers.euler import euler_sigmas
from pipeline.schedulers.methods import make_schedule
from tests.checkpoints import EXECUTABLES, nothing_compiles
from tools import agreement
from tools.agreement import Networks, relative_error

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.npz"))
DRAWN_IN_EVERY_WAY = ("plain", "sd_1", "sd_2")
GOLDEN_SCHEDULERS = ("euler", "euler-ancestral", "ddim", "pndm", "dpmsolver++")
COMPONENT_BOUND = 2e-5
LATENTS_BOUND = 1e-4
PICTURE_BOUND = 1 / 255
STEPS = 25
SIGMAS_OF = {
    "euler": euler_sigmas,
    "euler-ancestral": euler_sigmas,
    "dpmsolver++": solver_sigmas,
}


BY_SIGMAS = [
    name
    for name in NAMES
    if read_config(GOLDEN / name / "checkpoint").scheduler.name in SIGMAS_OF  # others: timesteps
]

# Drawing from these checkpoints is compiled in `make test`, from the next in `make test-slow`, and
# from the others in `make test-rare`, because tests/reference draws such checkpoints with torch.
# Their schedules and tokenizers are always compared; the networks of some, too.
DRAWN_ALWAYS = ("plain",)
DRAWN_OFTEN = ("sd_1", "consistency")
COMPARED_ALWAYS = ("plain", "three_levels", "sd_1", "consistency")
CONSISTENCY = "consistency"


def drawn(name: str, always: Sequence[str], often: Sequence[str] = DRAWN_OFTEN) -> Any:
    """Return the parameter of a test that compares or draws."""
    otherwise = pytest.mark.slow if name in often else pytest.mark.rare
    return pytest.param(name, marks=() if name in always else otherwise)


for_every_checkpoint = pytest.mark.parametrize("name", NAMES)
with_networks_of_every_checkpoint = pytest.mark.parametrize(
    "name", [drawn(name, COMPARED_ALWAYS, ["distilled"]) for name in NAMES]
)
drawn_from_every_checkpoint = pytest.mark.parametrize(
    "name", [drawn(name, DRAWN_ALWAYS) for name in NAMES]
)


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / name / "golden.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@cache
def networks(name: str) -> Networks:
    return agreement.load_networks(GOLDEN / name / "checkpoint")


@pytest.fixture(scope="module")
def start() -> Callable[..., SDXLPipeline]:
    """Return a function that makes a pipeline on one device, for two pictures of default size."""

    @cache
    def make(name: str) -> SDXLPipeline:
        return SDXLPipeline.from_pretrained(
            GOLDEN / name / "checkpoint",
            images_per_request=2,
            devices=jax.devices()[:1],
            cache_dir=EXECUTABLES,
        )

    return make


def test_the_shapes_promised_are_covered() -> None:
    configs = [read_config(GOLDEN / name / "checkpoint") for name in NAMES]
    assert len(configs) >= 5
    assert any(
        len(unet.block_out_channels) == 3 and len(set(unet.num_attention_heads)) > 1
        for unet in [config.networks["unet"] for config in configs]
    )
    assert any(config.scheduler.prediction_type == "v_prediction" for config in configs)
    assert any(config.scheduler.sigma_schedule == "karras" for config in configs)
    assert any(config.architecture.embeds_guidance for config in configs)
    assert {config.scheduler.name for config in configs} >= {"euler", "pndm", "ddim"}
    assert {
        config.networks["unet"].use_linear_projection
        for config in configs
        if len(config.text_encoders) == 1
    } == {True, False}
    assert any(
        len(vae.block_out_channels) == 5 and vae.latent_channels == 8
        for vae in (config.networks["vae"] for config in configs)
    )


@for_every_checkpoint
def test_tokenizers(name: str) -> None:
    prompts = json.loads(str(golden(name)["prompts"]))
    ours, _ = networks(name).tokenizers.tokenize(prompts)
    for i in range(ours.shape[1]):
        np.testing.assert_array_equal(ours[:, i], golden(name)[f"input_ids_{i + 1}"])


@with_networks_of_every_checkpoint
def test_text_encoders(name: str) -> None:
    theirs = golden(name)
    for i, encoder in enumerate(networks(name).text_encoders, 1):
        states, pooled = agreement.text_states(encoder, theirs[f"input_ids_{i}"])
        assert relative_error(np.asarray(states), theirs[f"hidden_{i}"]) <= COMPONENT_BOUND
        if i == 2:
            assert relative_error(np.asarray(pooled), theirs["pooled"]) <= COMPONENT_BOUND
        else:
            assert pooled is None


@for_every_checkpoint
def test_prompt_embeds_are_all_encoders_states(name: str) -> None:
    theirs = golden(name)
    hidden = [theirs[f"hidden_{i + 1}"] for i in range(len(networks(name).text_encoders))]
    np.testing.assert_array_equal(np.concatenate(hidden, axis=-1), theirs["prompt_embeds"])


@with_networks_of_every_checkpoint
def test_unet(name: str) -> None:
    ours, theirs = networks(name), golden(name)
    config = ours.config.networks["unet"]
    xl, guided = config.addition is not None, config.time_cond_proj_dim is not None
    predicted = agreement.unet_prediction(
        ours.unet,
        theirs["unet_latents"],
        theirs["unet_timesteps"],
        theirs["prompt_embeds"][2:4],
        *((theirs["pooled"][2:4], theirs["unet_add_time_ids"]) if xl else (None, None)),
        theirs["unet_guidance_scale"] if guided else None,
    )
    assert relative_error(np.asarray(predicted), theirs["unet_output"]) <= COMPONENT_BOUND


@with_networks_of_every_checkpoint
def test_vae_encode(name: str) -> None:
    theirs = golden(name)
    mean, logvar = agreement.vae_moments(networks(name).vae, theirs["vae_images"])
    assert relative_error(np.asarray(mean), theirs["vae_mean"]) <= COMPONENT_BOUND
    assert relative_error(np.asarray(logvar), theirs["vae_logvar"]) <= COMPONENT_BOUND


@with_networks_of_every_checkpoint
def test_vae_decode(name: str) -> None:
    ours = agreement.vae_decoded(networks(name).vae, golden(name)["vae_z"])
    assert relative_error(np.asarray(ours), golden(name)["vae_decoded"]) <= COMPONENT_BOUND


@pytest.mark.parametrize("steps", [1, 2, 3, 25, 50])
@for_every_checkpoint
def test_schedule(name: str, steps: int) -> None:
    ours = make_schedule(read_config(GOLDEN / name / "checkpoint").scheduler, steps)
    theirs = golden(name)[f"schedule_{steps}_timesteps"]
    assert ours.timesteps.dtype == np.float32
    assert list(ours.stops)[-1] == len(ours.timesteps)
    # Karras timesteps are interpolated; the others are whole numbers or nearly so.
    np.testing.assert_allclose(ours.timesteps, theirs, rtol=1e-6, atol=1e-4)
    assert ours.init_noise_sigma == pytest.approx(
        golden(name)[f"schedule_{steps}_init_noise_sigma"], rel=COMPONENT_BOUND
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 25, 50])
@pytest.mark.parametrize("name", BY_SIGMAS)
def test_sigmas_and_timesteps(name: str, steps: int) -> None:
    config = read_config(GOLDEN / name / "checkpoint").scheduler
    _, ours = SIGMAS_OF[config.name](config, steps)
    theirs = golden(name)[f"schedule_{steps}_sigmas"]
    np.testing.assert_allclose(ours, theirs, rtol=COMPONENT_BOUND)


def negative_prompts(name: str) -> list[str]:
    return json.loads(str(golden(name)["sample_negative_prompts"]))


def check_sample(pipe: SDXLPipeline, name: str, case: str, **request: Any) -> None:
    """Draw 25 steps from the golden file's noise, watched as by the page, and compare them."""
    watched: list[jax.Array] = []
    draw = partial(draw_sample, pipe, name, **request)
    images = draw(output_type="np", on_step=lambda _, __, latents: watched.append(latents))
    expected = golden(name)[f"sample_{case}_latents"], golden(name)[f"sample_{case}_images"]
    assert relative_error(np.asarray(watched[-1]), expected[0]) <= LATENTS_BOUND
    assert np.abs(images - expected[1]).max() <= PICTURE_BOUND


def draw_sample(pipe: SDXLPipeline, name: str, **request: Any) -> Any:
    """Return the `images` of the golden file's prompts, drawn from its noise."""
    theirs = golden(name)
    prompts = json.loads(str(theirs["sample_prompts"]))
    request = {"num_inference_steps": STEPS, "latents": theirs["sample_latents"], **request}
    return pipe.generate(prompts, **request).images


@drawn_from_every_checkpoint
def test_sample_without_negative_prompt(start: Callable[..., SDXLPipeline], name: str) -> None:
    check_sample(start(name), name, "none", guidance_scale=5.0)


@drawn_from_every_checkpoint
def test_sample_with_negative_prompts(start: Callable[..., SDXLPipeline], name: str) -> None:
    negative = negative_prompts(name)
    check_sample(start(name), name, "negative", negative_prompt=negative, guidance_scale=5.0)


@pytest.mark.parametrize("name", [drawn(name, ["plain"]) for name in DRAWN_IN_EVERY_WAY])
def test_sample_of_every_type(start: Callable[..., SDXLPipeline], name: str) -> None:
    """Latents and pictures agree when all steps run at once, without a callback."""
    request = {"negative_prompt": negative_prompts(name), "guidance_scale": 5.0}
    latents = draw_sample(start(name), name, output_type="latent", **request)
    assert relative_error(latents, golden(name)["sample_negative_latents"]) <= LATENTS_BOUND
    pictures = draw_sample(start(name), name, output_type="pil", **request)
    levels = np.stack([np.asarray(picture, np.float32) for picture in pictures])
    images = golden(name)["sample_negative_images"]
    assert np.abs(levels - np.round(255 * images)).max() <= 1


@drawn_from_every_checkpoint
def test_sample_without_guidance(start: Callable[..., SDXLPipeline], name: str) -> None:
    check_sample(start(name), name, "unguided", negative_prompt="a star", guidance_scale=1.0)


@pytest.mark.slow
def test_an_embedded_guidance_scale_is_data(start: Callable[..., SDXLPipeline]) -> None:
    """It takes no second prediction, and the negative prompt has no effect."""
    pipe = start(CONSISTENCY)
    assert (pipe.facts.num_inference_steps, pipe.facts.guidance_scale) == (4, 8.0)  # of its recipe
    with nothing_compiles():
        check_sample(pipe, CONSISTENCY, "negative", negative_prompt="a", guidance_scale=5.0)
        check_sample(pipe, CONSISTENCY, "unguided", guidance_scale=1.0)
        one, other = (
            draw_sample(pipe, CONSISTENCY, guidance_scale=scale, output_type="np")
            for scale in (5.0, 8.5)
        )
    assert np.abs(one - other).max() > 1 / 255


@pytest.mark.parametrize("scheduler", GOLDEN_SCHEDULERS)
@pytest.mark.parametrize("name", [drawn(name, ["plain"]) for name in DRAWN_IN_EVERY_WAY])
def test_sample_by_every_scheduler(
    start: Callable[..., SDXLPipeline], name: str, scheduler: str
) -> None:
    """Samples agree with every scheduler that a request names, and none needs a compilation."""
    pipe, negative = start(name), negative_prompts(name)
    with nothing_compiles():
        check_sample(
            pipe,
            name,
            scheduler,
            negative_prompt=negative,
            guidance_scale=5.0,
            scheduler=scheduler,
        )


@pytest.mark.parametrize(("case", "strength"), [("image", 0.5), ("mask", 0.7)])
def test_from_pictures(start: Callable[..., SDXLPipeline], case: str, strength: float) -> None:
    with np.load(GOLDEN / "plain/from_pictures.npz", allow_pickle=False) as arrays:
        theirs = dict(arrays)
    prompts, images, masks = golden("plain"), [*theirs["image"]], [*theirs["mask"]]
    watched: list[Any] = []
    found = (
        start("plain")
        .generate(
            json.loads(str(prompts["sample_prompts"])),
            negative_prompts("plain"),
            5.0,
            num_inference_steps=6,
            latents=theirs["noise"],
            image=images,
            mask=masks if case == "mask" else None,
            strength=strength,
            output_type="np",
            on_step=lambda _, __, latents: watched.append(latents),
        )
        .images
    )
    error = relative_error(np.asarray(watched[-1]), theirs[f"{case}_latents"])
    assert error <= LATENTS_BOUND
    differences = np.abs(found - theirs[f"{case}_images"])
    # The kept part of a picture is not that of the VAE, but the picture itself.
    redrawn = theirs["mask"] == 1 if case == "mask" else np.ones(theirs["mask"].shape, bool)
    inner = redrawn & ~near_the_edge(redrawn)
    assert differences[inner].max() <= PICTURE_BOUND


def near_the_edge(redrawn: np.ndarray) -> np.ndarray:
    """Return where the redrawn parts `[B, H, W]` bool fade into the pictures."""
    return np.stack([soft_edge(each.astype(np.float32)) < 1 for each in redrawn])
