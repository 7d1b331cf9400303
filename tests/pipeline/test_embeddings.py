"""Textual inversion in a pipeline: names in prompts, and what they draw."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline import CheckpointError, InputError, SDXLPipeline, metadata
from pipeline.runtime.programs import Programs
from tests.checkpoints import nothing_compiles, shared_pipeline
from tools.adapter_files import draw_adapter, to_tensors


def pictures(pipe: SDXLPipeline, *args: Any, **options: Any) -> np.ndarray:
    return pipe.generate(*args, output_type="np", **options).images


@pytest.fixture
def with_embeddings() -> Iterator[Callable[[int], SDXLPipeline]]:
    """Return a function that returns a shared pipeline, whose embeddings are unloaded later."""
    used: list[SDXLPipeline] = []

    def load(devices: int) -> SDXLPipeline:
        used.append(shared_pipeline(devices))
        return used[-1]

    yield load
    for pipe in used:
        for name in list(pipe.embeddings):
            pipe.unload_embedding(name)


def tokens_of(pipe: SDXLPipeline, text: str) -> dict[str, np.ndarray]:
    """Return the token embeddings of a text, as a textual inversion's file has them."""
    run = pipe._compiled
    networks: Any = Programs(run.target, run.parameters.networks)._networks(run.parameters.leaves)
    tables = [networks[name].token_embedding for name in pipe._config.text_encoders]
    rows = {}
    for key, tokenizer, table in zip(
        ("clip_l", "clip_g"), pipe._tokenizers.each, tables, strict=True
    ):
        tokens = tokenizer.tokenize(text)
        rows[key] = np.asarray(table(tokens.input_ids[1 : tokens.count - 1]))
    return rows


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_an_embedding_stands_for_its_vectors(
    with_embeddings: Callable[[int], SDXLPipeline], tmp_path: Path, devices: int
) -> None:
    """An embedding with the vectors of some words draws the pictures of these words."""
    pipe = with_embeddings(devices)
    words = pictures(pipe, "a red star, shiny", "a ring", seed=3)
    plain = pictures(pipe, "a style, shiny", "a ring", seed=3)
    save_file(tokens_of(pipe, "red star"), tmp_path / "style.safetensors")
    with nothing_compiles():
        assert pipe.load_embedding(tmp_path / "style.safetensors") == "style"
        for name in ("style", "<style>", "STYLE"):
            drawn = pictures(pipe, f"a {name}, shiny", "a ring", seed=3)
            np.testing.assert_array_equal(drawn, words)
        swapped = pictures(pipe, "a ring", "a style, shiny", seed=3)
        np.testing.assert_array_equal(
            swapped, pictures(pipe, "a ring", "a red star, shiny", seed=3)
        )
        # Without the name the pictures are those of before, and so they are without the embedding.
        np.testing.assert_array_equal(pictures(pipe, "a red star, shiny", "a ring", seed=3), words)
        pipe.unload_embedding("style")
        np.testing.assert_array_equal(pictures(pipe, "a style, shiny", "a ring", seed=3), plain)
    assert np.abs(words - plain).max() > 0.001


def bundle(pipe: SDXLPipeline, words: str, file: Path, form: str = "bundle_emb.{}.{}") -> Path:
    """Write a LoRA, and in its file an embedding named "my word" that stands for some words."""
    drawn = draw_adapter(pipe._adapters.inventory, "lora", 0, lambda module: "attn" in module[1])
    tensors = to_tensors(drawn, "kohya sdxl", pipe._adapters.inventory)
    vectors = {form.format("my word", key): rows for key, rows in tokens_of(pipe, words).items()}
    save_file({**tensors, **vectors}, file)
    return file


@pytest.mark.parametrize("form", ["bundle_emb.{}.{}", "bundle_emb.<{}>.string_to_param.{}"])
def test_an_embedding_in_a_loras_file_counts_with_the_lora(tmp_path: Path, form: str) -> None:
    pipe = shared_pipeline(1)
    plain = pictures(pipe, "a my word ring", seed=3)
    file, loras = bundle(pipe, "red star", tmp_path / "pixel.safetensors", form), {"pixel": 0.5}
    with nothing_compiles():
        pipe.load_lora(file)
        words = pictures(pipe, "a red star ring", seed=3, loras=loras)
        drawn = pictures(pipe, "a my word ring", seed=3, loras=loras)
        np.testing.assert_array_equal(drawn, words)
        np.testing.assert_array_equal(pictures(pipe, "a my word ring", seed=3), plain)
        shown = pipe.generate("my word", num_inference_steps=1, loras=loras).images[0]
        assert f"my word: {pipe.loras['pixel'].digest[:12]}" in shown.info[metadata.KEY]
        tagged = pipe.measure("a my word ring <lora:pixel:0.5>", "a1111")
        assert tagged == pipe.measure("a red star ring") != pipe.measure("a my word ring")
        pipe.unload_lora("pixel")
        np.testing.assert_array_equal(pictures(pipe, "a my word ring", seed=3), plain)
    assert not pipe.embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"clip_l": np.ones((1, 5), np.float32)},
            r"'clip_l' has shape \[1, 5\]; this model's text",
        ),
        ({"clip_g": None}, "have the tensors clip_l and clip_g; this file has 'clip_l'"),
        (
            {"clip_l_out": np.ones((1, 5), np.float32)},
            "this file has 'clip_g', 'clip_l', 'clip_l_o",
        ),
    ],
)
def test_an_embedding_of_a_lora_that_misfits_is_named(
    tmp_path: Path, changes: dict[str, np.ndarray | None], message: str
) -> None:
    pipe = shared_pipeline(1)
    file = bundle(pipe, "red star", tmp_path / "pixel.safetensors")
    tensors: dict[str, Any] = load_file(file)
    tensors |= {f"bundle_emb.my word.{key}": value for key, value in changes.items()}
    save_file({key: value for key, value in tensors.items() if value is not None}, file)
    with pytest.raises(CheckpointError, match=rf"pixel\.safetensors: .*{message}"):
        pipe.load_lora(file)
    assert not pipe.loras


def test_several_embeddings_and_their_hashes(
    with_embeddings: Callable[[int], SDXLPipeline], tmp_path: Path
) -> None:
    pipe = with_embeddings(1)
    for name, words in (("one", "red"), ("two", "blue star")):
        save_file(tokens_of(pipe, words), tmp_path / f"{name}.safetensors")
        pipe.load_embedding(str(tmp_path / f"{name}.safetensors"), name=f"{name}-x")
    assert {name: each.length for name, each in pipe.embeddings.items()} == {
        "one-x": pipe.measure("red").tokens - 2,
        "two-x": pipe.measure("blue star").tokens - 2,
    }
    asked = ["one-x ring", "ring", "a two-x", "two-x one-x"]
    result = pipe.generate(asked, "<two-x>", seed=1, output_type="np")
    meant = ["red ring", "ring", "a blue star", "blue star red"]
    np.testing.assert_array_equal(result.images, pictures(pipe, meant, "blue star", seed=1))
    images = pipe.generate(asked, ["", "", "one-x", "<two-x>"], num_inference_steps=1).images
    one, two = (pipe.embeddings[name].digest[:12] for name in ("one-x", "two-x"))
    found = [metadata.from_text(image.info[metadata.KEY]).ti_hashes for image in images]
    assert found == [
        *(f"one-x: {one}", None, f"two-x: {two}, one-x: {one}", f"two-x: {two}, one-x: {one}")
    ]
    assert f'TI hashes: "two-x: {two}, one-x: {one}"' in images[2].info[metadata.KEY]


def test_embeddings_that_cannot_be_used(
    with_embeddings: Callable[[int], SDXLPipeline], tmp_path: Path
) -> None:
    pipe = with_embeddings(1)
    file = tmp_path / "style.safetensors"
    save_file(tokens_of(pipe, "red"), file)
    for name in ("", "a,b", "<style>"):
        with pytest.raises(InputError, match="cannot be an embedding's name"):
            pipe.load_embedding(file, name)
    pipe.load_embedding(file)
    with pytest.raises(InputError, match="an embedding named 'style' is loaded"):
        pipe.load_embedding(file)
    with pytest.raises(InputError, match="no embedding named 'other' is loaded"):
        pipe.unload_embedding("other")
    save_file({"emb_params": np.ones((1, 8), np.float32)}, tmp_path / "old.safetensors")
    with pytest.raises(CheckpointError, match=r"old\.safetensors: .* clip_l and clip_g"):
        pipe.load_embedding(tmp_path / "old.safetensors")
    widths = [encoder.hidden_size for encoder in pipe._config.text_encoders.values()]
    rows = [np.ones((75, width), np.float32) for width in widths]
    save_file(dict(zip(("clip_l", "clip_g"), rows, strict=True)), tmp_path / "long.safetensors")
    for i in range(4):
        pipe.load_embedding(tmp_path / "long.safetensors", f"long{i}")
    with pytest.raises(InputError, match="have 300 vectors; a request can use 256"):
        pipe.generate([f"long{i}" for i in range(4)])
    # A vector of the prompt's last words is cut off, as other tokens are.
    result = pipe.generate("star long0", num_inference_steps=1)
    assert result.truncated == ["long0"] * 4
    assert pipe.measure("star long0").tokens > 75
