"""One process: diffusers 0.39's Flax pipeline, with random weights made on the device.

    .venv-incumbent/bin/python -m benchmarks.draw_flax CONFIGS

With `--devices`, they share the pictures by the pipeline's own `pmap`. Prints its measurements as
JSON, each line with all so far.
"""

from functools import partial
from typing import Any

import diffusers
import diffusers.utils.logging
import jax
import jax.numpy as jnp
import numpy as np
import transformers.utils.logging
from flax.jax_utils import replicate
from transformers import CLIPTextConfig, FlaxCLIPTextModel, FlaxCLIPTextModelWithProjection

from benchmarks import draw_job
from benchmarks.random_weights import fill

PACKAGES = ("diffusers", "flax", "jax", "jaxlib", "transformers")
TEXT_ENCODERS = {
    "text_encoder": FlaxCLIPTextModel,
    "text_encoder_2": FlaxCLIPTextModelWithProjection,
}


def main() -> None:
    """Measure, and print the results."""
    options = draw_job.read_arguments("draw_flax")
    count = options.devices or 1
    jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices()[:count]
    report = draw_job.Report(
        provider="diffusers 0.39, Flax",
        device=devices[0].device_kind,
        devices=count,
        versions=draw_job.versions(PACKAGES),
    )
    pipeline, shapes = build(options.configs, options.dtype)
    params = fill(shapes, 0)
    params["scheduler"] = pipeline.scheduler.create_state()
    params = replicate(params, devices)
    words = draw_job.config(options.configs, "text_encoder/config.json")["vocab_size"]
    shape = (count, options.images // count, 2, 77)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, words, shape, np.int32))
    keys = jax.random.split(jax.random.PRNGKey(0), count)

    # The same call as in the pipeline's own pmap.
    @partial(jax.pmap, static_broadcasted_argnums=0, devices=devices)
    def generate(latent: bool, params: Any, ids: jax.Array, key: jax.Array) -> jax.Array:
        size = (options.pixels, options.pixels)
        scale = draw_job.GUIDANCE_SCALE
        arguments = (ids, params, key, options.steps, *size, scale, None, ids)
        return pipeline._generate(*arguments, return_latents=latent)

    def draw(latent: bool) -> np.ndarray:
        return np.asarray(generate(latent, params, ids, keys))

    draw_job.measure_requests(report, partial(draw, False), partial(draw, True), options)
    memory = (devices[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6
    report.add(peak_memory_mb=memory)


def build(configs: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    """Build the pipeline from a folder with a checkpoint's JSON files, to compute in `dtype`.

    Returns:
        The pipeline without tokenizers, because `_generate` takes token ids, and its parameters as
        shapes.
    """
    compute_dtype, read = jnp.dtype(dtype), partial(draw_job.config, configs)
    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
    parts = {
        name: kind(
            CLIPTextConfig(**read(f"{name}/config.json")),
            dtype=compute_dtype,
            _do_init=False,
        )
        for name, kind in TEXT_ENCODERS.items()
    }
    unet = diffusers.FlaxUNet2DConditionModel.from_config(
        read("unet/config.json"), dtype=compute_dtype, split_head_dim=True
    )
    vae = diffusers.FlaxAutoencoderKL.from_config(read("vae/config.json"), dtype=compute_dtype)
    scheduler = diffusers.FlaxEulerDiscreteScheduler.from_config(
        read("scheduler/scheduler_config.json")
    )
    pipeline = diffusers.FlaxStableDiffusionXLPipeline(
        **parts, unet=unet, vae=vae, scheduler=scheduler, tokenizer=None, tokenizer_2=None
    )
    key = jax.random.key(0)
    shapes = {
        name: jax.eval_shape(lambda part=part: part.init_weights(key, (1, 77)))
        for name, part in parts.items()
    }
    for name, part in (("unet", unet), ("vae", vae)):
        shapes[name] = jax.eval_shape(lambda part=part: part.init_weights(key))
    return pipeline, {
        name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, compute_dtype), tree)
        for name, tree in shapes.items()
    }


if __name__ == "__main__":
    main()
