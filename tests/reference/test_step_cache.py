"""Step caching: agreement with DeepCache on torch's UNet, in whole pipelines."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
import torch

from pipeline import SDXLPipeline
from tests.checkpoints import EXECUTABLES, GOLDEN
from tests.reference import torch_reference
from tests.reference.tiny_checkpoints import Pipeline, load
from tools.agreement import relative_error

LATENTS_BOUND = 1e-4
PICTURE_BOUND = 1 / 255
PROMPTS = ["a red star on a blue background", "night, light and a soft outline!"]
STEPS = 8


@contextmanager
def deep_cache(theirs: Pipeline, interval: int) -> Iterator[None]:
    """Let the UNet use features of an earlier evaluation, as the package DeepCache does.

    The features are those of its branch 0: the input of the last up block's last ResNet, without
    the skip beside it. The UNet itself still runs as a whole.
    """
    last = theirs.unet.up_blocks[-1].resnets[-1]
    width = theirs.unet.config.block_out_channels[0]
    features: list[torch.Tensor] = []
    count = 0

    def replaced(_: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal count
        x, *rest = given
        if count % interval == 0:
            features[:] = [x[:, :width]]
        count += 1
        return torch.cat([*features, x[:, width:]], dim=1), *rest

    hook = last.register_forward_pre_hook(replaced)
    yield
    hook.remove()
    assert count >= STEPS  # one more with PNDM


@pytest.mark.parametrize("name", ["plain", "sd_1"])
def test_pictures_agree(name: str) -> None:
    folder = GOLDEN / name / "checkpoint"
    theirs = load(folder, "fp16" if list(folder.glob("unet/*.fp16*")) else None)
    ours = SDXLPipeline.from_pretrained(
        folder,
        images_per_request=2,
        devices=jax.devices()[:1],
        step_cache=True,
        cache_dir=EXECUTABLES,
    )
    unet, last = ours._config.networks["unet"], []
    noise = np.random.default_rng(12).standard_normal(
        (2, *unet.sample_size, unet.in_channels), dtype=np.float32
    )
    drawn = []
    for interval in (1, 2, 3):
        with deep_cache(theirs, interval):
            expected = torch_reference.sample(theirs, PROMPTS, None, noise, 5.0, STEPS)
        images = ours.generate(
            PROMPTS,
            num_inference_steps=STEPS,
            latents=noise,
            output_type="np",
            on_step=lambda *given: last.append(given[-1]),
            cache_interval=interval,
        ).images
        assert relative_error(np.asarray(last[-1]), expected.latents) <= LATENTS_BOUND
        assert np.abs(images - expected.images).max() <= PICTURE_BOUND
        drawn.append(expected.latents)
    assert min(relative_error(each, drawn[0]) for each in drawn[1:]) > 10 * LATENTS_BOUND
