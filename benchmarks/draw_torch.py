"""One process: torch's diffusers, with random weights made on the device.

    .venv-reference/bin/python -m benchmarks.draw_torch CONFIGS

Uses scaled dot-product attention, channels last and fused projections, and on a GPU also
`torch.compile` with `max-autotune`. The prompts' embeddings are given: text encoding, 0.06 % of the
work of SDXL, is not measured. Prints its measurements as JSON.
"""

import json
from functools import partial

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from benchmarks import draw_job

PACKAGES = ("diffusers", "torch")


def main() -> None:
    """Measure, and print the results."""
    options = draw_job.read_arguments("draw_torch")
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    with torch.device(device):
        unet = UNet2DConditionModel.from_config(
            draw_job.config(options.configs, "unet/config.json")
        )
        vae = AutoencoderKL.from_config(draw_job.config(options.configs, "vae/config.json"))
    dtype = getattr(torch, options.dtype)
    for network in (unet, vae):
        network.to(dtype=dtype, memory_format=torch.channels_last).eval()
    scheduler = EulerDiscreteScheduler.from_config(
        draw_job.config(options.configs, "scheduler/scheduler_config.json")
    )
    pipe = StableDiffusionXLPipeline(
        vae=vae,
        unet=unet,
        scheduler=scheduler,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        add_watermarker=False,
    )
    vae.config.force_upcast = False  # bfloat16 does not overflow
    pipe.set_progress_bar_config(disable=True)
    pipe.fuse_qkv_projections()
    if cuda:
        unet.forward = torch.compile(unet.forward, mode="max-autotune", fullgraph=True)
        vae.decode = torch.compile(vae.decode, mode="max-autotune", fullgraph=True)
    pooled_size = draw_job.config(options.configs, "text_encoder_2/config.json")["projection_dim"]
    make = partial(torch.randn, device=device, dtype=dtype)
    embeds = {
        f"{prefix}{name}prompt_embeds": make(options.images, *size)
        for prefix in ("", "negative_")
        for name, size in (("", (77, unet.config.cross_attention_dim)), ("pooled_", (pooled_size,)))
    }

    def draw(output_type: str) -> object:
        images = pipe(
            height=options.pixels,
            width=options.pixels,
            num_inference_steps=options.steps,
            guidance_scale=draw_job.GUIDANCE_SCALE,
            output_type=output_type,
            **embeds,
        ).images
        return images.cpu() if isinstance(images, torch.Tensor) else np.asarray(images)

    report = {
        "provider": "diffusers" + (", torch.compile" if cuda else ""),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": draw_job.versions(PACKAGES),
        **draw_job.request_figures(
            partial(draw, "np"), partial(draw, "latent"), options.steps, options.repeats
        ),
        "peak_memory_mb": torch.cuda.max_memory_allocated() / 1e6 if cuda else 0,
        "matmul_tflops": matmul_tflops(device, dtype),
    }
    print(json.dumps(report))


def matmul_tflops(device: str, dtype: torch.dtype) -> float:
    """Measure the device's own rate: it multiplies two square matrices of random values."""
    side = draw_job.MATMUL_ON_CPU if device == "cpu" else draw_job.MATMUL
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))

    def multiply() -> None:
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()

    return 2 * side**3 / draw_job.seconds(multiply, repeats=10) / 1e12


if __name__ == "__main__":
    main()
