"""Textual inversion: agreement with torch's `load_textual_inversion`."""

from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file

from pipeline import SDXLPipeline
from tests.checkpoints import EXECUTABLES, GOLDEN
from tests.reference import torch_reference
from tests.reference.tiny_checkpoints import Pipeline, load
from tools.agreement import relative_error

LATENTS_BOUND = 1e-4
PICTURE_BOUND = 1 / 255
PROMPTS = ["a red <style> star on <style>, <spot> and blue", "<style>" * 30 + " star"]
NEGATIVE = ["<spot>, green", "a <style>"]
STEPS = 8


def give_to_torch(pipe: Pipeline, file: Path, token: str) -> None:
    """Load a file as diffusers' documentation says for the pipeline's kind."""
    if not hasattr(pipe, "text_encoder_2"):
        pipe.load_textual_inversion(str(file), token=token, local_files_only=True)
        return
    tensors = load_file(file)
    # Old configurations name another end token. transformers then takes the largest id for it,
    # which is an added token's; this project takes the largest one of the vocabulary.
    for module in pipe.text_encoder_2.modules():
        if hasattr(module, "eos_token_id"):
            module.eos_token_id = pipe.tokenizer_2.eos_token_id
    for key, encoder, tokenizer in (
        ("clip_l", pipe.text_encoder, pipe.tokenizer),
        ("clip_g", pipe.text_encoder_2, pipe.tokenizer_2),
    ):
        pipe.load_textual_inversion(
            tensors[key], token=token, text_encoder=encoder, tokenizer=tokenizer
        )


def written(folder: Path, pipe: SDXLPipeline, name: str, count: int) -> Path:
    rng = np.random.default_rng([count, 6])
    widths = [encoder.hidden_size for encoder in pipe._config.text_encoders.values()]
    keys = ("clip_l", "clip_g") if len(widths) == 2 else (f"<{name}>",)
    rows = [0.5 * rng.standard_normal((count, width), dtype=np.float32) for width in widths]
    file = folder / f"{name}.safetensors"
    save_file(dict(zip(keys, rows, strict=True)), file)
    return file


@pytest.mark.parametrize("name", ["sd_1", "sd_2", "plain", "three_levels"])
def test_pictures_agree(name: str, tmp_path: Path) -> None:
    folder = GOLDEN / name / "checkpoint"
    variant = "fp16" if list(folder.glob("unet/*.fp16*")) else None
    theirs = load(folder, variant)
    ours = SDXLPipeline.from_pretrained(
        folder, images_per_request=2, devices=jax.devices()[:1], cache_dir=EXECUTABLES
    )
    for word, count in (("style", 3), ("spot", 1)):
        file = written(tmp_path, ours, word, count)
        give_to_torch(theirs, file, f"<{word}>")
        ours.load_embedding(file)
    unet = ours._config.networks["unet"]
    rng = np.random.default_rng(6)
    noise = rng.standard_normal((2, *unet.sample_size, unet.in_channels), dtype=np.float32)
    expected = torch_reference.sample(theirs, PROMPTS, NEGATIVE, noise, 5.0, STEPS)
    latents, images = (
        ours.generate(
            PROMPTS, NEGATIVE, 5.0, num_inference_steps=STEPS, latents=noise, output_type=kind
        ).images
        for kind in ("latent", "np")
    )
    assert relative_error(latents, expected.latents) <= LATENTS_BOUND
    assert np.abs(images - expected.images).max() <= PICTURE_BOUND
    plain = [text.replace("<", "").replace(">", "") for text in PROMPTS]
    for word in ("style", "spot"):
        ours.unload_embedding(word)
    without = ours.generate(
        plain, num_inference_steps=STEPS, latents=noise, output_type="latent"
    ).images
    assert relative_error(without, expected.latents) > 0.001
