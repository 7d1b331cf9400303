"""The files of the bundled miniature's LoRAs."""

import json

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

LORAS = BUNDLED / "loras"
TITLES = {"dusk": "Dusk", "glow": "Glow"}
QUICK, QUICK_RANK = "miniature-quick", 48


def modules() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the UNet's kernels in a checkpoint, by the names of their modules."""
    config = read_config(BUNDLED).networks["unet"]
    unet = nnx.eval_shape(lambda: UNet(config, dtype=jnp.float32, rngs=shape_rngs()))
    shapes = {}
    for path, param in nnx.to_flat_state(nnx.state(unet, nnx.Param)):
        names = checkpoint_names(path)
        share = (*param.shape[:-1], param.shape[-1] // len(names))
        if path[-1] == "kernel":
            shapes |= {name: checkpoint_shape(path, share) for name in names}
    return {name.removesuffix(".weight"): shape for name, shape in shapes.items()}


@pytest.mark.parametrize("name", TITLES)
def test_a_style_fits_the_miniature(name: str) -> None:
    file = LORAS / f"{name}.safetensors"
    assert file.stat().st_size < 1_000_000
    shapes = {f"lora_unet_{key.replace('.', '_')}": shape for key, shape in modules().items()}
    with safe_open(file, "numpy") as tensors:
        keys = set(tensors.keys())
        for module in {key.partition(".")[0] for key in keys}:
            assert {key for key in keys if key.partition(".")[0] == module} == {
                f"{module}.{part}" for part in ("alpha", "lora_down.weight", "lora_up.weight")
            }
            down, up = (tensors.get_tensor(f"{module}.lora_{d}.weight") for d in ("down", "up"))
            assert (up.shape[0], *down.shape[1:]) == shapes[module]
            assert up.any()
            assert {down.dtype, up.dtype} == {np.dtype(np.float16)}
        metadata = tensors.metadata()
    assert metadata["modelspec.title"] == TITLES[name]
    assert metadata["modelspec.trigger_phrase"] == name
    assert name in json.loads(metadata["ss_tag_frequency"])[name]
    with Image.open(LORAS / f"{name}.png") as picture:
        assert picture.size == (128, 128)


def test_quick_has_factors_for_every_layer() -> None:
    file = LORAS / f"{QUICK}.safetensors"
    assert file.stat().st_size < 10_000_000
    shapes = {f"unet.{key}": shape for key, shape in modules().items()}
    with safe_open(file, "numpy") as tensors:
        parts = {f"{name}.lora_{part}.weight" for name in shapes for part in "AB"}
        assert set(tensors.keys()) == parts
        changed = 0
        for name, shape in shapes.items():
            down, up = (tensors.get_tensor(f"{name}.lora_{part}.weight") for part in "AB")
            assert (up.shape[0], *down.shape[1:]) == shape
            assert down.shape[0] == up.shape[1] == QUICK_RANK
            changed += up.any()
            assert {down.dtype, up.dtype} == {np.dtype(np.float16)}
    # Queries and keys of the mid block's cross-attention got no gradient in training.
    assert changed >= len(shapes) - 2
    with Image.open(LORAS / f"{QUICK}.png") as picture:
        assert picture.size == (128, 128)
