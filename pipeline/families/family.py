"""Model families, and the configuration and architecture of a checkpoint that belongs to one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx
from jax.typing import DTypeLike

from pipeline.errors import InputError
from pipeline.models.clip_config import SafetyCheckerConfig, TextEncoderConfig
from pipeline.models.vae_config import TinyVAEConfig
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
        dtypes: its dtype by the name of the pipeline's, where it is another.
        fit: returns the configuration of a network in a single file. The arguments are the
            configuration of a published network of its kind, and the shapes of the file's tensors
            by their names in diffusers' layout, from which the sizes are taken. None for a network
            that is in no single file.
        hint: advice to add to an error about an optional network, such as how to leave it out.
        int8_layers: returns, from its configuration, a pattern of the layers to quantise; see
            `pipeline.models.quantized.quantize`. None for a network that never is.
    """

    name: str
    class_name: str
    read: Callable[[Path], Any]
    make: Callable[..., nnx.Module]
    tokenizer: str | None = None
    dtypes: Mapping[str, DTypeLike] = field(default_factory=dict)
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


class StepCache(NamedTuple):
    """How a step can use deep features of an earlier one.

    Attributes:
        predict: `(networks, latents, timesteps, context, deep, shallow) -> (prediction, deep)`:
            what `Architecture.predict` does, from cached deep features where `shallow`, `[B]` bool,
            is True, and with new ones elsewhere; if all are shallow, the deep part does not run.
            Returns the deep features that were used, too. They are `[B, ...]` in the networks'
            dtype.
        shape: `(height, width) -> (h, w, C)`: the shape of a picture's deep features, from its
            height and width in pixels.
    """

    predict: Computation
    shape: Callable[[int, int], tuple[int, int, int]]


class Control(NamedTuple):
    """How a network of its own guides the denoiser, by residuals that are added to its features.

    Attributes:
        hint: `(networks, images, kinds, weights) -> hints`: what the network makes of pictures to
            follow, `[B, H, W, 3]` float32, before it knows any latents: `[B, h, w, C]`. `kinds` are
            `[B]` int32, the rows of `UNION_TYPES`, and `weights` `[B]` float32, both for networks
            of the union kind. The hints of several pictures are summed up.
        condition: does what `Architecture.condition` does. A last argument, `[B, T]` float32, has 1
            for each of `UNION_TYPES` that the hints show, and 0 for the others.
        predict: `(networks, latents, timesteps, context, hints) -> residuals`, `[B, h, w, C]` for
            each place.
        shapes: `(height, width) -> ((h, w, C), ...)`: the shapes of a picture's residuals, from its
            height and width in pixels.
        with_residuals: `(context, residuals) -> context`: lets `Architecture.predict` add residuals
            `[H, B, h, w, C]`.
    """

    hint: Computation
    condition: Computation
    predict: Computation
    shapes: Callable[[int, int], tuple[tuple[int, int, int], ...]]
    with_residuals: Callable[..., Any]


@dataclass(frozen=True)
class Architecture:
    """The functions of a checkpoint's networks: all that programs and drawings ask of a family.

    Fields that may be None are capabilities that not every model has.

    Attributes:
        encode: `(networks, input_ids, zeroed, weights, clip_skip) -> embeds`. The token ids are
            `[H, B, L]` int32 for each text encoder, of which each has its own L, for H halves of
            guidance; where there are two, the negative prompts come first. `zeroed` is `[H, B]`
            bool: whether to replace a prompt's embeddings with zeros. `weights` are how much each
            token counts, like the ids but float32, or None for 1. `clip_skip` is `[H, B]` int32,
            or None where `max_clip_skip` is 0; see `CLIPTextEncoder`. The embeddings are any
            structure of arrays `[H, B, ...]`.
        condition: `(networks, embeds, size, is_negative, guidance) -> context`. `size` is the
            picture's height and width in pixels, `[2]` float32. `is_negative` is `[H]` bool:
            whether a half of guidance is that of the negative prompts. `guidance` is `[B]` float32,
            the guidance scale minus 1, for networks that take it as an input. The context is any
            structure of arrays `[H, B, ...]` that stay the same while the prompts do.
        predict: `(networks, latents, timesteps, context) -> prediction`. The latents `[B, h, w, C]`
            are scaled for the step's noise level, the timesteps are `[B]` float32, the context's
            arrays are `[B, ...]`. The prediction is `[B, h, w, C]` float32.
        decode: `(networks, latents) -> pictures`: `[B, h, w, C]` float32 to `[B, H, W, 3]` in 0..1.
        encode_image: `(networks, images) -> latents`: `[B, H, W, 3]` float32 in 0..1 to the mean
            `[B, h, w, C]` float32 of their latents, which `decode` turns back into the pictures.
        latents_shape: `(height, width) -> (h, w, C)`: the shape of a picture's latents, from its
            height and width in pixels.
        size_multiple: the number of pixels of which both sides of a picture must be multiples.
        default_size: the default height and width in pixels.
        needs_image: whether it goes on from a picture or from latents, and draws nothing from noise
            alone.
        max_clip_skip: the largest `clip_skip`; 0 if `encode` takes none.
        embeds_guidance: whether a network takes the guidance scale as an input, so that no negative
            prompt is predicted for.
        tiny_decode: `decode` by the tiny VAE beside the checkpoint.
        step_cache: how a step can use deep features of an earlier one.
        with_chunks: `(context, room, chunks) -> context`: gives a context of one chunk room for
            `room` chunks. Its arrays with tokens get a third axis for the chunks. `chunks`,
            `[H, B]` int32, is the number of chunks that count in each prompt. None if prompts
            have only one chunk.
        with_mask: `(context, mask, masked_latents) -> context`: adds to the context of a network
            that draws nothing without a mask `[B, h, w, 1]`, 1 where the picture is redrawn, and
            the latents `[B, h, w, C]` of the picture with its masked part in grey. None for
            networks that take no mask.
        control: how networks of their own guide the denoiser.
    """

    encode: Computation
    condition: Computation
    predict: Computation
    decode: Computation
    encode_image: Computation
    latents_shape: Callable[[int, int], tuple[int, int, int]]
    size_multiple: int
    default_size: tuple[int, int]
    needs_image: bool = False
    max_clip_skip: int = 0
    embeds_guidance: bool = False
    tiny_decode: Computation | None = None
    step_cache: StepCache | None = None
    with_chunks: Callable[..., Any] | None = None
    with_mask: Callable[..., Any] | None = None
    control: Control | None = None


@dataclass(frozen=True)
class Family:
    """A model family: how its checkpoints are recognised and read, and what they compute.

    Attributes:
        name: its name, for users.
        class_name: the class of diffusers' pipeline in `model_index.json`.
        other_class_names: further classes, of pipelines that draw with the same networks.
        recognise: returns whether a checkpoint's folder is of this family. It tells families with
            the same class apart: exactly one of them must return True.
        text_encoders: the text encoders, in the order in which `Architecture.encode` takes their
            tokens.
        networks: the other networks that every checkpoint has.
        check: raises CheckpointError if the components of a checkpoint do not fit together; the
            first argument is the file that describes the UNet.
        architecture: says what the networks of a checkpoint compute.
        optional: the networks that a checkpoint may have.
        apart: the networks that are published by themselves, and can be used beside a checkpoint.
        ignored: keys of `model_index.json` without effect on pictures.
        forced_scheduler_settings: settings of the scheduler that replace the file's.
        aligned_sigmas: the sigmas of the schedule "align-your-steps", falling; None if no such
            sigmas were published for the family.
        zeros_for_empty_prompt: whether the embeddings of a missing negative prompt are zeros;
            `model_index.json` may say otherwise if this is True.
    """

    name: str
    class_name: str
    recognise: Callable[[Path], bool]
    text_encoders: tuple[Network, ...]
    networks: tuple[Network, ...]
    check: Callable[[Path, "Config"], None]
    architecture: Callable[["Config"], Architecture]
    other_class_names: tuple[str, ...] = ()
    optional: tuple[Network, ...] = ()
    apart: tuple[Network, ...] = ()
    ignored: tuple[str, ...] = ()
    forced_scheduler_settings: Mapping[str, Any] = field(default_factory=dict)
    aligned_sigmas: tuple[float, ...] | None = None
    zeros_for_empty_prompt: bool = False

    @property
    def class_names(self) -> tuple[str, ...]:
        """All classes of diffusers' pipelines whose checkpoints it draws with."""
        return self.class_name, *self.other_class_names

    @property
    def all_networks(self) -> tuple[Network, ...]:
        """All networks that a pipeline may have, text encoders first."""
        return (*self.text_encoders, *self.networks, *self.optional, *self.apart)

    def network(self, name: str) -> Network:
        """Return the network of a name."""
        return next(network for network in self.all_networks if network.name == name)

    def needs(self, name: str) -> bool:
        """Return whether every checkpoint has this network."""
        return self.network(name) not in (*self.optional, *self.apart)

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
        tokens: for each text encoder, the number of tokens to which prompts are cut or padded.
        force_zeros_for_empty_prompt: whether the embeddings of a blank negative prompt are zeros.
        recipe: the settings to draw with, if it is known to be distilled.
        defaults: further defaults of requests, by name; see `ModelDefaults`.
    """

    family: Family
    networks: Mapping[str, Any]
    schedulers: Schedulers
    tokens: tuple[int, ...]
    force_zeros_for_empty_prompt: bool
    recipe: Recipe | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def architecture(self) -> Architecture:
        """The functions of the networks."""
        return self.family.architecture(self)

    @property
    def takes_mask(self) -> bool:
        """Whether a network draws only from a picture and a mask; see `Architecture.with_mask`."""
        return self.architecture.with_mask is not None

    @property
    def scheduler(self) -> SchedulerConfig:
        """Configuration of the scheduler that draws requests which name none."""
        return self.schedulers.own

    @property
    def text_encoders(self) -> dict[str, TextEncoderConfig]:
        """Configuration of the text encoders, by name."""
        return {part.name: self.networks[part.name] for part in self.family.text_encoders}

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of the token embeddings of each text encoder."""
        return tuple(encoder.hidden_size for encoder in self.text_encoders.values())

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
    multiple, default_size = config.architecture.size_multiple, config.architecture.default_size
    if config.recipe is not None and config.recipe.size is not None:
        default_size = config.recipe.size
    sizes = []
    for name, side, default in zip(("height", "width"), (height, width), default_size, strict=True):
        size = default if side is None else side
        check_count(name, size, multiple, MAX_SIDE)
        if size % multiple:
            raise InputError(f"{name} is {size}; expected a multiple of {multiple}")
        sizes.append(int(size))
    return sizes[0], sizes[1]
