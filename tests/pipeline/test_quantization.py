"""A pipeline with an int8 UNet: its layers, its memory, its LoRAs and its pictures."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.full_size import read_published
from pipeline import CheckpointError, InputError, SDXLPipeline, metadata
from pipeline import __main__ as command
from pipeline.adapters.reader import read_adapter
from pipeline.checkpoints.source import fetch
from pipeline.families import FamilyReader, read_config
from pipeline.kernels.int8 import Quantized, quantize_kernel
from pipeline.models.unet import int8_layers
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.compiled import make_mesh, place_on
from pipeline.runtime.loading import find_networks, load_networks, trace_networks
from pipeline.runtime.parameters import Parameters
from pipeline.runtime.programs import PROGRAMS, Shapes, Target, cache_key
from tests.checkpoints import EXECUTABLES, SMALLEST, copy_checkpoint, shared_pipeline
from tools.adapter_files import draw_adapter, write_adapter

INT8 = "int8"
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(jnp.bfloat16)
# The kernels of a UNet by the paths of their layers, in which a number is N.
TRANSFORMER = "attentions.N.transformer_blocks.N"
QUANTIZED = {
    *("resnets.N.conv1", "resnets.N.conv2"),
    *(f"{TRANSFORMER}.{name}" for name in ("attn1.to_qkv", "ff.proj_in")),
}
KEPT = {
    *("conv_in", "conv_out", "time_embedding.linear_N", "add_embedding.linear_N"),
    *("resnets.N.time_emb_proj", "resnets.N.conv_shortcut", "downsample", "upsample"),
    *("attentions.N.proj_in", "attentions.N.proj_out"),
    *(f"{TRANSFORMER}.{name}" for name in ("attn1.to_out", "ff.proj_out")),
    *(f"{TRANSFORMER}.attn2.{name}" for name in ("to_q", "to_kv", "to_out")),
}


@cache
def networks(quantization: str | None, dtype: np.dtype[Any] = BFLOAT16) -> Any:
    """Return the smallest checkpoint's networks, without parameters."""
    return trace_networks(read_config(SMALLEST), dtype, quantization=quantization)


def test_the_last_resnet_of_sdxl_stays_as_it_is() -> None:
    layers = int8_layers(read_published().networks["unet"])
    assert re.fullmatch(layers, "up_blocks.2.resnets.1.conv2")
    assert not re.fullmatch(layers, "up_blocks.2.resnets.2.conv2")


def test_the_layers_that_are_quantised() -> None:
    last = "up_blocks.1.resnets.1"
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for path, param in nnx.to_flat_state(nnx.state(networks(INT8)["unet"])):
        *layer, _ = path
        where = ".".join(map(str, layer))
        is_quantized = isinstance(param.get_value(), Quantized)
        if where.startswith(last):
            assert not is_quantized
        elif len(param.shape) > 1:
            name = re.sub(r"(?<=\.)\d+|(?<=linear_)\d", "N", where)
            found[is_quantized].add(re.sub(r"^((down|up)_blocks\.N|mid_block)\.", "", name))
    assert found[True] == QUANTIZED
    assert found[False] == KEPT


def test_the_other_networks_stay_as_they_are() -> None:
    for name, network in networks(INT8).items():
        if name != "unet":
            own, right = (nnx.state(each) for each in (network, networks(None)[name]))
            assert jax.tree.structure(own) == jax.tree.structure(right)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # in the attention of text encoders, which is JAX's
def test_the_plan_of_the_command_line_counts_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for more in ([], ["--quantization", INT8]):
        assert command.main(["--plan", "--model", str(SMALLEST), *more]) == 0
        shown.append(re.findall(r"\n  unet +([\d.]+) MB\n", capsys.readouterr().out))
    exact, ours = (np.array(each, float) for each in shown)
    assert (ours < exact).all()
    assert exact.size == 1


def target(**more: Any) -> Target:
    mesh = make_mesh(jax.devices()[:1], 2)
    return Target(read_config(SMALLEST), FLOAT32, mesh, Shapes(2, 16, 16), **more)


def test_only_programs_of_the_unet_differ() -> None:
    exact, ours = target(), target(quantization=INT8)
    changed = [name for name in PROGRAMS if cache_key(name, exact) != cache_key(name, ours)]
    assert changed == ["step", "condition"]


# --- LoRAs


def load(folder: Path, quantization: str | None) -> tuple[Parameters, Adapters]:
    checkpoint = fetch(str(folder), None, FamilyReader())
    found = find_networks(checkpoint, FLOAT32, quantization=quantization)
    mesh = make_mesh(jax.devices()[:1], 1)
    parameters = Parameters(load_networks(found, place_on(mesh)), found)
    config = checkpoint.config
    denoisers = config.architecture.predict.networks
    return parameters, Adapters(parameters, mesh, [*config.text_encoders], denoisers)


def values(parameters: Parameters) -> dict[tuple[Any, ...], list[np.ndarray]]:
    """Return the UNet's parameters by path."""
    slots = {slot for slot, _ in parameters.tensors(["unet"])["unet"].values()}
    leaves = parameters.leaves["unet"]
    return {slot.path: [np.asarray(leaves[i]) for i in slot.indices] for slot in slots}


def same(one: dict[Any, list[np.ndarray]], other: dict[Any, list[np.ndarray]]) -> bool:
    assert one.keys() == other.keys()
    return all(
        np.array_equal(*pair) for path in one for pair in zip(one[path], other[path], strict=True)
    )


def test_loras_change_the_parameters_before_they_are_quantised(tmp_path: Path) -> None:
    exact, ours = (load(SMALLEST, each) for each in (None, INT8))
    before = values(ours[0])
    assert {len(each) for each in before.values()} == {1, 2}
    drawn = draw_adapter(ours[1].inventory, "lora", 0)
    file = write_adapter(tmp_path / "one.safetensors", drawn, "kohya sdxl", ours[1].inventory)
    for _, adapters in (exact, ours):
        adapters.add(read_adapter(file, "one", adapters.inventory))
        adapters.select({"one": (0.5, 0.5)})
    merged, right = values(ours[0]), values(exact[0])
    assert not same(merged, before)
    for path, leaves in merged.items():
        [whole] = right[path]
        expected = jax.tree.leaves(quantize_kernel(whole)) if len(leaves) == 2 else [whole]
        assert same({path: leaves}, {path: expected})
    ours[1].select({})
    assert same(values(ours[0]), before)
    ours[1].select({"one": (0.5, 0.5)})
    ours[1].remove("one")
    ours[1].select({})
    assert same(values(ours[0]), before)


def test_a_lora_needs_the_files_of_the_checkpoint(tmp_path: Path) -> None:
    """Quantised parameters are read again, which a replaced file would mix with others."""
    folder = copy_checkpoint(tmp_path)
    parameters, adapters = load(folder, INT8)
    before = values(parameters)
    drawn = draw_adapter(adapters.inventory, "lora", 0)
    file = write_adapter(tmp_path / "one.safetensors", drawn, "kohya sdxl", adapters.inventory)
    adapters.add(read_adapter(file, "one", adapters.inventory))
    [weights] = (folder / "unet").glob("*.safetensors")
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"the file was replaced"):
        adapters.select({"one": (0.5, 0.5)})
    assert same(values(parameters), before)


# --- whole pipelines


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    """Return the shared pipeline on one device, with an int8 UNet."""
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        num_inference_steps=3,
        devices=jax.devices()[:1],
        quantization=INT8,
        cache_dir=EXECUTABLES,
    )


def draw(pipe: SDXLPipeline, output_type: str = "latent", **more: Any) -> Any:
    return pipe.generate("a red star", "a ring", seed=7, output_type=output_type, **more).images


def test_its_pictures_are_near_the_exact_ones_and_say_so(pipe: SDXLPipeline) -> None:
    exact = shared_pipeline(1)
    ours, right = draw(pipe), draw(exact)
    assert 0 < np.abs(ours - right).mean() < 0.1 * np.abs(right).mean()
    assert pipe.facts.version == f"{exact.facts.version}, int8"
    [picture], [other] = (draw(each, "pil", images=1) for each in (pipe, exact))
    assert metadata.from_text(picture.info[metadata.KEY]).quantization == INT8
    assert "Quantization" not in other.info[metadata.KEY]


def test_a_picture_is_the_same_beside_others(pipe: SDXLPipeline) -> None:
    np.testing.assert_array_equal(draw(pipe)[:1], draw(pipe, images=1))


def test_a_quantisation_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"quantization is 'int4'; expected one of None, 'int8'"):
        SDXLPipeline.from_pretrained(SMALLEST, quantization="int4")
