"""Programs that were written for diffusers' Flax pipelines, as they run here.

    .venv/bin/python -m examples.sdxl_article --model stabilityai/stable-diffusion-xl-base-1.0

Each draws with the bundled miniature where no other model is named, and writes its pictures as one
PNG. `JAX_NUM_CPU_DEVICES=8` in the environment stands in for eight accelerators.
"""
