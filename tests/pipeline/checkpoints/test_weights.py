"""Every tensor matches a parameter and vice versa, or loading fails with the tensor's name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from pipeline.checkpoints import weights
from pipeline.errors import CheckpointError
from tests.checkpoints import PLAIN, SMALLEST, copy_checkpoint
from tests.networks import find, load_weights, same_weights

Tensors = dict[str, np.ndarray]
PREFIX = "text_model."
EXTRA = {"encoder.extra.weight": np.zeros(3, np.float32)}


def tensor_file(folder: Path) -> Path:
    [file] = folder.glob("*.safetensors")
    return file


def change_tensors(folder: Path, change: Callable[[Tensors], Tensors | None]) -> None:
    tensors = load_file(tensor_file(folder))
    tensors = change(tensors) or tensors
    save_file(tensors, tensor_file(folder))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return copy_checkpoint(tmp_path, PLAIN)


@pytest.mark.parametrize("component", ["text_encoder", "text_encoder_2", "unet", "vae"])
def test_round_trip(tmp_path: Path, component: str) -> None:
    module = load_weights(SMALLEST, component)
    checkpoint = copy_checkpoint(tmp_path)
    for file in (checkpoint / component).glob("*.safetensors*"):
        file.unlink()
    tensors = weights.to_checkpoint(module)
    save_file(tensors, checkpoint / component / "model.safetensors")
    assert same_weights(load_weights(checkpoint, component), module)
    assert any(np.std(tensor) > 0 for tensor in tensors.values())


@pytest.mark.parametrize("component", ["text_encoder_2", "vae"])
def test_half_precision_file_to_float32(component: str) -> None:
    stored = load_file(tensor_file(PLAIN / component))
    stored.pop(f"{PREFIX}embeddings.position_ids", None)
    assert {tensor.dtype for tensor in stored.values()} == {np.dtype(np.float16)}
    loaded = weights.to_checkpoint(load_weights(PLAIN, component))
    assert {tensor.dtype for tensor in loaded.values()} == {np.dtype(np.float32)}
    for name, tensor in stored.items():
        np.testing.assert_array_equal(loaded[name.removeprefix(PREFIX)], tensor)


def test_cast_to_bfloat16_and_progress() -> None:
    told: list[int] = []
    module = find(PLAIN, "text_encoder", jnp.bfloat16).load(jnp.asarray, told.append)
    for path, leaf in nnx.to_flat_state(nnx.state(module)):
        in_norm = "norm" in str(path[-2])
        assert leaf.get_value().dtype == (jnp.float32 if in_norm else jnp.bfloat16), path
    leaves = jax.tree.leaves(nnx.state(module))
    assert sum(told) == sum(leaf.nbytes for leaf in leaves)
    assert len(told) == len(leaves)


class Copying:
    """A copy to a device that goes on until somebody waits for it."""

    running = 0

    def __init__(self, array: np.ndarray) -> None:
        self.nbytes = array.nbytes
        Copying.running += 1

    def block_until_ready(self) -> "Copying":
        Copying.running -= 1
        return self


def test_host_arrays_do_not_wait_for_their_copies() -> None:
    """Copies that run on would keep all of a model in the host's memory."""
    running = []
    find(PLAIN, "text_encoder").load(cast(Any, Copying), lambda _: running.append(Copying.running))
    assert set(running) == {0}


def test_published_text_encoder_names(checkpoint: Path) -> None:
    """Published text encoders load in spite of a name prefix and a buffer that is no weight."""
    module = load_weights(checkpoint, "text_encoder")

    def old(tensors: Tensors) -> Tensors:
        tensors = {PREFIX + name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        return {**tensors, f"{PREFIX}embeddings.position_ids": np.arange(77)[None]}

    change_tensors(checkpoint / "text_encoder", old)
    assert same_weights(load_weights(checkpoint, "text_encoder"), module)


def test_new_text_encoder_names(checkpoint: Path) -> None:
    module = load_weights(checkpoint, "text_encoder_2")

    def new(tensors: Tensors) -> Tensors:
        tensors = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        return {**tensors, "embeddings.position_ids": np.arange(77)[None]}

    change_tensors(checkpoint / "text_encoder_2", new)
    assert same_weights(load_weights(checkpoint, "text_encoder_2"), module)


def test_old_vae_attention_names(checkpoint: Path) -> None:
    module = load_weights(checkpoint, "vae")
    spelling = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def old(tensors: Tensors) -> Tensors:
        renamed = {}
        for name, tensor in tensors.items():
            for new, before in spelling.items():
                name = name.replace(f"attentions.0.{new}.", f"attentions.0.{before}.")
            renamed[name] = tensor
        assert len(renamed.keys() - tensors.keys()) == 16
        return renamed

    change_tensors(checkpoint / "vae", old)
    assert same_weights(load_weights(checkpoint, "vae"), module)


def test_tensors_that_the_config_rules_out_are_unknown(checkpoint: Path) -> None:
    """A projection in the first text encoder, which has none, is an unknown tensor."""
    added = {"text_projection.weight": np.zeros((16, 16), np.float16)}
    change_tensors(checkpoint / "text_encoder", lambda tensors: {**tensors, **added})
    with pytest.raises(CheckpointError, match=r"unknown tensor text_projection\.weight"):
        load_weights(checkpoint, "text_encoder")


def test_every_tensor_is_needed(checkpoint: Path) -> None:
    folder = checkpoint / "text_encoder_2"
    tensors = load_file(tensor_file(folder))
    for name in tensors.keys() - {f"{PREFIX}embeddings.position_ids"}:
        change_tensors(folder, lambda _, name=name: {k: t for k, t in tensors.items() if k != name})
        with pytest.raises(CheckpointError) as caught:
            load_weights(checkpoint, "text_encoder_2")
        missing = name.removeprefix(PREFIX)
        assert f"text_encoder_2: the tensor {missing} is missing" in str(caught.value)


def test_the_same_tensor_under_two_names(checkpoint: Path) -> None:
    name = "encoder.mid_block.attentions.0.to_q.weight"
    old = "encoder.mid_block.attentions.0.query.weight"
    change_tensors(checkpoint / "vae", lambda tensors: {**tensors, old: tensors[name]})
    with pytest.raises(CheckpointError, match="name the same tensor") as caught:
        load_weights(checkpoint, "vae")
    assert name in str(caught.value)
    assert old in str(caught.value)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("encoder.conv_in.weight", [8, 3, 3, 3]),
        ("decoder.mid_block.attentions.0.to_q.weight", [16, 16]),
    ],
)
def test_wrong_shape(checkpoint: Path, name: str, right: list[int]) -> None:
    wrong = [*right[:-1], right[-1] + 1]
    change = {name: np.zeros(wrong, np.float16)}
    change_tensors(checkpoint / "vae", lambda tensors: {**tensors, **change})
    with pytest.raises(CheckpointError) as caught:
        load_weights(checkpoint, "vae")
    assert f"{name} has shape {wrong}; expected {right} from" in str(caught.value)


def test_axes_are_not_guessed(checkpoint: Path) -> None:
    """A kernel with the right number of values but swapped axes is refused."""
    name = "encoder.conv_in.weight"
    change_tensors(
        checkpoint / "vae",
        lambda tensors: {**tensors, name: np.ascontiguousarray(tensors[name].swapaxes(0, 1))},
    )
    with pytest.raises(CheckpointError, match=r"conv_in\.weight has shape \[3, 8, 3, 3\]"):
        load_weights(checkpoint, "vae")


def test_an_unknown_tensor_is_refused_before_anything_is_loaded(checkpoint: Path) -> None:
    change_tensors(checkpoint / "vae", lambda tensors: {**tensors, **EXTRA})
    with pytest.raises(CheckpointError, match=r"vae: unknown tensor encoder\.extra\.weight"):
        find(checkpoint, "vae")
