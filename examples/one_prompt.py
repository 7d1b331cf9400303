"""One prompt on all devices: the same words, another key and so another picture on each.

The first half of diffusers' guide to JAX and Flax,
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
parser.add_argument("--out", default="one_prompt.png", help="the PNG to write")
options = parser.parse_args()

dtype = jnp.bfloat16
pipeline, params = FlaxStableDiffusionPipeline.from_pretrained(
    options.model,
    revision="bf16",
    dtype=dtype,
)

prompt = "film still of a guitarist on a dark stage, close up, split lighting"
prompt = [prompt] * jax.device_count()
prompt_ids = pipeline.prepare_inputs(prompt)

p_params = replicate(params)
prompt_ids = shard(prompt_ids)

rng = jax.random.PRNGKey(0)
rng = jax.random.split(rng, jax.device_count())

images = pipeline(prompt_ids, p_params, rng, jit=True)[0]

images = images.reshape((images.shape[0] * images.shape[1],) + images.shape[-3:])
images = pipeline.numpy_to_pil(images)
make_image_grid(images, rows=1, cols=len(images)).save(options.out)
