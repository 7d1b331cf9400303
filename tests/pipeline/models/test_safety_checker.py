"""The safety checker: agreement with torch's verdicts, and how the pipeline handles them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.jax_utils import replicate
from safetensors.numpy import load_file, save_file

from pipeline import CheckpointError, SDXLPipeline, metadata
from pipeline.compat import FlaxStableDiffusionPipeline
from pipeline.families import read_config
from pipeline.images.moderation import blur, prepare
from pipeline.models.safety_checker import SafetyChecker
from tests.checkpoints import EXECUTABLES, GOLDEN, SMALLEST, change_json, nothing_compiles
from tools import agreement
from tools.agreement import relative_error

FOLDER = GOLDEN / "safety/checkpoint"
COMPONENT_BOUND = 2e-5
CHECKER = "safety_checker/config.json"
PICTURES = "feature_extractor/preprocessor_config.json"
THRESHOLDS = ("concept_embeds_weights", "special_care_embeds_weights")


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "safety/safety.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def checker() -> SafetyChecker:
    config = read_config(FOLDER).safety_checker
    return agreement.load_module(SafetyChecker, config, FOLDER / "safety_checker")


def test_embeddings_are_torchs(checker: SafetyChecker, golden: dict[str, np.ndarray]) -> None:
    """Embeddings agree for pictures of the checker's own size, smaller, larger and not square."""
    embed = nnx.jit(SafetyChecker.embed)
    for i in range(3):
        ours = embed(checker, jnp.asarray(prepare(golden[f"images_{i}"], checker.config)))
        assert relative_error(np.asarray(ours), golden[f"embeds_{i}"]) <= COMPONENT_BOUND


def test_verdicts_are_torchs(checker: SafetyChecker, golden: dict[str, np.ndarray]) -> None:
    """Verdicts agree at close thresholds; special care's extra 0.01 decides some of them."""
    prepared = [prepare(golden[f"images_{i}"], checker.config) for i in range(3)]
    pixels = jnp.asarray(np.concatenate(prepared))
    check = nnx.jit(SafetyChecker.__call__)  # compiled once for all thresholds
    careless = 0
    for concepts, special, verdicts in zip(
        *(golden[name] for name in (*THRESHOLDS, "verdicts")), strict=True
    ):
        checker.concept_embeds_weights.set_value(jnp.asarray(concepts))
        checker.special_care_embeds_weights.set_value(jnp.asarray(special))
        np.testing.assert_array_equal(check(checker, pixels), verdicts)
        checker.special_care_embeds_weights.set_value(jnp.ones(3))
        careless += int((np.asarray(check(checker, pixels)) != verdicts).sum())
    assert 0.2 < golden["verdicts"].mean() < 0.8
    assert careless > 0


def test_pictures_of_any_size_and_shape_are_prepared(checker: SafetyChecker) -> None:
    for height, width in ((8, 8), (8, 300), (300, 8)):
        image = np.zeros((1, height, width, 3), np.uint8)
        assert prepare(image, checker.config).shape == (1, 28, 28, 3)


def test_the_center_crop_may_be_smaller_than_the_scaled_picture(checker: SafetyChecker) -> None:
    image = np.zeros((1, 64, 64, 3), np.uint8)
    image[:, 16:48, 16:48] = 255
    cut = prepare(image, replace(checker.config, shortest_edge=56))
    assert cut.shape == (1, 28, 28, 3)
    assert cut.mean() > 250


# --- blurring


def test_a_blurred_picture_keeps_only_mean_colours() -> None:
    rng = np.random.default_rng(0)
    squares = rng.integers(0, 200, (6, 6, 3)).astype(np.uint8)
    plain = squares.repeat(16, axis=0).repeat(16, axis=1)
    figure = np.zeros((96, 96, 1), np.uint8)
    figure[np.arange(96) % 16 < 8] = 40  # every square has the mean 20
    assert np.abs(blur(plain + figure).astype(int) - blur(plain + np.uint8(20))).max() <= 1


@pytest.mark.parametrize(("height", "width"), [(512, 512), (16, 24), (8, 300), (1024, 64)])
def test_a_blurred_picture_keeps_its_size_and_mean_colour(height: int, width: int) -> None:
    image = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    image[..., 0] //= 2
    blurred = blur(image)
    assert blurred.shape == image.shape
    assert np.abs(blurred.mean((0, 1)) - image.mean((0, 1))).max() < 4
    assert blurred.std((0, 1)).max() < image.std((0, 1)).max() / 2


# --- through the pipeline


def start(model: Path, **options: Any) -> SDXLPipeline:
    """Return a pipeline that draws one picture on each of two devices."""
    return SDXLPipeline.from_pretrained(
        model,
        images_per_request=2,
        num_inference_steps=2,
        devices=jax.devices()[:2],
        cache_dir=EXECUTABLES,
        **options,
    )


@pytest.fixture(scope="module")
def unchecked() -> SDXLPipeline:
    return start(FOLDER, safety_checker=False)


@pytest.fixture(scope="module")
def one_flagged(
    unchecked: SDXLPipeline, checker: SafetyChecker, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a checkpoint that flags only the second picture of "a star"."""
    images = np.stack([np.asarray(image) for image in unchecked.generate("a star").images])
    return flag_the_second(images, checker, tmp_path_factory.mktemp("flagged"))


def flag_the_second(images: np.ndarray, checker: SafetyChecker, scratch: Path) -> Path:
    """Return a checkpoint that flags only the second of two pictures, `[2, H, W, 3]` uint8.

    One concept's threshold is set between the scores of the two pictures.
    """
    pixels = prepare(images, checker.config)
    embeds = np.asarray(nnx.jit(SafetyChecker.embed)(checker, jnp.asarray(pixels)))
    one, other = (
        x / np.linalg.norm(x, axis=-1, keepdims=True)
        for x in (embeds, np.asarray(checker.concept_embeds.get_value()))
    )
    scores = one @ other.T  # [2, 17]
    concept = int(np.argmax(scores[1] - scores[0]))
    assert scores[1, concept] - scores[0, concept] > 0.003
    thresholds = np.ones(17, np.float32)
    thresholds[concept] = scores[:, concept].mean()
    folder = shutil.copytree(FOLDER, scratch / "checkpoint")
    file = folder / "safety_checker/model.safetensors"
    changed = {THRESHOLDS[0]: thresholds, THRESHOLDS[1]: np.ones(3, np.float32)}
    save_file(load_file(file) | changed, file)
    return folder


def test_a_flagged_picture_is_blurred_and_marked(
    unchecked: SDXLPipeline, one_flagged: Path
) -> None:
    pipe = start(one_flagged)
    assert (unchecked.facts.safety_checker, pipe.facts.safety_checker) == (False, True)
    with nothing_compiles():
        result, floats = (pipe.generate("a star", output_type=kind) for kind in ("pil", "np"))
        latents = pipe.generate("a star", output_type="latent")
    assert result.flagged == floats.flagged == [False, True]
    assert latents.flagged == [False, False]
    plain = unchecked.generate("a star")
    assert plain.flagged == [False, False]
    drawn = [np.asarray(image, int) for image in plain.images]
    assert np.abs(np.asarray(result.images[0], int) - drawn[0]).max() <= 1
    blurred = np.asarray(result.images[1])
    assert np.abs(blurred.astype(int) - blur(drawn[1].astype(np.uint8))).max() <= 2
    assert blurred.max() > 0
    np.testing.assert_allclose(floats.images[1], blurred / 255, atol=1e-6)
    remarks = [
        metadata.from_text(image.info[metadata.KEY]).safety_checker for image in result.images
    ]
    assert remarks == [None, metadata.BLURRED]


def test_a_picture_that_the_checker_flags_is_never_returned_unblurred(one_flagged: Path) -> None:
    pipe = start(one_flagged, screen=lambda images: [True] * len(images))
    result = pipe.generate("a star")
    assert result.flagged == [True, True]
    assert list(result.unblurred) == [0]  # only the screen flagged this one


@pytest.mark.slow
def test_a_model_of_another_shape_is_checked_too(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "strict")
    file = folder / "safety_checker/model.safetensors"
    save_file(load_file(file) | {THRESHOLDS[0]: np.full(17, -2, np.float32)}, file)
    pipe = start(folder, models=[shutil.copytree(SMALLEST, tmp_path / "other")])
    [other] = pipe.facts.others
    assert other.safety_checker
    with nothing_compiles():
        result = pipe.generate("a star", model="other")
    assert result.flagged == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.rare)])
def test_the_flax_calls_check_pictures_too(
    jit: bool, checker: SafetyChecker, tmp_path: Path
) -> None:
    plain, params = FlaxStableDiffusionPipeline.from_pretrained(FOLDER, safety_checker=None)
    ids = plain.prepare_inputs(["a star", "night"])
    key = jax.random.PRNGKey(0)
    if jit:
        arguments = ids[:, None], replicate(params, jax.devices()[:2]), jax.random.split(key)
    else:
        arguments = ids, params, key
    drawn, none = plain(*arguments, 1, jit=jit)
    assert none is None
    levels = np.rint(np.asarray(drawn).reshape(2, *drawn.shape[-3:]) * 255).astype(np.uint8)
    folder = flag_the_second(levels, checker, tmp_path)
    checked, _ = FlaxStableDiffusionPipeline.from_pretrained(folder)
    images, flagged = checked(*arguments, 1, jit=jit)
    assert flagged == [False, True]
    assert images.shape == drawn.shape
    first, second = images.reshape(levels.shape)
    np.testing.assert_allclose(first * 255, levels[0], atol=0.51)
    np.testing.assert_allclose(second * 255, blur(levels[1]), atol=1e-3)


def test_a_checkpoint_without_one_has_nothing_checked(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "checkpoint")
    for part in ("safety_checker", "feature_extractor"):
        shutil.rmtree(folder / part)
        change_json(folder / "model_index.json", **{part: [None, None]})
    pipe = start(folder)
    assert not pipe.facts.safety_checker
    assert pipe.generate("a star").flagged == [False, False]


# --- damage


def no_weights(folder: Path) -> None:
    (folder / "safety_checker/model.safetensors").unlink()


def only_pickle(folder: Path) -> None:
    file = folder / "safety_checker/model.safetensors"
    file.rename(file.with_name("pytorch_model.bin"))


def cut_off(folder: Path) -> None:
    file = folder / "safety_checker/model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def no_config(folder: Path) -> None:
    (folder / CHECKER).unlink()


def no_pictures_config(folder: Path) -> None:
    (folder / PICTURES).unlink()


def no_thresholds(folder: Path) -> None:
    file = folder / "safety_checker/model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != THRESHOLDS[0]}, file)


def other_width(folder: Path) -> None:
    change_json(folder / CHECKER, projection_dim=13)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (no_weights, "safety_checker/: no weights found.*turn the safety checker off"),
        (only_pickle, "safety_checker/pytorch_model.bin: only safetensors.*checker off"),
        (cut_off, "safety_checker/model.safetensors"),
        (no_config, "safety_checker/config.json: this file is missing.*checker off"),
        (no_pictures_config, "feature_extractor/preprocessor_config.json: this file is missing"),
        (no_thresholds, "safety_checker: the tensor concept_embeds_weights is missing"),
        (other_width, r"safety_checker: concept_embeds has shape \[17, 12\]; expected \[17, 13\]"),
    ],
)
def test_a_damaged_checker_is_reported_unless_it_is_left_out(
    damage: Callable[[Path], None], named: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "checkpoint")
    damage(folder)
    with nothing_compiles(), pytest.raises(CheckpointError, match=named):
        start(folder)
    assert read_config(folder, safety_checker=False).safety_checker is None
