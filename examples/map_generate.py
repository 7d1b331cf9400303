"""The pipeline's function for one device, mapped over all devices by the program itself.

The last part of diffusers' guide to JAX and Flax,
https://huggingface.co/docs/diffusers/v0.35.1/using-diffusers/stable_diffusion_jax_how_to: another
import, the same calls. (With diffusers 0.39 this call fails: `_generate` lost its defaults.)
"""

import argparse
import time

import jax
from diffusers.utils import make_image_grid
from flax.jax_utils import replicate
from flax.training.common_utils import shard
from jax import pmap

from pipeline import BUNDLED

# The guide's own class is FlaxStableDiffusionPipeline; this one also takes an SDXL.
from pipeline.compat import FlaxDiffusionPipeline as FlaxStableDiffusionPipeline

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default=str(BUNDLED), help="folder or Hub id")
parser.add_argument("--out", default="map_generate.png", help="the PNG to write")
options = parser.parse_args()

pipeline, params = FlaxStableDiffusionPipeline.from_pretrained(options.model)
p_params = replicate(params)
prompt_ids = shard(pipeline.prepare_inputs(["a green circle"] * jax.device_count()))
rng = jax.random.split(jax.random.PRNGKey(0), jax.device_count())

p_generate = pmap(pipeline._generate)

for what in ("compiled and drawn", "drawn"):
    start = time.time()
    images = p_generate(prompt_ids, p_params, rng)
    images = images.block_until_ready()
    print(f"{what} in {time.time() - start:.1f} s: {images.shape}")

images = images.reshape((images.shape[0] * images.shape[1],) + images.shape[-3:])
images = pipeline.numpy_to_pil(images)
make_image_grid(images, rows=1, cols=len(images)).save(options.out)
