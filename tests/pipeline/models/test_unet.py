"""Dependence of the UNet's prediction on its inputs; test_golden checks the values."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.full_size import read_published
from pipeline.checkpoints.weights import shape_rngs
from pipeline.families import read_config
from pipeline.models.unet import UNet, masked_input
from pipeline.models.unet_config import UNetConfig
from tests.checkpoints import SMALLEST, random_module
from tools.agreement import load_module


@cache
def network() -> tuple[UNet, UNetConfig]:
    config = read_config(SMALLEST).networks["unet"]
    return load_module(UNet, config, SMALLEST / "unet"), config


@nnx.jit
def run(unet: UNet, latents: Any, times: Any, embeds: Any, pooled: Any, sizes: Any) -> Any:
    return unet(latents, times, unet.condition(embeds, pooled, sizes))


@cache
def inputs() -> dict[str, np.ndarray]:
    config = network()[1]
    rng = np.random.default_rng(0)
    assert config.addition is not None
    pooled = config.addition.input_dim - 6 * config.addition.time_embed_dim
    return {
        "latents": rng.normal(size=(2, 8, 8, config.in_channels)).astype(np.float32),
        "times": np.array([961, 1], np.float32),
        "embeds": rng.normal(size=(2, 7, config.cross_attention_dim)).astype(np.float32),
        "pooled": rng.normal(size=(2, pooled)).astype(np.float32),
        "sizes": np.array([[16, 16, 0, 0, 16, 16]] * 2, np.float32),
    }


def predict(**changes: np.ndarray) -> np.ndarray:
    return np.asarray(run(network()[0], **{**inputs(), **changes}))


def test_shape() -> None:
    assert predict().shape == inputs()["latents"].shape
    assert predict().dtype == np.float32


@pytest.mark.parametrize("name", ["latents", "times", "embeds", "pooled", "sizes"])
def test_every_input_matters_and_only_to_its_own_row(name: str) -> None:
    changed = inputs()[name].copy()
    changed[1] = changed[1] + 3
    before, after = predict(), predict(**{name: changed})
    assert np.abs(after[1] - before[1]).max() > 1e-4
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)


def test_rows_are_told_apart_by_each_of_the_six_sizes() -> None:
    for place in range(6):
        sizes = inputs()["sizes"].copy()
        sizes[:, place] += 5
        assert np.abs(predict(sizes=sizes) - predict()).max() > 1e-5


def test_timesteps_are_not_rounded() -> None:
    """Timesteps are not rounded to bfloat16, in which 961 would be 960."""
    near = predict(times=np.array([960, 1], np.float32))
    assert np.abs(near - predict()).max() > 1e-6


@pytest.mark.parametrize("changed", ["latents", "mask", "masked picture"])
def test_a_mask_and_a_masked_picture_matter_to_their_own_row(changed: str) -> None:
    rng = np.random.default_rng(0)
    given = {
        name: rng.normal(size=(2, 8, 8, channels)).astype(np.float32)
        for name, channels in (("latents", 4), ("mask", 1), ("masked picture", 4))
    }
    # As NumPy's: JAX may still read its inputs, which are changed below.
    before = np.asarray(_inpaint(inpainting_network(), *given.values()))
    given[changed][1] += 3
    after = _inpaint(inpainting_network(), *given.values())
    assert before.shape == (2, 8, 8, 4)
    assert np.abs(after[1] - before[1]).max() > 1e-4
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)


@cache
def inpainting_network() -> UNet:
    config = replace(network()[1], in_channels=9)
    return random_module(lambda: UNet(config, dtype=jnp.float32, rngs=shape_rngs()))


@nnx.jit
def _inpaint(unet: UNet, latents: Any, mask: Any, masked: Any) -> Any:
    given: dict[str, Any] = {**inputs()}
    context = unet.condition(given["embeds"], given["pooled"], given["sizes"])
    return unet(latents, given["times"], context._replace(masked=masked_input(mask, masked)))


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_a_gpu_computes_every_attention_of_sdxl_with_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 70 transformer blocks call cuDNN's kernel twice, lowered without a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for question in ("check_cudnn_version", "check_compute_capability"):
        module = "jax._src.cudnn.fused_attention_stablehlo"
        monkeypatch.setattr(f"{module}.{question}", lambda *_: 91000)
    config = read_published().networks["unet"]
    unet = nnx.eval_shape(lambda: UNet(config, dtype=jnp.bfloat16, rngs=shape_rngs()))
    embeds, pooled = (
        jax.ShapeDtypeStruct(size, jnp.bfloat16) for size in ((1, 77, 2048), (1, 1280))
    )
    numbers = [jax.ShapeDtypeStruct(size, jnp.float32) for size in ((1, 128, 128, 4), (1,), (1, 6))]
    latents, times, sizes = numbers
    traced = run.trace(unet, latents, times, embeds, pooled, sizes)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    functions = re.split(r"(?=func\.func .*@)", text)
    with_kernel = [part for part in functions if "__cudnn$fmhaSoftmax" in part]
    names = [re.findall(r"@([\w.]+)\(", part)[0] for part in with_kernel]
    assert sum(text.count(f"call @{name}(") for name in names) == 140
