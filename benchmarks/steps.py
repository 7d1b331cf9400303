"""`python -m benchmarks.steps`: seconds of a request to the miniature, by its steps and decoder.

The real program runs in a separate process, and requests for four pictures go to it over HTTP. With
the bundled LoRA, two and four steps draw without guidance. The tiny decoder has random weights: the
miniature has none of its own. Writes `benchmarks/results/<date>-steps.json`.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import httpx
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from benchmarks import record
from benchmarks.processes import Instance
from benchmarks.visitors import Visit, many_connections, visit
from pipeline import BUNDLED
from pipeline.checkpoints.weights import shape_rngs
from pipeline.models.tiny_vae import TinyVAE
from pipeline.models.tiny_vae_config import TinyVAEConfig
from pipeline.runtime.parameters import Parameters, inventory_of

PROMPT = "a large red star on a blue background"
RUNS: tuple[dict[str, Any], ...] = (
    {"num_inference_steps": 1, "guidance_scale": 1.0},
    {"num_inference_steps": 2, "recipe": "quick"},
    {"num_inference_steps": 4, "recipe": "quick"},
    {"num_inference_steps": 8},
    {"num_inference_steps": 25},
)
DECODERS = ("full", "tiny")
# As many channels as the miniature's VAE has at half the size of a picture, and its latents.
TINY = TinyVAEConfig(
    in_channels=3,
    latent_channels=8,
    decoder_width=16,
    decoder_blocks=(1, 1, 1, 1, 1),
    encoder_width=16,
    encoder_blocks=(1, 1, 1, 1, 1),
    scaling_factor=1.0,
)


def main() -> None:
    """Measure, and record the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="requests, after one to warm up")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = ["app.py", "--model", str(BUNDLED), "--tiny-vae", str(_write_tiny_vae(folder))]
        instance = Instance(program, folder / "log")
        instance.start()
        try:
            instance.wait_until_ready()
            found = asyncio.run(_measure(instance.url, repeats))
        finally:
            instance.stop()
    record.write("steps", {"repeats": repeats, "requests": found})


async def _measure(url: str, repeats: int) -> list[dict[str, Any]]:
    found = []
    async with many_connections() as client:
        for settings in RUNS:
            for decoder in DECODERS:
                body = {"prompt": PROMPT, **settings, "decoder": decoder}
                found.append(
                    {**settings, "decoder": decoder, **await _run(client, url, body, repeats)}
                )
    return found


async def _run(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], repeats: int
) -> dict[str, float]:
    """Return the medians of a request repeated, with another seed each time.

    `decode_share` is the share of the time after the last step: decoding, and making PNG files.
    """
    made = [await visit(client, url, body | {"seed": seed}) for seed in range(repeats + 1)][1:]
    assert all(each.outcome == "done" for each in made), made
    done = [_seconds(each, "done_s") for each in made]
    return {
        "request_seconds": _median(done),
        "first_event_seconds": _median(_seconds(each, "first_event_s") for each in made),
        "first_picture_seconds": _median(each.pictures_s[0] for each in made),
        "decode_share": _median(
            1 - _seconds(each, "last_step_s") / end for each, end in zip(made, done, strict=True)
        ),
    }


def _seconds(made: Visit, name: str) -> float:
    value = getattr(made, name)
    assert value is not None, name
    return value


def _median(values: Any) -> float:
    return round(statistics.median(values), 4)


def _write_tiny_vae(folder: Path) -> Path:
    """Write a tiny VAE with random weights, and return its folder."""
    module = nnx.eval_shape(lambda: TinyVAE(TINY, dtype=jnp.float32, rngs=shape_rngs()))
    parameters = Parameters({"vae": module})
    shapes = inventory_of(parameters.tensors(["vae"]))["vae"]
    rng = np.random.default_rng(0)
    tensors = {
        name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
    config: dict[str, Any] = {
        "_class_name": "AutoencoderTiny",
        "latent_channels": TINY.latent_channels,
    }
    for half in ("encoder", "decoder"):
        blocks = getattr(TINY, f"{half}_blocks")
        config[f"num_{half}_blocks"] = blocks
        config[f"{half}_block_out_channels"] = [getattr(TINY, f"{half}_width")] * len(blocks)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    main()
