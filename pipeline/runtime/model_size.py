"""Sizes of a checkpoint's networks, from which a plan is made; no weights are needed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flax import nnx

from pipeline.families.family import Config
from pipeline.kernels.int8 import Quantized
from pipeline.models.clip_config import SafetyCheckerConfig

TEXT_ENCODERS, UNET, VAE, SAFETY_CHECKER = "text_encoders", "unet", "vae", "safety_checker"
TINY_VAE, CONTEXT = "tiny_vae", "context"
FLOAT32 = 4  # bytes
MERGED_AXES = 6  # of the kernels that `matmul_conv.merged_upsample_kernels` makes


class NetworkSize(NamedTuple):
    """Size of a network, or of several that run in one program.

    Attributes:
        parameters: number of elements in all weight tensors, without scales.
        tensors: the number of weight tensors.
        upsampling: number of elements in the merged upsampling kernels.
        activations: number of elements in the largest activations, per unit: per token for text
            encoders, per latent pixel of one guidance half for a UNet, per pixel for a VAE, and per
            picture for a safety checker.
        itemsize: bytes of an element that is neither of a norm nor quantised, and of an activation.
        norms: number of elements in the weight tensors of norms, which are float32.
        quantized: number of elements in the quantised weight tensors, of a byte each.
        scales: number of elements in their scales, which are float32.
    """

    parameters: int
    tensors: int
    upsampling: int
    activations: float
    itemsize: int
    norms: int = 0
    quantized: int = 0
    scales: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all weight tensors."""
        wide, narrow = self.norms + self.scales, self.parameters - self.norms - self.quantized
        return narrow * self.itemsize + wide * FLOAT32 + self.quantized


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a checkpoint's networks.

    Attributes:
        networks: by name: `TEXT_ENCODERS`, `UNET`, `VAE` and, where they are used, `TINY_VAE` and
            `SAFETY_CHECKER`. `CONTEXT` is the part of the UNet that makes its context. Its weights
            count as the UNet's, and its code as the text encoders', which it was measured with.
        scale_factor: pixels per latent pixel, along each side.
        latent_channels: number of channels of the latents.
        context: number of elements in the UNet's context, per token of one guidance half.
        embeds: number of elements in the text encoders' hidden states, likewise.
        deep: number of elements in the UNet's deep features, per latent pixel of one guidance half.
        attended: for each level of the UNet with attention, the number of latent pixels per pixel
            of that level, and the number of heads.
        embeds_guidance: whether the UNet takes the guidance scale as an input.
        decoder_attends: whether the VAE's decoder has attention.
    """

    networks: Mapping[str, NetworkSize]
    scale_factor: int
    latent_channels: int
    context: int
    embeds: int
    deep: int
    attended: tuple[tuple[int, int], ...]
    embeds_guidance: bool = False
    decoder_attends: bool = True

    @property
    def weights(self) -> int:
        """Bytes of all parameters."""
        return sum(network.bytes for network in self.networks.values())


def model_size(config: Config, networks: Mapping[str, Any]) -> ModelSize:
    """Return the sizes of the networks that `loading.trace_networks` returned."""
    family, largest = config.family, config.family.activations(config)
    encoders = [part.name for part in family.text_encoders]
    groups = {
        TEXT_ENCODERS: (encoders, largest.encode),
        UNET: (family.predict.networks, largest.predict),
        VAE: (family.decode.networks, largest.decode),
    }
    if config.tiny_vae is not None:
        groups[TINY_VAE] = (family.tiny_decode.networks, largest.tiny_decode)
    if config.safety_checker is not None:
        groups[SAFETY_CHECKER] = ([SAFETY_CHECKER], _per_checked(config.safety_checker))
    sizes = {
        name: _size([networks[part] for part in parts], elements)
        for name, (parts, elements) in groups.items()
    }
    sizes[CONTEXT] = NetworkSize(0, 0, 0, largest.context, sizes[UNET].itemsize)
    height, width = family.own_size(config)
    rows, _, channels = family.latents_shape(config, height, width)
    return ModelSize(
        sizes,
        height // rows,
        channels,
        largest.context,
        largest.embeds,
        largest.deep,
        largest.attended,
        config.embeds_guidance,
        largest.decoder_attends,
    )


def _size(networks: Iterable[Any], activations: float) -> NetworkSize:
    states = (nnx.to_flat_state(nnx.state(network)) for network in networks)
    params = [(path[-1], param) for state in states for path, param in state]
    elements = [math.prod(param.shape) for _, param in params]
    merged = sum(math.prod(param.shape) for _, param in params if len(param.shape) == MERGED_AXES)
    kernels = [own for _, param in params if isinstance(own := param.get_value(), Quantized)]
    return NetworkSize(
        sum(elements),
        len(params),
        merged,
        activations,
        itemsize=min(param.dtype.itemsize for _, param in params),
        # A norm has a bias of the scale's size.
        norms=2 * sum(math.prod(param.shape) for name, param in params if name == "scale"),
        quantized=sum(math.prod(kernel.shape) for kernel in kernels),
        scales=sum(math.prod(kernel.scale.shape) for kernel in kernels),
    )


def _per_checked(config: SafetyCheckerConfig) -> float:
    vision = config.vision
    patches = (vision.image_size // vision.patch_size) ** 2
    return (patches + 1) * vision.intermediate_size
