"""The calls of the Flax pipelines that diffusers removed in 0.40."""
