"""The loop that trains networks, and what it writes."""

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.families import read_config
from pipeline.models.vae import VAE
from tests.checkpoints import SMALLEST, copy_checkpoint
from tests.networks import load_weights, same_weights
from tools.agreement import load_module, vae_decoded, vae_moments
from tools.trainer import export
from tools.trainer.export import write_weights
from tools.trainer.train_vae import normalise
from tools.trainer.training import Run, Tree, minimise

pytestmark = pytest.mark.slow  # trains a network


@pytest.fixture(scope="module", autouse=True)
def standard_promotion() -> Iterator[None]:
    """Allow mixed dtypes, which Optax uses on purpose."""
    with jax.numpy_dtype_promotion("standard"):
        yield


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


def test_normalised_latents_have_unit_variance_and_the_same_pictures() -> None:
    vae = load_module(VAE, read_config(SMALLEST).networks["vae"], SMALLEST / "vae")
    pictures = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), np.uint8)
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
    unet = load_weights(checkpoint, "unet")
    write_weights(checkpoint, "unet", unet)
    whole = load_weights(checkpoint, "unet")
    monkeypatch.setattr(export, "MAX_SHARD_BYTES", 50_000)
    write_weights(checkpoint, "unet", unet)
    shards = sorted((checkpoint / "unet").glob("*.safetensors"))
    assert len(shards) > 3
    assert all(file.name.endswith(f"of-{len(shards):05}.safetensors") for file in shards)
    assert same_weights(load_weights(checkpoint, "unet"), whole)
    index = json.loads(
        (checkpoint / f"unet/{export.STEMS['unet']}.safetensors.index.json").read_text()
    )
    assert set(index["weight_map"].values()) == {file.name for file in shards}
    assert index["metadata"]["total_size"] == sum(
        2 * np.size(value) for value in export.to_checkpoint(unet).values()
    )
