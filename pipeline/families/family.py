"""The record of a model family, and the configuration of a checkpoint that belongs to one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from pipeline.errors import InputError
from pipeline.models.clip_config import SafetyCheckerConfig, TextEncoderConfig
from pipeline.models.tiny_vae_config import TinyVAEConfig
from pipeline.request import check_count
from pipeline.schedulers.choice import Schedulers
from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.recipes import Recipe

MAX_SIDE = 8192  # pixels


@dataclass(frozen=True)
class Network:
    """A network of a family.

    Attributes:
        name: the name of its folder in a checkpoint.
        class_name: its class in `model_index.json`.
        read: reads its configuration; the argument is the path of its `config.json`.
        make: makes the module from its configuration, with the keywords `dtype` and `rngs`.
        tokenizer: the folder of its tokenizer, if it is a text encoder.
        dtype: its dtype; the pipeline's where None.
        fit: returns its configuration with the sizes of tensors of given shapes, from that of a
            published network; the arguments are the latter and the shapes by name in diffusers'
            layout. None for a network that is in no single file.
        hint: advice to add to an error about an optional network, such as how to leave it out.
        int8_layers: returns, from its configuration, a pattern of the layers to quantise; see
            `pipeline.models.quantized.quantize`. None for a network that never is.
    """

    name: str
    class_name: str
    read: Callable[[Path], Any]
    make: Callable[..., nnx.Module]
    tokenizer: str | None = None
    dtype: DTypeLike | None = None
    fit: Callable[[Any, Mapping[str, tuple[int, ...]]], Any] | None = None
    hint: str | None = None
    int8_layers: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Computation:
    """A pure function of some of a family's networks.

    Attributes:
        networks: the names of these networks.
        run: the function. Its first argument holds these networks by name.
    """

    networks: tuple[str, ...]
    run: Callable[..., Any]


@dataclass(frozen=True)
class Family:
    """A model family: everything that the rest of the package needs to know about its models.

    Attributes:
        name: its name, for users.
        class_name: the class of diffusers' pipeline in `model_index.json`.
        other_class_names: further classes, of pipelines that draw with the same networks.
        recognise: tells families of the same class apart, from a checkpoint's folder; it must be
            True for one of them.
        text_encoders: the text encoders, in the order in which `encode` takes their tokens.
        networks: the other networks that every checkpoint has.
        optional: the networks that a checkpoint may have.
        apart: networks that no checkpoint has; they are published by themselves.
        ignored: keys of `model_index.json` without effect on pictures.
        forced_scheduler_settings: settings of the scheduler that replace the file's.
        aligned_sigmas: the sigmas of the schedule "align-your-steps", falling; None if no such
            sigmas were published for the family.
        needs_image: whether its models go on from a picture or from latents, and draw nothing from
            noise alone.
        zeros_for_empty_prompt: whether the embeddings of a missing negative prompt are zeros;
            `model_index.json` may say otherwise if this is True.
        check: raises CheckpointError if the components of a checkpoint do not fit together; the
            first argument is the file that describes the UNet.
        encode: `(networks, input_ids, zeroed, weights) -> embeds`. The token ids are
            `[H, B, E, L]` int32 for H halves of guidance and E text encoders; where there are two
            halves, the negative prompts come first. `zeroed` is `[H, B]` bool: whether to replace a
            prompt's embeddings with zeros. `weights` are how much each token counts,
            `[H, B, E, L]` float32, or None for 1. The embeddings are any structure of arrays
            `[H, B, ...]`.
        condition: `(networks, embeds, time_ids, guidance) -> context`. `time_ids` are `[H, N]`
            float32, the rows of `time_ids` below. `guidance` is `[B]` float32, the guidance scale
            minus 1, for networks that take it as an input. The context is any structure of arrays
            `[H, B, ...]` that stay the same while the prompts do.
        time_ids: `(height, width) -> numbers`: the N numbers that condition a network beside the
            prompts, such as the size in pixels, `[2, N]` float32: for the negative prompt, and for
            the prompt. N may be 0.
        with_chunks: `(context, room, chunks) -> context`: turns the context of one chunk of prompts
            into that of prompts with `room` chunks, of which `chunks`, `[H, B]` int32, count. Its
            third axis is that of the chunks where it has tokens.
        predict: `(networks, latents, timesteps, context) -> prediction`. The latents `[B, h, w, C]`
            are scaled for the step's noise level, the timesteps are `[B]` float32, the context's
            arrays are `[B, ...]`. The prediction is `[B, h, w, C]` float32.
        predict_cached: `(networks, latents, timesteps, context, deep, shallow) -> (prediction,
            deep)`: the same from cached deep features where `shallow`, `[B]` bool, is True, and
            with new ones elsewhere; if all are shallow, the deep part does not run. Returns the
            deep features that were used, too. They are `[B, ...]` in the networks' dtype.
        deep_shape: the shape `(h, w, C)` of a picture's deep features, from its height and width in
            pixels.
        decode: `(networks, latents) -> pictures`: `[B, h, w, C]` float32 to `[B, H, W, 3]` in 0..1.
        tiny_decode: the same by the tiny VAE.
        encode_image: `(networks, images) -> latents`: `[B, H, W, 3]` float32 in 0..1 to the mean
            `[B, h, w, C]` float32 of their latents, which `decode` turns back into the pictures.
        takes_mask: whether a network takes a mask and a masked picture, and draws nothing without.
        with_mask: `(context, mask, masked_latents) -> context`: adds to the context of such a
            network a mask `[B, h, w, 1]`, 1 where the picture is redrawn, and the latents
            `[B, h, w, C]` of the picture with its masked part in grey.
        latents_shape: `(h, w, C)` of a picture's latents, from its height and width in pixels.
        size_multiple: the number of pixels of which both sides of a picture must be multiples.
        own_size: the default height and width in pixels.
        embeds_guidance: whether a network takes the guidance scale as an input, so that no negative
            prompt is predicted for.
    """

    name: str
    class_name: str
    recognise: Callable[[Path], bool]
    text_encoders: tuple[Network, ...]
    networks: tuple[Network, ...]
    check: Callable[[Path, "Config"], None]
    encode: Computation
    condition: Computation
    time_ids: Callable[[int, int], np.ndarray]
    with_chunks: Callable[..., Any]
    predict: Computation
    predict_cached: Computation
    deep_shape: Callable[["Config", int, int], tuple[int, int, int]]
    decode: Computation
    tiny_decode: Computation
    encode_image: Computation
    takes_mask: Callable[["Config"], bool]
    with_mask: Callable[..., Any]
    latents_shape: Callable[["Config", int, int], tuple[int, int, int]]
    size_multiple: Callable[["Config"], int]
    own_size: Callable[["Config"], tuple[int, int]]
    embeds_guidance: Callable[["Config"], bool]
    other_class_names: tuple[str, ...] = ()
    optional: tuple[Network, ...] = ()
    apart: tuple[Network, ...] = ()
    ignored: tuple[str, ...] = ()
    forced_scheduler_settings: Mapping[str, Any] = field(default_factory=dict)
    aligned_sigmas: tuple[float, ...] | None = None
    needs_image: bool = False
    zeros_for_empty_prompt: bool = False

    @property
    def class_names(self) -> tuple[str, ...]:
        """All classes of diffusers' pipelines whose checkpoints it draws with."""
        return self.class_name, *self.other_class_names

    @property
    def all_networks(self) -> tuple[Network, ...]:
        """All networks that a pipeline may have, text encoders first."""
        return (*self.text_encoders, *self.networks, *self.optional, *self.apart)

    @property
    def quantized(self) -> frozenset[str]:
        """The names of the networks that can be quantised."""
        return frozenset(part.name for part in self.all_networks if part.int8_layers is not None)


@dataclass(frozen=True)
class Config:
    """Configuration of a whole checkpoint, and of networks that are used beside it.

    Attributes:
        family: the family that it belongs to.
        networks: the configuration of each network that is used, by name.
        schedulers: the schedulers that it can be drawn with.
        tokens: the number of tokens to which every prompt is cut or padded.
        force_zeros_for_empty_prompt: whether the embeddings of a blank negative prompt are zeros.
        recipe: the settings to draw with, if it is known to be distilled.
    """

    family: Family
    networks: Mapping[str, Any]
    schedulers: Schedulers
    tokens: int
    force_zeros_for_empty_prompt: bool
    recipe: Recipe | None = None

    @property
    def embeds_guidance(self) -> bool:
        """Whether a network takes the guidance scale as an input; see `Family.embeds_guidance`."""
        return self.family.embeds_guidance(self)

    @property
    def takes_mask(self) -> bool:
        """Whether a network draws only from a picture and a mask; see `Family.takes_mask`."""
        return self.family.takes_mask(self)

    @property
    def scheduler(self) -> SchedulerConfig:
        """Configuration of the scheduler that draws requests which name none."""
        return self.schedulers.own

    @property
    def text_encoders(self) -> dict[str, TextEncoderConfig]:
        """Configuration of the text encoders, by name."""
        return {part.name: self.networks[part.name] for part in self.family.text_encoders}

    @property
    def tokenizers(self) -> dict[str, int]:
        """Maximum number of tokens of each tokenizer's text encoder, by the tokenizer's folder."""
        return {
            part.tokenizer: self.networks[part.name].max_position_embeddings
            for part in self.family.text_encoders
            if part.tokenizer is not None
        }

    @property
    def hints(self) -> dict[str, str]:
        """Advice for errors about a network, by name."""
        return {part.name: part.hint for part in self.family.all_networks if part.hint}

    @property
    def safety_checker(self) -> SafetyCheckerConfig | None:
        """Configuration of the safety checker; pictures are not checked where it is None."""
        return self.networks.get("safety_checker")

    @property
    def tiny_vae(self) -> TinyVAEConfig | None:
        """Configuration of the tiny VAE; None where there is none."""
        return self.networks.get("tiny_vae")


def image_size(config: Config, height: int | None, width: int | None) -> tuple[int, int]:
    """Return the pictures' height and width in pixels, by default the checkpoint's own.

    Raises:
        InputError: if a side is too large, or not a multiple of the factor by which the networks
            shrink it.
    """
    multiple, own = config.family.size_multiple(config), config.family.own_size(config)
    if config.recipe is not None and config.recipe.size is not None:
        own = config.recipe.size
    sizes = []
    for name, given, default in zip(("height", "width"), (height, width), own, strict=True):
        size = default if given is None else given
        check_count(name, size, multiple, MAX_SIDE)
        if size % multiple:
            raise InputError(f"{name} is {size}; expected a multiple of {multiple}")
        sizes.append(int(size))
    return sizes[0], sizes[1]
