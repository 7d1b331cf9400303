"""A prompt for every picture, shared out among the devices.

The second half of diffusers' guide to JAX and Flax,
https://huggingface.co/docs/diffusers/v0.35.1/using-diffusers/stable_diffusion_jax_how_to: another
import, the same calls.
"""

import argparse

import jax
import jax.numpy as jnp
from diffusers.utils import make_image_grid
from flax.jax_utils import replicate
from flax.training.common_utils import shard

from pipeline import BUNDLED

# The guide's own class is FlaxStableDiffusionPipeline; this one also takes an SDXL.
from pipeline.compat import FlaxDiffusionPipeline as FlaxStableDiffusionPipeline

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default=str(BUNDLED), help="folder or Hub id")
parser.add_argument("--out", default="many_prompts.png", help="the PNG to write")
options = parser.parse_args()

pipeline, params = FlaxStableDiffusionPipeline.from_pretrained(options.model, dtype=jnp.float32)
p_params = replicate(params)

# Eight, which one, two, four or eight devices can share.
prompts = [
    "a large red star on a blue background",
    "a small green circle on a white background",
    "a yellow square on a purple background",
    "an orange triangle on a black background",
    "a white star on a red background",
    "a blue circle on a yellow background",
    "a black square on a green background",
    "a purple triangle on an orange background",
]
prompt_ids = pipeline.prepare_inputs(prompts)
prompt_ids = shard(prompt_ids)
rng = jax.random.split(jax.random.PRNGKey(0), jax.device_count())

images = pipeline(prompt_ids, p_params, rng, jit=True).images
images = images.reshape((images.shape[0] * images.shape[1],) + images.shape[-3:])
images = pipeline.numpy_to_pil(images)

make_image_grid(images, 2, 4).save(options.out)
