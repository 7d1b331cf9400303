"""The safety checker that Stable Diffusion 1 came with: CLIP's vision encoder and thresholds.

The checker compares a picture's embedding with the embeddings of unwanted concepts. Each concept
has its own threshold. Sources: https://github.com/huggingface/diffusers,
stable_diffusion/safety_checker.py, and Rando et al. 2022, "Red-Teaming the Stable Diffusion Safety
Filter".
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from pipeline.models.clip import EncoderLayer
from pipeline.models.clip_config import SafetyCheckerConfig, VisionEncoderConfig
from pipeline.models.layers import LayerNorm, conv, embedding, linear

CONCEPTS = 17
SPECIAL_CARE = 3
# Thresholds are lower by this for a picture near a special-care concept.
CARE = 0.01
DIGITS = 3  # decimals to which a score is rounded before it is compared


class CLIPVisionEncoder(nnx.Module):
    """CLIP's vision transformer (Radford et al. 2021), with one pooled state for each picture."""

    def __init__(self, config: VisionEncoderConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width, patch = config.hidden_size, config.patch_size
        self.class_embedding = nnx.Param(jnp.zeros(width, dtype))
        self.patch_embedding = conv(
            3,
            width,
            kernel=patch,
            stride=patch,
            padding=(0, 0),
            bias=False,
            dtype=dtype,
            rngs=rngs,
        )
        positions = 1 + (config.image_size // patch) ** 2
        self.position_embedding = embedding(positions, width, dtype=dtype, rngs=rngs)
        self.pre_layernorm = LayerNorm(width, config.layer_norm_eps)
        self.layers = nnx.List(
            EncoderLayer(config, causal=False, dtype=dtype, rngs=rngs)
            for _ in range(config.num_hidden_layers)
        )
        self.post_layernorm = LayerNorm(width, config.layer_norm_eps)

    def __call__(self, pixels: Array) -> Array:
        """Map normalised pictures `[B, S, S, 3]` to the class token's last state, `[B, D]`."""
        patches = self.patch_embedding(pixels)  # [B, S/P, S/P, D]
        batch, width = patches.shape[0], patches.shape[-1]
        first = jnp.broadcast_to(self.class_embedding.get_value(), (batch, 1, width))
        x = jnp.concatenate([first, patches.reshape(batch, -1, width)], axis=1)  # [B, 1 + N, D]
        x = self.pre_layernorm(x + self.position_embedding(jnp.arange(x.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return self.post_layernorm(x[:, 0])


class SafetyChecker(nnx.Module):
    """Classifier that flags pictures near an unwanted concept."""

    def __init__(self, config: SafetyCheckerConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width = config.projection_dim

        def param(*shape: int) -> nnx.Param:
            return nnx.Param(jnp.zeros(shape, dtype))

        self.config = config
        self.vision_model = CLIPVisionEncoder(config.vision, dtype=dtype, rngs=rngs)
        self.visual_projection = linear(
            config.vision.hidden_size, width, bias=False, dtype=dtype, rngs=rngs
        )
        self.concept_embeds = param(CONCEPTS, width)
        self.special_care_embeds = param(SPECIAL_CARE, width)
        self.concept_embeds_weights = param(CONCEPTS)  # the thresholds
        self.special_care_embeds_weights = param(SPECIAL_CARE)

    def __call__(self, pixels: Array) -> Array:
        """Return which pictures are flagged, `[B]` bool.

        `pixels` is `[B, S, S, 3]` uint8 from `moderation.prepare`.
        """
        # Scores are compared in their third decimal, so the products need full precision.
        with jax.default_matmul_precision("highest"):
            embeds = self.embed(pixels)
            special, concept = (
                _cosines(embeds, param.get_value())
                for param in (self.special_care_embeds, self.concept_embeds)
            )
        careful = _exceeded(special - self.special_care_embeds_weights.get_value())  # [B]
        margins = concept - self.concept_embeds_weights.get_value()  # [B, 17]
        return _exceeded(margins + jnp.where(careful, jnp.float32(CARE), 0)[:, None])

    def embed(self, pixels: Array) -> Array:
        """Embed pictures, `[B, S, S, 3]` uint8 -> `[B, P]`."""
        mean, std = (
            jnp.array(x, jnp.float32) for x in (self.config.image_mean, self.config.image_std)
        )
        values = (pixels.astype(jnp.float32) / 255 - mean) / std
        kernel = self.visual_projection.kernel
        return self.visual_projection(self.vision_model(values.astype(kernel.dtype)))


def _cosines(embeds: Array, concepts: Array) -> Array:
    """Return the cosine similarities `[B, C]` of embeds `[B, P]` and concepts `[C, P]`."""
    unit_embeds, unit_concepts = (
        x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        for x in (embeds, concepts)
    )
    return unit_embeds @ unit_concepts.T


def _exceeded(margins: Array) -> Array:
    """Return whether any margin is above 0, `[B, C] -> [B]`, after rounding to `DIGITS`."""
    return jnp.any(jnp.round(margins, DIGITS) > 0, axis=-1)
