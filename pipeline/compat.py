"""The calls of diffusers' Flax pipelines, which its version 0.40 removed, on this sampler.

    from pipeline.compat import FlaxStableDiffusionXLPipeline

in place of the import from diffusers is all that changes in a program: the same keys give the same
pictures. The interface is that of diffusers 0.39, https://github.com/huggingface/diffusers; the
programs in examples/ use it.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from diffusers.utils import pil_utils
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from PIL import Image

from pipeline import sampler
from pipeline.config import Config, read_config
from pipeline.errors import CheckpointError, InputError
from pipeline.hub import fetch
from pipeline.pipeline import (
    blueprints,
    check_count,
    image_size,
    load_networks,
    load_tokenizers,
    network_dtype,
)
from pipeline.scheduler import make_schedule
from pipeline.tokenizer import Tokenizers

# Branches with the main branch's weights in Flax's own format, which is not read here.
FLAX_BRANCHES = ("flax", "bf16")
# The arguments of `_generate`, counted from 0, that are not arrays.
STATIC = (3, 4, 5, 9)

Params = Mapping[str, Any]

log = logging.getLogger(__name__)


class Output(NamedTuple):
    """What a call gives: `images` `[batch, H, W, 3]` float32 in 0..1, or the latents asked for.

    With `jit` there is an axis of devices in front.
    """

    images: Array


class FlaxDiffusionPipeline:
    """What the pipelines share. Made by `from_pretrained`, which returns the checkpoint's own kind.

    It holds no parameters: every call is given them.
    """

    def __init__(self, config: Config, tokenizers: Tokenizers):
        self._config = config
        self._tokenizers = tokenizers
        self._blueprints = blueprints(config)
        self._on_one_device = jax.jit(self._generate, static_argnums=STATIC)
        self._on_each_device = jax.pmap(self._generate, static_broadcasted_argnums=STATIC)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        revision: str | None = None,
        dtype: DTypeLike | None = None,
        variant: str | None = None,
        from_pt: bool = False,
        split_head_dim: bool = False,
        use_memory_efficient_attention: bool = False,
    ) -> tuple[Self, dict[str, Any]]:
        """Loads a checkpoint; nothing is compiled yet.

        Args:
            model: a folder in diffusers' layout, or an id on the Hub.
            revision: a branch, tag or commit on the Hub. "flax" and "bf16", which have weights
                in Flax's own format, mean the main branch.
            dtype: of the parameters; float32 where None.
            variant: without effect, as are the next three: safetensors in float32 are read, or
                in float16 where 16 bits are asked for and they are there, and attention is done
                in the way that suits the device.
            from_pt: without effect.
            split_head_dim: without effect.
            use_memory_efficient_attention: without effect.

        Returns:
            The pipeline, and its parameters: a nested dict of NumPy arrays, for each network
            under its folder's name. What is drawn is computed in their dtype. "scheduler" is
            there, and empty: a schedule follows from the checkpoint and the number of steps.

        Raises:
            CheckpointError: the checkpoint is missing, damaged, not supported or of another kind.
            InputError: dtype is not supported.
        """
        if revision in FLAX_BRANCHES:
            log.warning("%s: the main branch is read in place of %r", model, revision)
            revision = None
        dtype = network_dtype(jnp.float32 if dtype is None else dtype, jax.devices())
        checkpoint = fetch(str(model), revision, prefer_fp16=dtype.itemsize == 2)
        config = read_config(checkpoint.folder)
        kind = FlaxStableDiffusionXLPipeline
        if not issubclass(kind, cls):
            raise CheckpointError(f"{model}: is for {kind.__name__}, not for {cls.__name__}")
        tokenizers = load_tokenizers(checkpoint.folder, config)
        networks = load_networks(checkpoint.folder, config, dtype, place=_keep)
        params = {name: _to_dict(network) for name, network in vars(networks).items()}
        return kind(config, tokenizers), {**params, "scheduler": {}}

    def __call__(self, *arguments: Any, **options: Any) -> Output:
        """Draws a picture for each prompt; the arguments are those of the checkpoint's kind."""
        raise NotImplementedError

    def prepare_inputs(self, prompt: str | list[str]) -> Array:
        """The prompts' `input_ids`, int32, B of them; `[B, 2, L]` for both encoders of SDXL."""
        if not isinstance(prompt, str | list):
            raise InputError(f"prompt is {type(prompt).__name__}; expected a str or a list of str")
        ids, _ = self._tokenizers.tokenize([prompt] if isinstance(prompt, str) else prompt)
        return jnp.asarray(ids)

    @staticmethod
    def numpy_to_pil(images: ArrayLike) -> list[Image.Image]:
        """Pictures `[..., H, W, 3]` or one `[H, W, 3]`, in 0..1."""
        return pil_utils.numpy_to_pil(np.asarray(images))

    def _draw(
        self,
        jit: bool,
        prompt_ids: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int,
        height: int | None,
        width: int | None,
        guidance_scale: ArrayLike,
        latents: ArrayLike | None,
        neg_prompt_ids: ArrayLike | None,
        return_latents: bool = False,
    ) -> Array:
        """`_generate`, compiled, on one device or with `jit` on each."""
        networks = {name: params[name] for name in self._blueprints if name in params}
        guidance = np.asarray(guidance_scale, np.float32)
        if jit and guidance.ndim == 0:
            guidance = np.full(np.shape(prompt_ids)[:1], guidance)
        if jit:
            _check_devices(
                prompt_ids=prompt_ids,
                params=networks,
                prng_seed=prng_seed,
                guidance_scale=guidance,
                latents=latents,
                neg_prompt_ids=neg_prompt_ids,
            )
        generate = self._on_each_device if jit else self._on_one_device
        return generate(
            prompt_ids,
            networks,
            prng_seed,
            num_inference_steps,
            *image_size(self._config, height, width),
            guidance,
            latents,
            neg_prompt_ids,
            return_latents,
        )

    def _generate(
        self,
        prompt_ids: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int = 50,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: ArrayLike = 7.5,
        latents: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
        return_latents: bool = False,
    ) -> Array:
        """What one device draws: pictures `[B, H, W, 3]`, or latents `[B, C, h, w]`.

        Programs map this themselves (`jax.pmap(pipeline._generate, ...)`), so the order of the
        arguments is part of the interface.
        """
        networks = self._networks(params)
        size = image_size(self._config, height, width)
        ids = self._checked_ids("prompt_ids", prompt_ids)
        config = self._config.scheduler
        check_count("num_inference_steps", num_inference_steps, 1, config.num_train_timesteps)
        schedule = make_schedule(config, num_inference_steps)
        noise = self._noise(len(ids), size, prng_seed, latents)
        negative, zero = self._negative(len(ids), neg_prompt_ids)
        conditioning = sampler.encode(
            networks["text_encoder"],
            networks["text_encoder_2"],
            jnp.stack([negative, ids]),
            jnp.full(len(ids), zero),
            size,
        )
        drawn = sampler.denoise(
            networks["unet"],
            config,
            noise * schedule.init_noise_sigma,
            conditioning,
            jnp.asarray(schedule.timesteps),
            jnp.asarray(schedule.sigmas),
            _scalar("guidance_scale", guidance_scale),
            jnp.int32(0),
            jnp.int32(num_inference_steps),
        )
        if return_latents:
            return drawn.transpose(0, 3, 1, 2)  # [B, C, h, w]
        images, _ = sampler.decode(networks["vae"], drawn)
        return images

    def _networks(self, params: Params) -> dict[str, Any]:
        missing = [name for name in self._blueprints if name not in params]
        if missing:
            raise InputError(f"params lack {missing[0]!r}; pass on all that from_pretrained gave")
        return {name: _fill(name, make, params[name]) for name, make in self._blueprints.items()}

    def _checked_ids(self, name: str, given: ArrayLike, batch: int | None = None) -> Array:
        """As `[B, 2, L]` int32."""
        ids = jnp.asarray(given)
        row = (2, self._tokenizers.first.length)
        if ids.shape[1:] != row or batch not in (None, len(ids)):
            right = ", ".join(map(str, ("B" if batch is None else batch, *row)))
            raise InputError(
                f"{name} are {list(ids.shape)} on each device; expected [{right}], from"
                " prepare_inputs"
            )
        return ids.astype(jnp.int32)

    def _negative(self, batch: int, given: ArrayLike | None) -> tuple[Array, bool]:
        """Negative ids `[B, 2, L]`, and whether their embeddings count as zero."""
        if given is not None:
            return self._checked_ids("neg_prompt_ids", given, batch), False
        return jnp.zeros((batch, 2, self._tokenizers.first.length), jnp.int32), True

    def _noise(
        self, batch: int, size: tuple[int, int], key: Any, latents: ArrayLike | None
    ) -> Array:
        """Standard normal noise `[B, h, w, C]` float32, in the old order `[B, C, h, w]` till here.

        One key for the whole batch.
        """
        factor = self._config.vae.scale_factor
        channels = self._config.unet.in_channels
        shape = (batch, channels, size[0] // factor, size[1] // factor)
        if latents is None:
            latents = jax.random.normal(key, shape, jnp.float32)
        latents = jnp.asarray(latents)
        if latents.shape != shape:
            raise InputError(
                f"latents are {list(latents.shape)} on each device; expected {list(shape)}"
            )
        return latents.astype(jnp.float32).transpose(0, 2, 3, 1)


class FlaxStableDiffusionXLPipeline(FlaxDiffusionPipeline):
    """Stable Diffusion XL."""

    def __call__(
        self,
        prompt_ids: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int = 50,
        guidance_scale: ArrayLike = 7.5,
        height: int | None = None,
        width: int | None = None,
        latents: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
        *,
        output_type: str | None = None,
        jit: bool = False,
    ) -> Output:
        """Draws a picture for each prompt. A new shape or number of steps compiles.

        With `jit` every array, those of `params` too, has an axis of D devices in front (flax's
        `replicate` and `shard` make it), and every device draws its part.

        Args:
            prompt_ids: `[B, 2, L]`, from `prepare_inputs`.
            params: from `from_pretrained`.
            prng_seed: a key; with `jit` one for each device.
            num_inference_steps: steps of the schedule.
            guidance_scale: 1 and below means no guidance. A number, or with `jit` an array `[D]`
                or `[D, 1]`.
            height: in pixels; the checkpoint's own where None.
            width: the same.
            latents: `[B, C, h, w]` float32 standard normal noise, instead of the key's.
            neg_prompt_ids: `[B, 2, L]`; without them the embeddings are zero.
            output_type: "latent" for latents `[B, C, h, w]` float32 instead of pictures.
            jit: draw on several devices. On one device the program is compiled as well.

        Raises:
            InputError: an argument cannot be used; the message names it.
        """
        return Output(
            self._draw(
                jit,
                prompt_ids,
                params,
                prng_seed,
                num_inference_steps,
                height,
                width,
                guidance_scale,
                latents,
                neg_prompt_ids,
                return_latents=output_type == "latent",
            )
        )


def _keep(array: np.ndarray) -> Any:
    """Leaves parameters on the host, where they take no room that `replicate` will need."""
    return array


def _to_dict(network: nnx.Module) -> dict[str, Any]:
    """Parameters by the names of the modules that they are in, list indices being names too."""
    flat = nnx.to_flat_state(nnx.state(network, nnx.Param))
    return unflatten_dict({_names(path): param.get_value() for path, param in flat})


def _fill(name: str, make: Any, params: Params) -> nnx.Module:
    """The reverse of `_to_dict`: the network with these parameters, computing in their dtype."""
    given: dict[tuple[str, ...], Any] = dict(flatten_dict(params))
    dtypes = {jnp.dtype(leaf.dtype) for leaf in given.values()}
    if dtypes not in ({jnp.dtype(jnp.float32)}, {jnp.dtype(jnp.bfloat16)}):
        found = " and ".join(sorted(map(str, dtypes)))
        right = "one dtype for all, float32 or bfloat16"
        raise InputError(f"params[{name!r}] are {found}; expected {right}")
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(*dtypes)))
    flat = dict(nnx.to_flat_state(state))
    for path, param in flat.items():
        names = _names(path)
        value = given.pop(names, None)
        if value is None or value.shape != param.shape:
            found = "is missing" if value is None else f"is {list(value.shape)}"
            raise InputError(
                f"params[{name!r}]: {'.'.join(names)} {found}; expected {list(param.shape)} on each"
                " device: are these another model's, or with the wrong number of axes?"
            )
        flat[path] = param.replace(value)
    for names in given:
        raise InputError(f"params[{name!r}]: {'.'.join(names)} is unknown; another model's?")
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(str(part) for part in path)


def _scalar(name: str, value: ArrayLike) -> Array:
    array = jnp.asarray(value, jnp.float32)
    if array.size != 1:
        raise InputError(f"{name} is {list(array.shape)} on each device; expected one number")
    return array.reshape(())


def _check_devices(**arguments: Any) -> None:
    """Every array must have an axis in front, of as many devices as the prompts have."""
    devices = np.shape(arguments["prompt_ids"])[0]
    if devices > jax.local_device_count():
        present = jax.local_device_count()
        raise InputError(f"prompt_ids are for {devices} devices; there are {present}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
        if np.shape(leaf)[:1] != (devices,):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise InputError(
                f"{name} is {list(np.shape(leaf))}; with jit=True expected [{devices}, ...], an"
                " axis of devices in front: see flax.jax_utils.replicate and"
                " flax.training.common_utils.shard"
            )
