"""The calls of diffusers' Flax pipelines, which its version 0.40 removed, on this sampler.

A program only has to replace its import from diffusers:

    from pipeline.compat import FlaxStableDiffusionPipeline, FlaxStableDiffusionXLPipeline
"""

from pipeline.compat.flax_pipelines import (
    FlaxDiffusionPipeline,
    FlaxStableDiffusionPipeline,
    FlaxStableDiffusionXLPipeline,
)
from pipeline.compat.from_pictures import (
    FlaxStableDiffusionImg2ImgPipeline,
    FlaxStableDiffusionInpaintPipeline,
)

__all__ = [
    "FlaxDiffusionPipeline",
    "FlaxStableDiffusionImg2ImgPipeline",
    "FlaxStableDiffusionInpaintPipeline",
    "FlaxStableDiffusionPipeline",
    "FlaxStableDiffusionXLPipeline",
]
