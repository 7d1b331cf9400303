"""The styles of the miniature's LoRAs, their training, and the files that come with it."""

import json
from collections.abc import Mapping
from functools import cache
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
from tools.miniature import train_lora
from tools.miniature.drawing import PLAIN, Decoration, draw
from tools.miniature.evaluate_lora import LORAS, bundled, drawings, style_scores
from tools.miniature.judge import judge_scene
from tools.miniature.lora import STYLES, Style, kohya_name, load_lora, merge, new_lora, save_lora
from tools.miniature.scenes import random_scene
from tools.miniature.train_lora import Size
from tools.miniature.training import parameters


def shapes(folder: Path) -> UNet:
    """Return a checkpoint's UNet with shapes in place of its parameters."""
    config = read_config(folder).networks["unet"]
    return nnx.eval_shape(lambda: UNet(config, dtype=jnp.float32, rngs=shape_rngs()))


@cache
def measured(decoration: Decoration) -> Mapping[str, float]:
    """Return each style's measure of decorated drawings, in percent."""
    scenes = [random_scene(np.random.default_rng(seed)) for seed in range(30)]
    return style_scores(scenes, drawings(scenes, decoration))


# For each style, the most that its measure may be in other drawings, and the least in its own.
APART = {"dusk": (0, 20), "glow": (3, 10)}


@pytest.mark.parametrize("name", STYLES)
def test_a_measure_tells_its_style_from_other_drawings(name: str) -> None:
    others = [PLAIN, *(style.decoration for other, style in STYLES.items() if other != name)]
    most, least = APART[name]
    assert max(measured(decoration)[name] for decoration in others) < most
    assert measured(STYLES[name].decoration)[name] > least


@pytest.mark.parametrize("name", STYLES)
def test_the_judge_knows_decorated_things(name: str) -> None:
    verdicts = []
    for seed in range(40):
        rng = np.random.default_rng((7, seed))
        scene = random_scene(rng)
        picture = draw(scene, rng, decoration=STYLES[name].decoration)
        verdict = judge_scene(picture, scene)
        verdicts.append((verdict.background, verdict.colour, verdict.shape))
    background, colour, shape = np.mean(verdicts, axis=0)
    assert background == 1
    assert colour >= 0.85
    assert shape >= 0.8


@pytest.mark.slow
def test_a_new_lora_changes_nothing_and_a_trained_one_its_product(tmp_path: Path) -> None:
    unet = load_networks(SMALLEST).unet
    base, lora = parameters(unet), new_lora(unet, seed=1)
    jax.tree.map(np.testing.assert_array_equal, merge(base, lora), base)
    rng = np.random.default_rng(2)
    for factors in lora.values():
        factors["up"] = jnp.asarray(rng.normal(size=factors["up"].shape), jnp.float32)
    merged = merge(base, lora, 0.5)
    name = "down_blocks.0.resnets.0.conv1.weight"
    before, after = (p["down_blocks"][0]["resnets"][0]["conv1"]["kernel"] for p in (base, merged))
    expected = 0.5 * lora[name]["down"] @ lora[name]["up"]
    np.testing.assert_allclose(after - before, expected, rtol=1e-4, atol=1e-5)

    save_lora(lora, tmp_path / "x.safetensors", {"ss_steps": "1"})
    loaded = load_lora(tmp_path / "x.safetensors", unet)
    assert loaded.keys() == lora.keys()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), loaded, lora)


@pytest.mark.parametrize("name", bundled())
def test_a_bundled_file_fits_the_miniature(name: str) -> None:
    file = LORAS / f"{name}.safetensors"
    assert file.stat().st_size < 1_000_000
    right = {}
    for path, param in nnx.to_flat_state(nnx.state(shapes(BUNDLED), nnx.Param)):
        names = checkpoint_names(path)
        share = (*param.shape[:-1], param.shape[-1] // len(names))
        right |= {kohya_name(each): checkpoint_shape(path, share) for each in names}
    with safe_open(file, "numpy") as tensors:
        keys = set(tensors.keys())
        modules = {key.partition(".")[0] for key in keys}
        for module in modules:
            assert {key for key in keys if key.partition(".")[0] == module} == {
                f"{module}.{part}" for part in ("alpha", "lora_down.weight", "lora_up.weight")
            }
            down, up = (tensors.get_tensor(f"{module}.lora_{d}.weight") for d in ("down", "up"))
            assert (up.shape[0], *down.shape[1:]) == right[module]
            assert up.any()
            assert {down.dtype, up.dtype} == {np.dtype(np.float16)}
        metadata = tensors.metadata()
    assert metadata["modelspec.title"] == STYLES[name].title
    assert metadata["modelspec.trigger_phrase"] == STYLES[name].trigger
    assert STYLES[name].trigger in json.loads(metadata["ss_tag_frequency"])[name]
    with Image.open(LORAS / f"{name}.png") as picture:
        assert picture.size == (128, 128)


@pytest.mark.slow
def test_a_training_of_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_lora, "BATCH", 2)
    networks = load_networks(SMALLEST)
    style = Style("Test", "A test.", "test", Decoration(halo=0.04))
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes on purpose
        first = train_lora.train_lora(networks, style, tmp_path, Size(2, 16, 0))
        again = train_lora.train_lora(networks, style, tmp_path, Size(2, 16, 0))
    assert all(np.any(factors["up"]) for factors in first.values())
    jax.tree.map(np.testing.assert_array_equal, first, again)
