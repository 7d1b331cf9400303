"""Agreement with torch's diffusers, through the files that `tools/make_goldens.py` wrote.

The bounds are the project's promise in float32; a figure above one is a defect to be found.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.config import read_config
from pipeline.scheduler import dpm_solver_levels, euler_levels, make_schedule
from pipeline.scheduler_config import SCHEDULERS
from tests.checkpoints import CompilationCount
from tools import agreement
from tools.agreement import Networks, relative_error

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.npz"))
DRAWN_BY_EVERY_SCHEDULER = ("plain", "sd_1", "sd_2")
COMPONENT_BOUND = 2e-5
LATENTS_BOUND = 1e-4
PICTURE_BOUND = 1 / 255
LEVELS = {
    "euler": euler_levels,
    "euler-ancestral": euler_levels,
    "dpmsolver++": dpm_solver_levels,
}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def golden(name: str) -> Iterator[dict[str, np.ndarray]]:
    with np.load(GOLDEN / name / "golden.npz", allow_pickle=False) as arrays:
        yield dict(arrays)


@pytest.fixture(scope="module")
def networks(name: str) -> Networks:
    return agreement.load_networks(GOLDEN / name / "checkpoint")


@pytest.fixture(scope="module")
def start(name: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SDXLPipeline]:
    """Makes the whole pipeline on one device, for two pictures of the checkpoint's own size."""
    return partial(
        SDXLPipeline.from_pretrained,
        GOLDEN / name / "checkpoint",
        images_per_request=2,
        devices=jax.devices()[:1],
        cache_dir=tmp_path_factory.mktemp("private") / "cache",
    )


@pytest.fixture(scope="module")
def pipe(start: Callable[..., SDXLPipeline]) -> SDXLPipeline:
    return start()


def test_the_shapes_promised_are_covered() -> None:
    configs = [read_config(GOLDEN / name / "checkpoint") for name in NAMES]
    assert len(configs) >= 5
    assert any(
        len(config.unet.block_out_channels) == 3 and len(set(config.unet.num_attention_heads)) > 1
        for config in configs
    )
    assert any(config.scheduler.prediction_type == "v_prediction" for config in configs)
    assert any(config.scheduler.use_karras_sigmas for config in configs)
    assert {config.scheduler.name for config in configs} >= {"euler", "pndm", "ddim"}
    assert {
        config.unet.use_linear_projection for config in configs if config.text_encoder_2 is None
    } == {True, False}
    assert any(
        len(config.vae.block_out_channels) == 5 and config.vae.latent_channels == 8
        for config in configs
    )


def test_tokenizers(networks: Networks, golden: dict[str, np.ndarray]) -> None:
    prompts = json.loads(str(golden["prompts"]))
    ours, _ = networks.tokenizers.tokenize(prompts)
    for i in range(ours.shape[1]):
        np.testing.assert_array_equal(ours[:, i], golden[f"input_ids_{i + 1}"])


def test_text_encoders(networks: Networks, golden: dict[str, np.ndarray]) -> None:
    for i, encoder in enumerate(networks.text_encoders, 1):
        states, pooled = agreement.text_states(encoder, golden[f"input_ids_{i}"])
        assert relative_error(np.asarray(states), golden[f"hidden_{i}"]) <= COMPONENT_BOUND
        if i == 2:
            assert relative_error(np.asarray(pooled), golden["pooled"]) <= COMPONENT_BOUND
        else:
            assert pooled is None


def test_prompt_embeds_are_all_encoders_states(
    networks: Networks, golden: dict[str, np.ndarray]
) -> None:
    hidden = [golden[f"hidden_{i + 1}"] for i in range(len(networks.text_encoders))]
    np.testing.assert_array_equal(np.concatenate(hidden, axis=-1), golden["prompt_embeds"])


def test_unet(networks: Networks, golden: dict[str, np.ndarray]) -> None:
    xl = networks.config.unet.addition is not None
    ours = agreement.unet_prediction(
        networks.unet,
        golden["unet_latents"],
        golden["unet_timesteps"],
        golden["prompt_embeds"][2:4],
        *((golden["pooled"][2:4], golden["unet_add_time_ids"]) if xl else ()),
    )
    assert relative_error(np.asarray(ours), golden["unet_output"]) <= COMPONENT_BOUND


def test_vae_encode(networks: Networks, golden: dict[str, np.ndarray]) -> None:
    mean, logvar = agreement.vae_moments(networks.vae, golden["vae_images"])
    assert relative_error(np.asarray(mean), golden["vae_mean"]) <= COMPONENT_BOUND
    assert relative_error(np.asarray(logvar), golden["vae_logvar"]) <= COMPONENT_BOUND


def test_vae_decode(networks: Networks, golden: dict[str, np.ndarray]) -> None:
    ours = agreement.vae_decoded(networks.vae, golden["vae_z"])
    assert relative_error(np.asarray(ours), golden["vae_decoded"]) <= COMPONENT_BOUND


@pytest.mark.parametrize("steps", [1, 2, 3, 25, 50])
def test_schedule(name: str, golden: dict[str, np.ndarray], steps: int) -> None:
    ours = make_schedule(read_config(GOLDEN / name / "checkpoint").scheduler, steps)
    theirs = golden[f"schedule_{steps}_timesteps"]
    assert ours.timesteps.dtype == np.float32
    assert list(ours.stops)[-1] == len(ours.timesteps)
    # Karras timesteps are interpolated, the others are whole numbers or nearly so.
    np.testing.assert_allclose(ours.timesteps, theirs, rtol=1e-6, atol=1e-4)
    assert ours.init_noise_sigma == pytest.approx(
        golden[f"schedule_{steps}_init_noise_sigma"], rel=COMPONENT_BOUND
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 25, 50])
def test_noise_levels(name: str, golden: dict[str, np.ndarray], steps: int) -> None:
    config = read_config(GOLDEN / name / "checkpoint").scheduler
    if config.name not in LEVELS:
        pytest.skip("follows timesteps alone")
    _, ours = LEVELS[config.name](config, steps)
    np.testing.assert_allclose(ours, golden[f"schedule_{steps}_sigmas"], rtol=COMPONENT_BOUND)


def check_sample(
    pipe: SDXLPipeline, golden: dict[str, np.ndarray], case: str, **request: Any
) -> None:
    """25 steps from the golden file's noise: latents and pictures."""
    draw = partial(
        pipe.generate,
        json.loads(str(golden["sample_prompts"])),
        latents=golden["sample_latents"],
        **request,
    )
    latents = draw(output_type="latent").images
    assert relative_error(latents, golden[f"sample_{case}_latents"]) <= LATENTS_BOUND
    images = golden[f"sample_{case}_images"]
    assert np.abs(draw(output_type="np").images - images).max() <= PICTURE_BOUND
    levels = np.stack([np.asarray(image, np.float32) for image in draw().images])
    assert np.abs(levels - np.round(255 * images)).max() <= 1


@pytest.mark.parametrize("negative_prompt", [None, "", " \n\t "])
def test_sample_without_negative_prompt(
    pipe: SDXLPipeline, golden: dict[str, np.ndarray], negative_prompt: str | None
) -> None:
    check_sample(pipe, golden, "none", negative_prompt=negative_prompt, guidance_scale=5.0)


def test_sample_with_negative_prompts(pipe: SDXLPipeline, golden: dict[str, np.ndarray]) -> None:
    negative = json.loads(str(golden["sample_negative_prompts"]))
    check_sample(pipe, golden, "negative", negative_prompt=negative, guidance_scale=5.0)


@pytest.mark.parametrize("guidance_scale", [1.0, 0.0])
def test_sample_without_guidance(
    pipe: SDXLPipeline, golden: dict[str, np.ndarray], guidance_scale: float
) -> None:
    check_sample(pipe, golden, "unguided", negative_prompt="a star", guidance_scale=guidance_scale)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_sample_by_every_scheduler(
    name: str,
    pipe: SDXLPipeline,
    start: Callable[..., SDXLPipeline],
    golden: dict[str, np.ndarray],
    scheduler: str,
) -> None:
    """In place of the checkpoint's own; nothing compiles for that."""
    if name not in DRAWN_BY_EVERY_SCHEDULER:
        pytest.skip("drawn by its own alone")
    with CompilationCount() as count:
        other = start(scheduler=scheduler)
    assert count.value == 0
    negative = json.loads(str(golden["sample_negative_prompts"]))
    check_sample(other, golden, scheduler, negative_prompt=negative, guidance_scale=5.0)
