"""A base model and its refiner: agreement with torch's diffusers, and drawings in both."""

from functools import cache
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from pipeline import Cancelled, CheckpointError, InputError, SDXLPipeline, metadata
from pipeline.checkpoints.source import fetch_component
from pipeline.drawing.drawing import Drawing
from pipeline.families import read_config
from pipeline.families.reader import read_refiner
from pipeline.families.single_files import UNET_FILE
from pipeline.request import GenerateRequest
from tests.checkpoints import EXECUTABLES, GOLDEN, PLAIN, CompilationCount, nothing_compiles
from tools.adapter_files import draw_adapter, write_adapter
from tools.agreement import relative_error

REFINER = GOLDEN / "refiner/checkpoint"
# As in `tests.reference.make_goldens`.
PROMPTS = ["a red star on a blue background", "night, light and a soft outline!"]
NEGATIVE = ["circle, green", "square above a star"]
STEPS, SHARE = 6, 0.6
RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(size=(16, 16, 3)).astype(np.float32)
MASK = np.zeros((16, 16), np.float32)
MASK[:, 8:] = 1


@cache
def made(**options: Any) -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        options.pop("model", PLAIN),
        images_per_request=2,
        devices=jax.devices()[:1],
        cache_dir=EXECUTABLES,
        **options,
    )


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    return made(refiner=REFINER)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "refiner/refiner.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def drawn(pipe: SDXLPipeline, prompt: Any = "a star", **options: Any) -> Any:
    given = {"num_inference_steps": STEPS, "output_type": "latent", **options}
    return pipe.generate(prompt, **given).images


@pytest.mark.slow
def test_both_models_agree_with_torch(pipe: SDXLPipeline, golden: dict[str, np.ndarray]) -> None:
    given = {"negative_prompt": NEGATIVE, "guidance_scale": 5.0, "latents": golden["noise"]}
    steps: list[tuple[int, int]] = []
    looks: list[tuple[int, ...]] = []
    with nothing_compiles():
        images = drawn(
            pipe,
            PROMPTS,
            output_type="np",
            denoising_end=SHARE,
            on_step=lambda step, total, _: steps.append((step, total)),
            on_preview=lambda look: looks.append(look().shape),
            **given,
        )
    assert np.abs(images - golden["refined_images"]).max() <= 1 / 255
    assert steps == [(step, STEPS) for step in range(1, STEPS + 1)]
    assert looks == [(2, 8, 8, 3)] * (STEPS - 1)
    latents = drawn(pipe, PROMPTS, denoising_end=SHARE, **given)
    assert relative_error(latents, golden["refined_latents"]) <= 1e-4
    base = drawn(made(), PROMPTS, denoising_end=SHARE, **given)
    assert relative_error(base, golden["base_latents"]) <= 1e-4


@pytest.mark.slow
def test_the_refiner_alone_agrees_with_torch(golden: dict[str, np.ndarray]) -> None:
    alone = made(model=REFINER)
    assert alone.facts.needs_image
    given = {"negative_prompt": NEGATIVE, "guidance_scale": 5.0, "latents": golden["noise"]}
    latents = drawn(alone, PROMPTS, image=[*golden["image"]], strength=0.5, **given)
    assert relative_error(latents, golden["alone_latents"]) <= 1e-4
    with pytest.raises(InputError, match="is a refiner and draws nothing without image"):
        drawn(alone)


def test_the_base_model_can_draw_alone(pipe: SDXLPipeline) -> None:
    alone = drawn(pipe, denoising_end=1)
    np.testing.assert_array_equal(alone, drawn(made()))
    assert not np.array_equal(alone, drawn(pipe, denoising_end=0.8))


def test_the_refiner_draws_by_default_where_it_has_a_step(pipe: SDXLPipeline) -> None:
    np.testing.assert_array_equal(drawn(pipe), drawn(pipe, denoising_end=0.8))
    [picture, _] = drawn(pipe, output_type="pil")
    settings = metadata.from_text(picture.info[metadata.KEY])
    assert (settings.denoising_end, settings.refiner) == (0.8, "checkpoint")
    [picture, _] = drawn(pipe, output_type="pil", num_inference_steps=1)
    settings = metadata.from_text(picture.info[metadata.KEY])
    assert (settings.denoising_end, settings.refiner) == (1, None)


@pytest.mark.parametrize(
    "settings", [{"denoising_end": 0.999}, {"denoising_end": 0.3, "image": IMAGE, "strength": 0.2}]
)
def test_the_base_model_draws_alone_where_a_model_has_no_step(
    pipe: SDXLPipeline, settings: dict[str, Any]
) -> None:
    alone = drawn(pipe, **{**settings, "denoising_end": 1})
    np.testing.assert_array_equal(drawn(pipe, **settings), alone)


@pytest.mark.parametrize("scheduler", ["euler-ancestral", "heun"])
def test_a_second_model_goes_on_from_latents(scheduler: str) -> None:
    """A run in two parts is the whole run, with the noise that the scheduler adds."""
    base, given = made(), {"scheduler": scheduler, "guidance_until": 0.6, "seed": 3}
    latents = drawn(base, denoising_end=0.5, **given)
    rest = drawn(base, latents=latents, denoising_start=0.5, **given)
    assert not np.array_equal(latents, rest)
    if scheduler != "heun":  # whose step is taken again
        np.testing.assert_array_equal(rest, drawn(base, **given))


def test_pictures_do_not_depend_on_their_neighbours(pipe: SDXLPipeline) -> None:
    asked = [
        GenerateRequest("a star", num_inference_steps=steps, seed=seed, denoising_end=end)
        for steps, seed, end in ((6, 1, 0.5), (4, 2, 0.3), (5, 3, 1.0), (7, 4, 0.2))
    ]
    drawings = [pipe.prepare(each, images=1, output_type="latent") for each in asked]
    for drawing in drawings:
        pipe.begin(drawing)
    while pipe.is_busy:
        moved = [progress.drawing for progress in pipe.advance()]
        assert len(moved) == len(set(moved))
        assert all(drawing in drawings for drawing in moved)
    for request, drawing in zip(asked, drawings, strict=True):
        [alone] = pipe.generate(**request.settings, images=1, output_type="latent").images
        np.testing.assert_array_equal(drawing.result().images[0], alone)
        assert drawing.steps == [drawing.total] == [request.num_inference_steps]


def test_a_drawing_is_cancelled_in_the_refiner(pipe: SDXLPipeline) -> None:
    stop = Event()
    asked = GenerateRequest("a star", num_inference_steps=STEPS, denoising_end=SHARE)
    drawing = pipe.prepare(asked, cancelled=stop)
    pipe.begin(drawing)
    while drawing.done <= SHARE * STEPS:
        pipe.advance()
    looks = pipe.look(drawing)
    assert sorted(looks) == [0, 1]
    stop.set()
    ended: list[Drawing] = []
    while pipe.is_busy:
        ended += [each.drawing for each in pipe.advance() if each.drawing.error is not None]
    assert ended == [drawing]
    assert isinstance(drawing.error, Cancelled)
    assert str(drawing.error) == f"stopped after {drawing.done} of {STEPS} steps"


def test_a_failure_forgets_the_drawings_of_both(
    pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = GenerateRequest("a star", num_inference_steps=STEPS, denoising_end=SHARE)
    drawing = pipe.prepare(asked)
    assert pipe._refiner is not None

    with monkeypatch.context() as patched:
        patched.setattr(
            pipe._refiner.run, "step", Mock(side_effect=RuntimeError("the device failed"))
        )
        pipe.begin(drawing)
        with pytest.raises(RuntimeError, match="the device failed"):
            pipe._draw(drawing, None, None)
    assert not pipe.is_busy
    assert drawn(pipe).shape == (2, 8, 8, 4)


def test_the_refiner_keeps_what_the_mask_keeps(pipe: SDXLPipeline) -> None:
    given = {"image": IMAGE, "mask": MASK, "strength": 1.0, "denoising_end": SHARE}
    refined, alone = (drawn(pipe, **given | {"denoising_end": end}) for end in (SHARE, 1))
    # Both end with the latents of the picture outside the mask.
    np.testing.assert_allclose(refined[:, :, :4], alone[:, :, :4], atol=1e-5)
    assert np.abs(refined - alone)[:, :, 4:].max() > 1e-3
    [found, _] = drawn(pipe, output_type="np", **given)
    np.testing.assert_array_equal(found[MASK == 0], IMAGE[MASK == 0])


def test_loras_change_the_base_model_alone(pipe: SDXLPipeline, tmp_path: Path) -> None:
    assert pipe._refiner is not None
    its = pipe._refiner.run.parameters.leaves
    before = {name: [*map(id, leaves)] for name, leaves in its.items()}
    assert before.keys() == {"text_encoder_2", "unet", "vae"}
    plain = drawn(pipe)
    inventory = pipe._adapters.inventory
    lora = draw_adapter(inventory, "lora", 0)
    pipe.load_lora(write_adapter(tmp_path / "one.safetensors", lora, "kohya sdxl", inventory))
    try:
        [picture, _] = drawn(pipe, output_type="pil", loras={"one": 0.5})
        settings = metadata.from_text(picture.info[metadata.KEY])
        assert settings.lora_hashes == f"one: {pipe.loras['one'].short_hash}"
        merged = pipe._compiled.parameters.leaves["text_encoder_2"]
        assert [*map(id, merged)] != before["text_encoder_2"]
        assert {name: [*map(id, leaves)] for name, leaves in its.items()} == before
    finally:
        pipe.unload_lora("one")
    np.testing.assert_array_equal(drawn(pipe), plain)


@pytest.mark.slow
def test_every_number_of_devices_and_size_has_both(golden: dict[str, np.ndarray]) -> None:
    spread = SDXLPipeline.from_pretrained(
        PLAIN,
        refiner=REFINER,
        images_per_request=2,
        devices=jax.devices()[:4],
        prompt_chunks=2,
        tiny_vae=GOLDEN / "tiny_vae",
    )
    given = {"negative_prompt": NEGATIVE, "guidance_scale": 5.0, "latents": golden["noise"]}
    latents = drawn(spread, PROMPTS, denoising_end=SHARE, **given)
    assert relative_error(latents, golden["refined_latents"]) <= 1e-4
    spread.add_size(16, 32)
    spread.warm_up(16, 32)
    with CompilationCount() as count:
        images = drawn(spread, output_type="np", height=16, width=32)
    assert images.shape == (2, 16, 32, 3)
    assert count.value == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"denoising_start": 0.5}, "denoising_start is given without latents"),
        ({"denoising_start": 1.0}, "denoising_start is 1.0; expected a number from 0 to below 1"),
        ({"denoising_end": 0.0}, "denoising_end is 0.0; expected"),
    ],
)
def test_parts_that_cannot_be_drawn(
    pipe: SDXLPipeline, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        drawn(pipe, **options)


def test_without_a_refiner_only_latents_can_be_unfinished() -> None:
    with pytest.raises(InputError, match="there is no refiner that goes on; leave it out, set"):
        drawn(made(), output_type="np", denoising_end=SHARE)


@pytest.mark.parametrize(
    ("base", "refiner", "message"),
    [
        ("sd_1", "refiner", "a Stable Diffusion has no refiner; expected a base model of Stable"),
        ("plain", "plain", "cross_attention_dim = 40 does not fit; expected 24.*made for the base"),
    ],
)
def test_refiners_that_do_not_fit(base: str, refiner: str, message: str) -> None:
    unet = fetch_component(str(GOLDEN / refiner / "checkpoint"), "unet", UNET_FILE)
    with pytest.raises(CheckpointError, match=message):
        read_refiner(read_config(GOLDEN / base / "checkpoint"), unet)


def test_sizes_that_the_refiner_cannot_draw(pipe: SDXLPipeline, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the refiner cannot draw .*: width is 20; .* of 8"):
        pipe.check_size(16, 20)
