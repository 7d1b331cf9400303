"""The calls of diffusers' Flax pipelines, which its version 0.40 removed, on this sampler.

    from pipeline.compat import FlaxStableDiffusionPipeline, FlaxStableDiffusionXLPipeline

in place of the import from diffusers is all that changes in a program.
"""

from pipeline.compat.flax_pipelines import (
    FlaxDiffusionPipeline,
    FlaxStableDiffusionPipeline,
    FlaxStableDiffusionXLPipeline,
)

__all__ = [
    "FlaxDiffusionPipeline",
    "FlaxStableDiffusionPipeline",
    "FlaxStableDiffusionXLPipeline",
]
