"""The miniature's ControlNet in torch's diffusers: it loads there, and draws the same pictures."""

import jax
import numpy as np
import torch
from diffusers import ControlNetModel, StableDiffusionXLControlNetPipeline
from PIL import Image

from pipeline import BUNDLED, Control, SDXLPipeline
from tests.reference import torch_reference
from tests.reference.samples import psnr
from tools.miniature.control import FOLDER, NAME
from tools.miniature.evaluate_control import examples

PROMPT = "a red star on a blue background"
STEPS = 10


def test_the_same_picture() -> None:
    [example] = examples(1, "edges")
    devices = jax.devices()[:1]
    ours = SDXLPipeline.from_pretrained(
        BUNDLED, images_per_request=1, devices=devices, controlnets={NAME: FOLDER / NAME}
    )
    network = ControlNetModel.from_pretrained(FOLDER / NAME, torch_dtype=torch.float32)
    theirs = StableDiffusionXLControlNetPipeline.from_pretrained(
        BUNDLED, controlnet=network, local_files_only=True
    )
    noise = np.random.default_rng(0).standard_normal((1, 16, 16, 8), dtype=np.float32)
    expected = theirs(
        PROMPT,
        image=torch_reference.to_torch(example.map[None].astype(np.float32) / 255),
        latents=torch_reference.to_torch(noise),
        num_inference_steps=STEPS,
        guidance_scale=5.0,
        output_type="np",
    )
    drawn = ours.generate(
        PROMPT,
        guidance_scale=5.0,
        num_inference_steps=STEPS,
        latents=noise,
        controls=[Control(NAME, Image.fromarray(example.map))],
        output_type="np",
    )
    assert psnr(drawn.images[0], expected.images[0]) >= 50
