"""ControlNets: shapes, rows that depend on themselves alone, and configurations.

tests/reference/test_controlnet.py checks the values.
"""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pipeline.checkpoints.weights import shape_rngs
from pipeline.errors import CheckpointError
from pipeline.families import read_config
from pipeline.kernels import rows
from pipeline.models.controlnet import ControlNet
from pipeline.models.controlnet_config import ControlNetConfig, read_controlnet
from pipeline.models.unet import UNet
from tests.checkpoints import GOLDEN, random_module
from tests.controlnets import KINDS, controlnet_json

SDXL, SD_1 = GOLDEN / "three_levels/checkpoint", GOLDEN / "sd_1/checkpoint"
UNET = read_config(SDXL).networks["unet"]
SIDE = 8  # of latents
# With the skip of every layer: two layers and a downsampling, a layer without, and the middle.
SHAPES = [
    *[(2, 8, 8, 8)] * 2,
    (2, 4, 4, 8),
    (2, 4, 4, 24),
    (2, 2, 2, 24),
    *[(2, 2, 2, 32)] * 2,
]


@cache
def config_of(kind: str) -> ControlNetConfig:
    values = controlnet_json(SDXL, kind)
    path = Path(f"/tmp/never written/{kind}.json")
    return read(path, values)


def read(path: Path, values: dict[str, Any]) -> ControlNetConfig:
    """Read a configuration that is in no file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.strict_json._beginning", lambda *_: json.dumps(values).encode())
        return read_controlnet(path)


@cache
def network(kind: str) -> ControlNet:
    make = partial(ControlNet, config_of(kind), dtype=jnp.float32, rngs=shape_rngs())
    return random_module(make)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@cache
def inputs() -> dict[str, np.ndarray]:
    assert UNET.addition is not None
    pooled = UNET.addition.input_dim - 6 * UNET.addition.time_embed_dim
    return {
        "images": draw(2, 4 * SIDE, 4 * SIDE, 3),
        "types": np.array([1, 3], np.int32),
        "weights": np.array([1, 0.5], np.float32),
        "latents": draw(2, SIDE, SIDE, 4),
        "times": np.array([961, 1], np.float32),
        "embeds": draw(2, 7, UNET.cross_attention_dim),
        "pooled": draw(2, pooled),
        "sizes": np.array([[32, 32, 0, 0, 32, 32]] * 2, np.float32),
        "given": np.array([[0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]], np.float32),
    }


def forward(network: ControlNet, x: dict[str, Any]) -> tuple[jax.Array, ...]:
    context = network.condition(x["embeds"], x["pooled"], x["sizes"], control_types=x["given"])
    hint = network.hint(x["images"], x["types"], x["weights"])
    return network(x["latents"], x["times"], context, hint)


run = nnx.jit(forward)


@pytest.mark.parametrize("kind", ["full", "mid", "small", "resnets", "pool", "union"])
@jax.numpy_dtype_promotion("standard")
def test_shapes(kind: str) -> None:
    make = partial(ControlNet, config_of(kind), dtype=jnp.bfloat16, rngs=shape_rngs())
    half = {name: inputs()[name].astype(jnp.bfloat16) for name in ("embeds", "pooled")}
    residuals = nnx.eval_shape(lambda x: forward(make(), x), inputs() | half)
    assert [residual.shape for residual in residuals] == SHAPES
    assert {residual.dtype for residual in residuals} == {np.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("kind", ["full", "pool", "union"])
@pytest.mark.parametrize("name", inputs())
def test_every_input_matters_and_only_to_its_own_row(kind: str, name: str) -> None:
    """Also in a union network, whose published attention is over the batch."""
    changed = inputs()[name].copy()
    changed[1] = changed[1, ::-1] if name == "given" else changed[1] * 2 + 1
    before = [np.asarray(x) for x in run(network(kind), inputs())]
    after = run(network(kind), {**inputs(), name: changed})
    for left, right in zip(before, after, strict=True):
        np.testing.assert_allclose(right[0], left[0], rtol=1e-4, atol=1e-4)
    matters = kind == "union" or name not in ("types", "weights", "given")
    assert (np.abs(after[-1][1] - before[-1][1]).max() > 1e-4) == matters


def test_pooled_residuals_are_the_means_of_others() -> None:
    others, pooled = run(network("full"), inputs()), run(network("pool"), inputs())
    for mean, residual in zip(pooled, others, strict=True):
        expected = np.asarray(residual).mean((1, 2), keepdims=True)
        np.testing.assert_allclose(
            mean, np.broadcast_to(expected, mean.shape), rtol=1e-3, atol=1e-3
        )


def test_bgr_is_the_reverse_of_rgb() -> None:
    reversed_images = {**inputs(), "images": inputs()["images"][..., ::-1]}
    for ours, theirs in zip(
        run(network("bgr"), reversed_images), run(network("full"), inputs()), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["full", "pool", "union"])
def test_rows_of_a_picture_on_two_devices(kind: str) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("rows",))
    graphdef, state = nnx.split(network(kind))

    @rows.spread("rows")
    def band(state: Any, x: dict[str, Any]) -> tuple[jax.Array, ...]:
        residuals = forward(nnx.merge(graphdef, state), x)
        assert residuals[0].shape[1] == SIDE // 2
        return tuple(map(rows.whole, residuals))

    spread = jax.shard_map(band, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    for ours, theirs in zip(
        jax.jit(spread)(state, inputs()), run(network(kind), inputs()), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@cache
def unet() -> UNet:
    return random_module(lambda: UNet(UNET, dtype=jnp.float32, rngs=shape_rngs()))


@nnx.jit
def predict(unet: UNet, x: dict[str, Any], residuals: Any, deep: Any) -> tuple[Any, ...]:
    """Return a prediction, the deep features, and a prediction from those that are given."""
    context = unet.condition(x["embeds"], x["pooled"], x["sizes"])
    inputs = x["latents"], x["times"], context._replace(residuals=residuals)
    features = unet.deep(*inputs)
    deep = features if deep is None else deep
    return unet(*inputs), features, unet.shallow(*inputs, deep)


@pytest.mark.slow
def test_a_unet_takes_residuals() -> None:
    """The first residual counts in the shallow part alone, and all others in the deep part."""
    x = inputs()
    residuals = tuple(jnp.asarray(draw(*shape)) for shape in SHAPES)
    without, plain, _ = predict(unet(), x, None, None)
    prediction, deep, shallow = predict(unet(), x, residuals, None)
    assert np.abs(prediction - without).max() > 1e-3
    np.testing.assert_allclose(shallow, prediction, rtol=1e-4, atol=1e-4)
    zeros = tuple(map(jnp.zeros_like, residuals))
    np.testing.assert_allclose(predict(unet(), x, zeros, None)[0], without, rtol=1e-4, atol=1e-4)
    for i in range(len(residuals)):
        single = (*zeros[:i], residuals[i], *zeros[i + 1 :])
        _, features, from_plain = predict(unet(), x, single, plain)
        assert (np.abs(features - plain).max() > 1e-4) == (i > 0)
        assert (np.abs(from_plain - without).max() > 1e-4) == (i == 0)
    one = tuple(residual.at[1].set(0) for residual in residuals)
    np.testing.assert_allclose(predict(unet(), x, one, None)[0][1], without[1], atol=1e-3)
    np.testing.assert_allclose(predict(unet(), x, one, None)[1][0], deep[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_published_kinds_are_read(kind: str) -> None:
    config = config_of(kind)
    assert config.scale_factor == 4
    assert config.control_types == {"union": 6, "promax": 8}.get(kind, 0)
    assert (config.bgr, config.global_pool) == (kind == "bgr", kind == "pool")
    assert config.skip_channels == tuple(shape[-1] for shape in SHAPES[:-1])
    assert hash(config) == hash(read(Path(kind), controlnet_json(SDXL, kind)))


def test_a_union_network_of_its_own_repository_has_the_usual_class() -> None:
    """Its file names ControlNetModel, and beside that the number of types."""
    values = {
        key: value
        for key, value in controlnet_json(SDXL, "promax").items()
        if not key.startswith("num_trans")
    }
    config = read(Path("config.json"), {**values, "_class_name": "ControlNetModel"})
    assert (config.control_types, config.fusing_layers) == (8, 1)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("full", {"_class_name": "T2IAdapter"}, "_class_name = 'T2IAdapter' is not supported"),
        ("full", {"conditioning_channels": 1}, "conditioning_channels = 1 .* expected 3"),
        ("full", {"controlnet_conditioning_channel_order": "grb"}, "expected 'rgb' or 'bgr'"),
        ("full", {"conditioning_embedding_out_channels": []}, "a list of integers"),
        ("full", {"encoder_hid_dim": 1}, "encoder_hid_dim = 1 is not supported"),
        ("full", {"num_trans_head": 8}, "unknown key num_trans_head = 8"),
        ("full", {"time_cond_proj_dim": 8}, "time_cond_proj_dim = 8 .* expected None"),
        ("full", {"global_pool_conditions": 1}, "a value of type bool"),
        ("full", {"attention_head_dim": 5}, "attention_head_dim = 5 .* a divisor of 8"),
        ("union", {"num_trans_channel": 9}, "num_trans_channel = 9 is not supported; expected 8"),
        ("union", {"addition_embed_type": None}, "addition_embed_type = None is not supported"),
        ("union", {"num_control_type": 0}, "num_control_type = 0 is not supported"),
    ],
)
def test_other_settings_are_refused_by_name(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{message}"):
        read(Path("config.json"), controlnet_json(SDXL, kind) | changes)
