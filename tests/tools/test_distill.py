"""The distillation of the miniature to few steps."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from safetensors import safe_open

from pipeline import BUNDLED
from pipeline.checkpoints.weights import checkpoint_names, checkpoint_shape, shape_rngs
from pipeline.families import read_config
from pipeline.models.unet import UNet
from tests.checkpoints import SMALLEST
from tools.agreement import load_networks
from tools.miniature import distill, trajectories
from tools.miniature.evaluate_lora import LORAS
from tools.miniature.lora import new_lora, peft_name
from tools.miniature.trajectories import STEPS, Trajectories, grid


def test_intervals_meet_at_the_timesteps_of_trailing_spacing() -> None:
    config = read_config(SMALLEST).scheduler
    timesteps, sigmas = grid(config, 3)
    np.testing.assert_array_equal(timesteps[:, 0], [999, 749, 499, 249])
    np.testing.assert_array_equal(sigmas[1:, 0], sigmas[:-1, -1])
    np.testing.assert_allclose(sigmas[:, 0], grid(config, 1)[1][:, 0])
    assert sigmas[-1, -1] == 0


def test_the_bundled_file_has_factors_for_every_layer() -> None:
    file = LORAS / f"{distill.NAME}.safetensors"
    assert file.stat().st_size < 10_000_000
    config = read_config(BUNDLED).networks["unet"]
    unet = nnx.eval_shape(lambda: UNet(config, dtype=jnp.float32, rngs=shape_rngs()))
    right = {}
    for path, param in nnx.to_flat_state(nnx.state(unet, nnx.Param)):
        names = checkpoint_names(path)
        if path[-1] == "kernel":
            share = (*param.shape[:-1], param.shape[-1] // len(names))
            right |= {peft_name(each): checkpoint_shape(path, share) for each in names}
    with safe_open(file, "numpy") as tensors:
        parts = {f"{name}.lora_{part}.weight" for name in right for part in "AB"}
        assert set(tensors.keys()) == parts
        changed = 0
        for name, shape in right.items():
            down, up = (tensors.get_tensor(f"{name}.lora_{part}.weight") for part in "AB")
            assert (up.shape[0], *down.shape[1:]) == shape
            assert down.shape[0] == up.shape[1] == distill.RANK
            changed += up.any()
            assert {down.dtype, up.dtype} == {np.dtype(np.float16)}
    # Queries and keys of the mid block's cross-attention got no gradient in training.
    assert changed >= len(right) - 2
    with Image.open(LORAS / f"{distill.NAME}.png") as picture:
        assert picture.size == (128, 128)


@pytest.mark.slow
def test_a_student_with_the_right_ends_has_no_loss() -> None:
    """The student's own steps, taken for the teacher's, leave nothing to learn."""
    networks = load_networks(SMALLEST)
    unet, config = networks.unet, networks.config
    timesteps, sigmas = map(jnp.asarray, grid(config.scheduler, 1))
    rng = np.random.default_rng(0)
    side, channels = config.networks["unet"].sample_size[0], config.networks["unet"].in_channels
    start = jnp.asarray(rng.normal(size=(distill.BATCH, side, side, channels)), jnp.float32)
    ids, _ = networks.tokenizers.tokenize(["a red star"] * distill.BATCH)
    embeds, pooled = trajectories.encode_prompts(
        trajectories.TextEncoders(*networks.text_encoders), jnp.asarray(ids)
    )
    interval = jnp.asarray(distill.INTERVAL)
    scale = jnp.asarray(trajectories.latent_scale(config.scheduler))[interval, None, None, None]
    context = trajectories.condition(unet, embeds, pooled, trajectories.picture_side(config))
    before, after = sigmas[interval].T
    x0 = trajectories.pred_x0(unet, start * scale, before, timesteps[interval, 0], context)
    ratio = (after / before)[:, None, None, None]
    end = start * ratio + x0 / scale * (1 - ratio)
    loss, lora = distill.make_loss(networks), new_lora(unet, 0, 4, left_out=())
    assert loss(lora, start, end, embeds, pooled) < 1e-6
    assert loss(lora, start, end + 0.01, embeds, pooled) > 1e-4


@pytest.mark.slow
def test_a_distillation_of_two_steps_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectories, "AT_ONCE", 2)
    networks = load_networks(SMALLEST)
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes on purpose
        first = distill.distil(networks, tmp_path, trajectories=2, steps=2, seed=0)
        again = distill.distil(networks, tmp_path, trajectories=2, steps=2, seed=0)
    assert any(np.any(factors["up"]) for factors in first.values())
    jax.tree.map(np.testing.assert_array_equal, first, again)
    with np.load(next((tmp_path / "teacher").iterdir())) as saved:
        followed = Trajectories(*(saved[f"arr_{i}"] for i in range(4)))
    assert followed.start.shape[:2] == (2, STEPS)
    scale = trajectories.latent_scale(networks.config.scheduler)[:, None, None, None]
    for start, end in zip(followed.start, followed.end, strict=True):
        # Each interval starts where the one before ends, up to the rounding to float16.
        np.testing.assert_allclose(
            start[1:] * scale[1:], end[:-1] * scale[:-1], rtol=2e-3, atol=0.02
        )
