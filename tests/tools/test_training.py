"""The chain that makes the miniature, on a checkpoint small enough to train within seconds."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.families import read_config
from pipeline.models.vae import VAE
from tests.checkpoints import SMALLEST, copy_checkpoint
from tests.pipeline.checkpoints.test_weights import load, same_weights
from tools.agreement import load_module, vae_decoded, vae_moments
from tools.miniature import export, reader, train, train_unet, train_vae, training
from tools.miniature.export import write_weights
from tools.miniature.latents import normalise
from tools.miniature.training import minimise
from tools.miniature.work import Run, Settings, Tree, Work

pytestmark = pytest.mark.slow  # trains a network

COMPONENTS = ("text_encoder", "text_encoder_2", "unet", "vae")
TINY = Settings(
    vae_steps=2, vae_pictures=2, normalised_over=16, reading_steps=2, pictures=16, steps=2
)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion() -> Iterator[None]:
    """Allow mixed dtypes, which Optax uses on purpose."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_vae, "CROPS", 2)
        patch.setattr(reader, "BATCH", 2)
        patch.setattr(train_unet, "BATCH", 2)
        # Muon takes a minute to compile for a network; `fit_line` covers it.
        patch.setattr(training, "optimiser", lambda *_, **__: optax.adam(1e-3))
        yield


@pytest.fixture(scope="module")
def trained(small_batches: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Work, Path]:
    """Return the work folder of a finished training and its checkpoint."""
    folder = tmp_path_factory.mktemp("training")
    checkpoint = copy_checkpoint(folder)
    work = Work(folder / "work", TINY)
    train.train(work, checkpoint)
    return work, checkpoint


def run(folder: Path) -> Run:
    return Run(folder, save_every=2)


def fit_line(folder: Path, steps: int, stop_at: int | None = None) -> Tree:
    """Train a single kernel; `stop_at` is the step at which the training is interrupted."""

    def batch(i: int) -> tuple[np.ndarray]:
        if i == stop_at:
            raise KeyboardInterrupt
        return (np.random.default_rng(i).normal(size=(4, 3)).astype(np.float32),)

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        return jnp.mean((x @ params["kernel"] - x.sum(axis=1, keepdims=True)) ** 2)

    return minimise(run(folder), loss, {"kernel": jnp.zeros((3, 2))}, batch, steps, warmup=2)


def test_a_stopped_training_ends_like_one_that_ran_through(tmp_path: Path) -> None:
    through = fit_line(tmp_path / "through", 7)
    with pytest.raises(KeyboardInterrupt):
        fit_line(tmp_path / "stopped", 7, stop_at=5)
    resumed = fit_line(tmp_path / "stopped", 7)
    assert int(resumed["step"]) == 7
    jax.tree.map(np.testing.assert_array_equal, through, resumed)
    curves = [(tmp_path / name / "curve.jsonl").read_text() for name in ("through", "stopped")]
    assert [json.loads(point)["step"] for point in curves[1].splitlines()] == [2, 4, 6, 7]
    assert curves[0] == curves[1]


def test_a_finished_training_makes_no_step(tmp_path: Path) -> None:
    first = fit_line(tmp_path, 4)
    jax.tree.map(np.testing.assert_array_equal, first, fit_line(tmp_path, 4, stop_at=4))


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    fit_line(tmp_path, 200)
    points = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert points[-1]["loss"] < 0.5 * points[0]["loss"]


def test_a_state_that_was_not_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_line(tmp_path, 2)

    def fail(file: Path, *arrays: np.ndarray) -> None:
        file.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="No space left"):
        fit_line(tmp_path, 4)
    monkeypatch.undo()
    assert int(fit_line(tmp_path, 4)["step"]) == 4


def test_the_whole_chain_writes_what_loads(trained: tuple[Work, Path]) -> None:
    work, checkpoint = trained
    for component in COMPONENTS:
        assert not same_weights(load(checkpoint, component), load(SMALLEST, component))
    for stage in train.STAGES:
        assert (work.folder / stage / "curve.png").stat().st_size > 1000


def test_more_steps_go_on_with_a_finished_training(
    trained: tuple[Work, Path], small_batches: None, tmp_path: Path
) -> None:
    work, checkpoint = trained
    before = {name: load(checkpoint, name) for name in COMPONENTS}
    more = Work(work.folder, Settings(**{**vars(TINY), "steps": 3}))
    assert more.seconds >= work.seconds > 0
    train.train(more, checkpoint)
    same = {name for name in COMPONENTS if same_weights(before[name], load(checkpoint, name))}
    assert same == {"text_encoder", "text_encoder_2", "vae"}

    train.publish(more, checkpoint, tmp_path)
    for component in COMPONENTS:
        assert same_weights(load(tmp_path, component), load(checkpoint, component))
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["settings"] == vars(more.settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "--seed 0, not 1: go on with 0, or name another folder"),
        ({"steps": 1}, "--steps 2, not 1: go on with 2 or more"),
    ],
)
def test_a_folder_holds_one_training(tmp_path: Path, change: dict[str, int], message: str) -> None:
    Work(tmp_path, TINY)
    with pytest.raises(ValueError, match=message):
        Work(tmp_path, Settings(**{**vars(TINY), **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vae_steps": 0}, "--vae-steps is 0; it must be at least 1"),
        ({"seed": -1}, "--seed is -1; it must be at least 0"),
        ({"pictures": 17}, "--pictures is 17; it must be a multiple of 16"),
    ],
)
def test_settings_that_cannot_be_used(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**change)


def test_normalised_latents_have_unit_variance_and_the_same_pictures() -> None:
    vae = load_module(VAE, read_config(SMALLEST).networks["vae"], SMALLEST / "vae")
    pictures = train_vae.draw_pool(16, 0, 16)
    images = (pictures / 127.5 - 1).astype(np.float32)
    before, _ = vae_moments(vae, images)
    rebuilt = vae_decoded(vae, np.asarray(before))
    normalise(vae, pictures)
    mean, logvar = (np.asarray(x, np.float64) for x in vae_moments(vae, images))
    scale, axes = vae.config.scaling_factor, (0, 1, 2)
    np.testing.assert_allclose(mean.mean(axes), 0, atol=1e-4)
    variance = mean.var(axes) + np.exp(logvar).mean(axes)
    np.testing.assert_allclose(variance * scale**2, 1, rtol=1e-4)
    np.testing.assert_allclose(vae_decoded(vae, np.float32(mean)), rebuilt, atol=2e-4)


def test_weights_in_shards_load_like_those_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = copy_checkpoint(tmp_path)
    unet = load(checkpoint, "unet")
    write_weights(checkpoint, "unet", unet)
    whole = load(checkpoint, "unet")
    monkeypatch.setattr(export, "MAX_SHARD_BYTES", 50_000)
    write_weights(checkpoint, "unet", unet)
    shards = sorted((checkpoint / "unet").glob("*.safetensors"))
    assert len(shards) > 3
    assert all(file.name.endswith(f"of-{len(shards):05}.safetensors") for file in shards)
    assert same_weights(load(checkpoint, "unet"), whole)
    index = json.loads(
        (checkpoint / f"unet/{export.STEMS['unet']}.safetensors.index.json").read_text()
    )
    assert set(index["weight_map"].values()) == {file.name for file in shards}
    assert index["metadata"]["total_size"] == sum(
        2 * np.size(value) for value in export.to_checkpoint(unet).values()
    )
