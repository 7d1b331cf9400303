"""One process: torch's diffusers, with random weights made on the device.

    .venv-reference/bin/python -m benchmarks.draw_torch CONFIGS

Uses scaled dot-product attention, channels last and fused projections. With `--compile` it is
compiled by `torch.compile`, on a GPU with `max-autotune`; with `--openvino`, its UNet runs by
OpenVINO in float32. With `--processes`, each process has a
share of the pictures and of the cores. The prompts' embeddings are given: text encoding, 0.06 % of
the work of SDXL, is not measured. Prints its measurements as JSON, each line with all so far.
"""

import multiprocessing
import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from threading import Barrier

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
PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}  # of OpenVINO, which chooses less by itself


def main() -> None:
    """Measure, and print the results."""
    options = draw_job.read_arguments("draw_torch")
    options.images //= options.processes
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(options.processes)
    others = [
        context.Process(target=work_silently, args=(options, together))
        for _ in range(options.processes - 1)
    ]
    for process in others:
        process.start()
    work(options, together)
    for process in others:
        process.join()


def work_silently(options: Namespace, together: Barrier) -> None:
    """Do what the first process does, without a report."""
    with redirect_stdout(None):
        work(options, together)


def work(options: Namespace, together: Barrier) -> None:
    """Measure one process's share; all processes begin and end each request together."""
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    if options.processes > 1:
        torch.set_num_threads(os.cpu_count() // options.processes)
    report = draw_job.Report(
        provider="diffusers"
        + ", torch.compile" * options.compile
        + ", UNet by OpenVINO" * options.openvino,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        versions=draw_job.versions(PACKAGES),
        threads=torch.get_num_threads(),
    )
    pipe, embeds = build(options, device)

    def draw(output_type: str) -> None:
        together.wait()
        images = pipe(
            height=options.pixels,
            width=options.pixels,
            num_inference_steps=options.steps,
            guidance_scale=draw_job.GUIDANCE_SCALE,
            output_type=output_type,
            **embeds,
        ).images
        images.cpu() if isinstance(images, torch.Tensor) else np.asarray(images)
        together.wait()

    draw_job.measure_requests(report, partial(draw, "np"), partial(draw, "latent"), options)
    report.add(
        peak_memory_mb=torch.cuda.max_memory_allocated() / 1e6 if cuda else 0,
        matmul_tflops=matmul_tflops(device, getattr(torch, options.dtype)),
    )


def build(options: Namespace, device: str) -> tuple[StableDiffusionXLPipeline, dict]:
    """Build the pipeline with random weights, and random embeddings of the prompts for it."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    read, dtype = partial(draw_job.config, options.configs), getattr(torch, options.dtype)
    with torch.device(device):
        unet = UNet2DConditionModel.from_config(read("unet/config.json"))
        vae = AutoencoderKL.from_config(read("vae/config.json"))
    for network in (unet, vae):
        network.to(dtype=dtype, memory_format=torch.channels_last).eval()
    pipe = StableDiffusionXLPipeline(
        vae=vae,
        unet=unet,
        scheduler=EulerDiscreteScheduler.from_config(read("scheduler/scheduler_config.json")),
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        add_watermarker=False,
    )
    vae.config.force_upcast = False  # bfloat16 does not overflow
    pipe.set_progress_bar_config(disable=True)
    pipe.fuse_qkv_projections()
    if options.compile:
        mode = "max-autotune" if device == "cuda" else "default"
        unet.forward = torch.compile(unet.forward, mode=mode, fullgraph=True)
        vae.decode = torch.compile(vae.decode, mode=mode, fullgraph=True)
    if options.openvino:
        unet.forward = by_openvino(unet.requires_grad_(False).forward)
    pooled_size = read("text_encoder_2/config.json")["projection_dim"]
    make = partial(torch.randn, device=device, dtype=dtype)
    return pipe, {
        f"{prefix}{name}prompt_embeds": make(options.images, *size)
        for prefix in ("", "negative_")
        for name, size in (("", (77, unet.config.cross_attention_dim)), ("pooled_", (pooled_size,)))
    }


def by_openvino(forward: Callable) -> Callable:
    """Return a UNet's forward pass by OpenVINO, which compiles it for the first call's shapes."""
    import openvino

    def positional(*inputs: torch.Tensor) -> torch.Tensor:
        *tensors, text_embeds, time_ids = inputs
        added = {"text_embeds": text_embeds, "time_ids": time_ids}
        return forward(*tensors, added_cond_kwargs=added, return_dict=False)[0]

    models = []

    def run(
        sample: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        added_cond_kwargs: dict[str, torch.Tensor],
        **_: object,
    ) -> tuple[torch.Tensor]:
        inputs = sample, timestep, encoder_hidden_states, *added_cond_kwargs.values()
        if not models:
            traced = torch.jit.trace(positional, inputs, check_trace=False)
            model = openvino.convert_model(traced, example_input=inputs)
            models.append(openvino.compile_model(model, "CPU", PRECISION))
        return (torch.from_numpy(models[0](inputs)[0]),)

    return run


def matmul_tflops(device: str, dtype: torch.dtype) -> float:
    """Measure the device's own rate: it multiplies two square matrices of random values."""
    side = draw_job.MATMUL_ON_CPU if device == "cpu" else draw_job.MATMUL
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))

    def multiply() -> None:
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()

    return 2 * side**3 / draw_job.measure(multiply, repeats=10).median / 1e12


if __name__ == "__main__":
    main()
