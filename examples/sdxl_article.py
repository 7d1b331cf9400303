"""A negative prompt, bfloat16 and one picture from every device, twice.

The program of https://huggingface.co/blog/sdxl_jax, "Accelerating Stable Diffusion XL Inference
with JAX on Cloud TPU v5e": another import, the same calls.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from diffusers.utils import make_image_grid
from flax.jax_utils import replicate

from pipeline import BUNDLED
from pipeline.compat import FlaxStableDiffusionXLPipeline

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default=str(BUNDLED), help="folder or Hub id of an SDXL")
parser.add_argument("--out", default="sdxl_article.png", help="the PNG to write")
options = parser.parse_args()

pipeline, params = FlaxStableDiffusionXLPipeline.from_pretrained(options.model, split_head_dim=True)

# All but the schedule in 16 bits.
scheduler_state = params.pop("scheduler")
params = jax.tree_util.tree_map(lambda x: x.astype(jnp.bfloat16), params)
params["scheduler"] = scheduler_state

NUM_DEVICES = jax.device_count()
p_params = replicate(params)


def generate(prompt, neg_prompt, seed=33, guidance_scale=5.0, num_inference_steps=25):
    """One picture of the prompt from each device, every one from a key of its own."""
    prompt_ids = replicate(pipeline.prepare_inputs(prompt))
    neg_prompt_ids = replicate(pipeline.prepare_inputs(neg_prompt))
    rng = jax.random.split(jax.random.PRNGKey(seed), NUM_DEVICES)
    images = pipeline(
        prompt_ids,
        p_params,
        rng,
        num_inference_steps=num_inference_steps,
        neg_prompt_ids=neg_prompt_ids,
        guidance_scale=guidance_scale,
        jit=True,
    ).images
    images = images.reshape((images.shape[0] * images.shape[1],) + images.shape[-3:])
    return pipeline.numpy_to_pil(np.array(images))


start = time.time()
first = generate("photo of a young dolphin with a party hat in a swimming pool", "drawing, blurred")
print(f"compiled and drawn in {time.time() - start:.1f} s")

start = time.time()
second = generate("a llama in ancient Greece, painted in oil", "cartoon, drawing, animation")
print(f"drawn in {time.time() - start:.1f} s")

make_image_grid([*first, *second], rows=2, cols=NUM_DEVICES).save(options.out)
