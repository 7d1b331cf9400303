"""diffusers 0.39's Flax SDXL at any size without a checkpoint.

Needs that version's environment.
"""

import json
from pathlib import Path
from typing import Any

import diffusers
import diffusers.utils.logging
import jax
import jax.numpy as jnp
import transformers.utils.logging
from transformers import CLIPTextConfig, FlaxCLIPTextModel, FlaxCLIPTextModelWithProjection

TEXT_ENCODERS = {
    "text_encoder": FlaxCLIPTextModel,
    "text_encoder_2": FlaxCLIPTextModelWithProjection,
}


def build(configs: Path, dtype: str = "bfloat16") -> tuple[Any, dict[str, Any]]:
    """Build the pipeline from a folder with a checkpoint's JSON files.

    It computes in `dtype`, and has no tokenizers: `_generate` takes token ids.

    Returns:
        The pipeline, and its parameters as shapes.
    """
    compute_dtype = jnp.dtype(dtype)
    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
    parts = {
        name: kind(CLIPTextConfig(**_read(configs, name)), dtype=compute_dtype, _do_init=False)
        for name, kind in TEXT_ENCODERS.items()
    }
    unet = diffusers.FlaxUNet2DConditionModel.from_config(
        _read(configs, "unet"), dtype=compute_dtype, split_head_dim=True
    )
    vae = diffusers.FlaxAutoencoderKL.from_config(_read(configs, "vae"), dtype=compute_dtype)
    scheduler = diffusers.FlaxEulerDiscreteScheduler.from_config(
        _read(configs, "scheduler", "scheduler_config.json")
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


def _read(configs: Path, folder: str, name: str = "config.json") -> dict[str, Any]:
    return json.loads((configs / folder / name).read_text())
