"""SDXLPipeline: the one stateful object. Text in, pictures out.

Named after the model it was made for; it draws with Stable Diffusion 1 and 2 as well.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike
from PIL import Image

from pipeline.checkpoints.folder import Checkpoint, count_parameters
from pipeline.checkpoints.source import fetch
from pipeline.errors import Cancelled, InputError
from pipeline.images import metadata, moderation, preview
from pipeline.images.screen import Screen, verdicts
from pipeline.models.config import Config, read_config
from pipeline.request import (
    MAX_IMAGES,
    Request,
    check_count,
    check_request,
    checked_latents,
    image_size,
)
from pipeline.runtime.compiled import CompiledSampler, load_kept, make_mesh, place_on
from pipeline.runtime.executable_cache import ExecutableCache
from pipeline.runtime.loading import (
    Timed,
    find_networks,
    load_networks,
    load_tokenizers,
    network_dtype,
    without_collecting_garbage,
)
from pipeline.runtime.mesh import failures_explained, find_devices, worth_a_copy, worth_bfloat16
from pipeline.runtime.programs import Networks, Shapes
from pipeline.schedulers.config import MAX_INFERENCE_STEPS, SCHEDULERS
from pipeline.schedulers.methods import Schedule, State, make_schedule
from pipeline.text.tokenizer import Tokenizers, longest, read_length

OUTPUT_TYPES = ("pil", "np", "latent")

OnStep = Callable[[int, int, Array], object]
OnPreview = Callable[[Callable[[], np.ndarray]], object]


@dataclass(frozen=True)
class Result:
    """What one request gave.

    Attributes:
        images: PIL pictures with their settings in `info`; or `[images, H, W, 3]` float32 in 0..1;
            or latents `[images, h, w, C]` float32.
        seeds: each picture's own; of variations the one that they share.
        flagged: per picture whether the safety checker, or `screen`, found something that is not
            to be shown, so that it was blurred; never for latents.
        truncated: per picture the end of its prompt that did not fit, or "".
        negative_truncated: the same for the negative prompts.
        variation_seeds: each picture's own, where they are variations of one.
        unblurred: by their indices, the PIL pictures themselves of those that `screen` flagged and
            the safety checker did not: for those who ask to see them all the same.
    """

    images: Any
    seeds: list[int]
    flagged: list[bool]
    truncated: list[str]
    negative_truncated: list[str]
    variation_seeds: list[int] | None = None
    unblurred: dict[int, Image.Image] = field(default_factory=dict)


class Length(NamedTuple):
    """Of a prompt: its tokens with start and end, as many as there can be, and what is cut off."""

    tokens: int
    limit: int
    left_out: str


class SDXLPipeline:
    """A checkpoint, compiled for one number of pictures. Made by `from_pretrained` for one size.

    One request at a time: callers with several threads keep a lock of their own.

    Attributes:
        model, revision: what is running: a folder's name or a Hub id, and its commit.
        family: "Stable Diffusion XL", or "Stable Diffusion" for its versions 1 and 2.
        safety_checker: whether the checkpoint's safety checker looks at the pictures.
        screened: whether a function of the operator's does.
        scheduler: a key of `pipeline.schedulers.config.SCHEDULERS`.
        version: JAX's, and the type of the networks' numbers: others compute other pictures.
        height, width: of the pictures, in pixels, unless a request says otherwise.
        images_per_request, num_inference_steps: pictures per call, and the default step count.
        device_kind, num_devices: what it runs on, such as "NVIDIA H200" and 1.
        compile_seconds: what getting the executables took, by "hit" or "miss" of the cache.
    """

    max_inference_steps = MAX_INFERENCE_STEPS

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: Config,
        tokenizers: Tokenizers,
        compiled: CompiledSampler,
        colours: preview.Colours,
        num_inference_steps: int,
        dtype: np.dtype,
        screen: Screen | None = None,
    ):
        self.model = checkpoint.model
        self.revision = checkpoint.revision
        self.family = "Stable Diffusion" + (" XL" if config.text_encoder_2 else "")
        self.safety_checker = config.safety_checker is not None
        self.screened = screen is not None
        self.scheduler = config.scheduler.name
        self.version = f"jax {jax.__version__}, {dtype}"
        self.height = compiled.shapes.height
        self.width = compiled.shapes.width
        self.images_per_request = compiled.shapes.images
        self.num_inference_steps = num_inference_steps
        devices = compiled.mesh.devices
        self.device_kind: str = devices.flat[0].device_kind
        self.num_devices: int = devices.size
        self.compile_seconds = compiled.compile_seconds
        self._config = config
        self._tokenizers = tokenizers
        self._compiled = compiled
        # Replaced as a whole and never changed: one thread draws while another adds a size.
        self._by_size: Mapping[tuple[int, int], CompiledSampler] = {
            (self.height, self.width): compiled
        }
        self._adding = Lock()
        self._colours = colours
        self._screen = screen

    @classmethod
    @failures_explained()
    def from_pretrained(
        cls,
        model: str | Path,
        revision: str | None = None,
        height: int | None = None,
        width: int | None = None,
        images_per_request: int = 4,
        num_inference_steps: int = 25,
        dtype: DTypeLike | None = None,
        devices: Sequence[jax.Device] | None = None,
        cache_dir: str | Path | None = None,
        scheduler: str | None = None,
        safety_checker: bool = True,
        screen: Screen | None = None,
    ) -> "SDXLPipeline":
        """Loads a checkpoint, compiles it and warms it up.

        Args:
            model: a folder in diffusers' layout, or an id on the Hub.
            revision: a branch, tag or commit on the Hub.
            height: in pixels; the checkpoint's own where None.
            width: the same.
            images_per_request: pictures that every call draws.
            num_inference_steps: the default of `generate`, 1 to 50.
            dtype: of the networks; where None bfloat16 on accelerators, and of a large checkpoint
                on a CPU with AMX or AVX512_BF16, and otherwise float32.
            devices: to run on; where None all of the default backend, but for a large checkpoint
                only the first of a CPU's.
            cache_dir: a private folder to keep compiled executables in, and what else starting
                makes; None keeps none.
            scheduler: "euler", "euler-ancestral", "ddim", "pndm" or "dpmsolver++"; the
                checkpoint's own where None.
            safety_checker: have the checkpoint's safety checker, where it has one, look at every
                picture, and blur those that it flags.
            screen: a function that is given the finished pictures of a request, as PIL pictures,
                and says of each whether to blur it. It comes beside the safety checker.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or not supported.
            DeviceError: there is no device, or it fails or has too little memory.
            InputError: an argument cannot be used.
            PermissionError: `cache_dir` is open to other users.
        """
        check_count("images_per_request", images_per_request, 1, MAX_IMAGES)
        check_count("num_inference_steps", num_inference_steps, 1, MAX_INFERENCE_STEPS)
        if scheduler is not None and scheduler not in SCHEDULERS:
            right = ", ".join(map(repr, SCHEDULERS))
            raise InputError(f"scheduler is {scheduler!r}; expected one of {right}")
        used = find_devices() if devices is None else list(devices)
        if not used:
            raise InputError("devices is empty; expected at least one")
        # The files follow from what is known before they are fetched; a CPU that is then given
        # bfloat16 for its speed reads full precision where it is offered.
        chosen = network_dtype(dtype, used)
        cache = None if cache_dir is None else ExecutableCache(Path(cache_dir))
        checkpoint = fetch(
            str(model),
            revision,
            prefer_fp16=chosen.itemsize == 2,
            scheduler=scheduler,
            safety_checker=safety_checker,
        )
        parameters = count_parameters(checkpoint)
        if dtype is None and worth_bfloat16(used[0], parameters):
            chosen = network_dtype("bfloat16", used)
        config = read_config(checkpoint.folder, scheduler, safety_checker=safety_checker)
        tokens = read_length(checkpoint.folder)
        shapes = Shapes(images_per_request, *image_size(config, height, width), tokens)
        if devices is None:
            used = worth_a_copy(used, parameters)
        mesh = make_mesh(used, images_per_request)
        tokenizers, compiled = _load(checkpoint, config, chosen, mesh, shapes, cache)
        with Timed("warmed up"):
            tokenizers.tokenize(["warm up"])
            colours = preview.fit(compiled.warm_up, (images_per_request, *compiled.latents_shape))
        return cls(
            checkpoint, config, tokenizers, compiled, colours, num_inference_steps, chosen, screen
        )

    def check_size(self, height: int, width: int) -> None:
        """Refuses, with an InputError, what `add_size` could not be asked for."""
        image_size(self._config, height, width)

    @failures_explained()
    def add_size(self, height: int, width: int) -> None:
        """Compiles for pictures of another size too, which share the networks' parameters.

        Another thread may draw meanwhile. Call `warm_up` before the first request of that size.

        Raises:
            DeviceError: there is too little memory.
            InputError: a side cannot be used.
        """
        size = image_size(self._config, height, width)
        with self._adding:
            if size not in self._by_size:
                self._by_size = {**self._by_size, size: self._compiled.resized(*size)}

    @failures_explained()
    def warm_up(self, height: int | None = None, width: int | None = None) -> None:
        """Run every program of a size once, because the first run of an executable is slow.

        `from_pretrained` has done so for the pipeline's own size. As with `generate`, nothing else
        may run on the devices meanwhile.

        Args:
            height: in pixels, as `width`: of this pipeline, or a size that was added to it.

        Raises:
            DeviceError: a device fails or has too little memory.
            InputError: the size is not one of the pipeline's.
        """
        run = self._sampler(height, width)
        run.warm_up(np.zeros((self.images_per_request, *run.latents_shape), np.float32))

    @failures_explained()
    def generate(
        self,
        prompt: str | Sequence[str],
        negative_prompt: str | Sequence[str] | None = None,
        guidance_scale: float = 5.0,
        seed: int = 0,
        num_inference_steps: int | None = None,
        latents: np.ndarray | None = None,
        output_type: str = "pil",
        on_step: OnStep | None = None,
        cancelled: Event | None = None,
        on_preview: OnPreview | None = None,
        guidance_until: float = 1.0,
        variation_seed: int = 0,
        variation_strength: float = 0.0,
        height: int | None = None,
        width: int | None = None,
    ) -> Result:
        """Draws `images_per_request` pictures. Nothing in here compiles.

        Args:
            prompt: one for all pictures, or one for each; a blank one draws whatever the model
                comes up with.
            negative_prompt: the same; a blank one counts as none.
            guidance_scale: how closely to follow the prompt; 1 and below means no guidance.
            seed: picture i is drawn from seed + i (modulo 2^32), and only from that.
            num_inference_steps: 1 to 50; the pipeline's default where None.
            latents: `[images, h, w, C]` float32 standard normal noise to start from, instead of
                the seed's; what a scheduler adds on the way is the seed's still.
            output_type: "pil", "np" (`[images, H, W, 3]` float32 in 0..1) or "latent".
            on_step: called as `on_step(step, total, latents)` after every step, step counting
                from 1, latents being the device's array `[images, h, w, C]`.
            cancelled: once set, the run stops before its next step.
            on_preview: called as `on_preview(look)` after every step but the last, following
                `on_step`. While it runs, `look()` gives `[images, h, w, 3]` uint8: how the
                pictures look so far, as small as the latents. Who does not look spends nothing.
            guidance_until: the share of the steps, 0 to 1, after which there is no guidance any
                more. Such a step is half the work, unless its halves have devices of their own.
            variation_seed: with a strength, picture i starts from the noise of `seed`, the same
                for all, turned towards that of variation_seed + i (modulo 2^32).
            variation_strength: how far, from 0, not at all, to 1, all the way.
            height: in pixels, as `width`: of this pipeline, or a size that was added to it.

        Raises:
            DeviceError: a device fails or has too little memory.
            InputError: an argument cannot be used.
            ScreenError: `screen` fails; there are no pictures then.
            Cancelled: `cancelled` was set.
        """
        steps = self.num_inference_steps if num_inference_steps is None else num_inference_steps
        count = self.images_per_request
        request = check_request(
            prompt,
            negative_prompt,
            guidance_scale,
            seed,
            steps,
            count,
            guidance_until,
            variation_seed,
            variation_strength,
        )
        if latents is not None and request.variation_strength > 0:
            raise InputError("latents take the place of the seed's, of which there are variations")
        if output_type not in OUTPUT_TYPES:
            raise InputError(f"output_type is {output_type!r}; expected one of {OUTPUT_TYPES}")
        run = self._sampler(height, width)
        noise = None if latents is None else checked_latents(latents, (count, *run.latents_shape))
        ids, truncated = self._tokenizers.tokenize(request.prompts)
        negative_ids, negative_truncated = self._tokenizers.tokenize(request.negative_prompts)
        input_ids = np.stack([negative_ids, ids])
        drawn = self._sample(run, request, input_ids, noise, on_step, cancelled, on_preview)
        images, flagged, unblurred = self._finish(run, drawn, request, output_type)
        return Result(
            images=images,
            seeds=request.seeds,
            flagged=flagged,
            truncated=truncated,
            negative_truncated=negative_truncated,
            variation_seeds=request.variation_seeds if request.variation_strength > 0 else None,
            unblurred=unblurred,
        )

    def measure(self, prompt: str) -> Length:
        """How long a prompt is for the model; any thread may ask."""
        tokens = longest([tokenizer.tokenize(prompt) for tokenizer in self._tokenizers.each])
        return Length(tokens.count, self._tokenizers.length, tokens.truncated)

    def _sampler(self, height: int | None, width: int | None) -> CompiledSampler:
        wanted = self.height if height is None else height, self.width if width is None else width
        by_size = self._by_size
        if wanted not in by_size:
            there_are = ", ".join(f"{width}x{height}" for height, width in by_size)
            raise InputError(f"the size is {wanted[1]}x{wanted[0]}; expected one of {there_are}")
        return by_size[wanted]

    def _sample(
        self,
        run: CompiledSampler,
        request: Request,
        input_ids: np.ndarray,
        noise: np.ndarray | None,
        on_step: OnStep | None,
        cancelled: Event | None,
        on_preview: OnPreview | None,
    ) -> Array:
        """Final latents `[B, h, w, C]`; input_ids `[2, B, E, L]` for E text encoders."""
        schedule = make_schedule(self._config.scheduler, request.num_inference_steps)
        blank = np.array([not text.strip() for text in request.negative_prompts])
        conditioning = run.encode(input_ids, blank & self._config.force_zeros_for_empty_prompt)
        seeds = run.put_seeds(np.array(request.seeds, np.uint32))
        if noise is None:
            latents = run.initial_latents(seeds, schedule.init_noise_sigma)
            if (strength := request.variation_strength) > 0:
                others = run.put_seeds(np.array(request.variation_seeds, np.uint32))
                other = run.initial_latents(others, schedule.init_noise_sigma)
                latents = run.vary(latents, other, strength)
        else:
            latents = run.put_latents(noise * np.float32(schedule.init_noise_sigma))
        state = run.start(latents)
        advance = partial(
            run.denoise,
            conditioning=conditioning,
            seeds=seeds,
            table=run.put_schedule(schedule),
            guidance_scale=request.guidance_scale,
            guided=schedule.stops[guided - 1] if (guided := request.guided_steps) else 0,
        )
        if on_step is None and cancelled is None and on_preview is None:
            return advance(state, start=0, stop=schedule.stops[-1]).latents
        start, total = 0, len(schedule.stops)
        for step, stop in enumerate(schedule.stops):
            if cancelled is not None and cancelled.is_set():
                raise Cancelled(f"stopped after {step} of {total} steps")
            # Wait for the step: queueing the rest at once would leave nothing to cancel.
            before, state = state, jax.block_until_ready(advance(state, start=start, stop=stop))
            if on_step is not None:
                on_step(step + 1, total, state.latents)
            # Of a step of two evaluations the latents before the second are not known.
            if on_preview is not None and stop == start + 1 and step + 1 < total:
                on_preview(partial(self._look, schedule, start, before, state))
            start = stop
        return state.latents

    def _look(self, schedule: Schedule, evaluation: int, before: State, after: State) -> np.ndarray:
        """How the pictures look after an evaluation; on the host, where nothing compiles."""
        of_latents, of_value = schedule.picture[evaluation]
        value = np.asarray(after.history)[0]
        return self._colours.of(of_latents * np.asarray(before.latents) + of_value * value)

    def _finish(
        self, run: CompiledSampler, latents: Array, request: Request, output_type: str
    ) -> tuple[Any, list[bool], dict[int, Image.Image]]:
        """The `images`, `flagged` and `unblurred` of a `Result`."""
        if output_type == "latent":
            return np.asarray(latents), [False] * len(latents), {}
        as_float, as_bytes = run.decode(latents)
        levels = np.asarray(as_bytes)
        by_checker, by_screen = self._flagged(run, levels), self._screened(levels)
        flagged = [any(both) for both in zip(by_checker, by_screen, strict=True)]
        pairs = zip(levels, flagged, strict=True)
        shown = [moderation.blur(picture) if blurred else picture for picture, blurred in pairs]
        if output_type == "np":
            pictures = np.array(as_float)
            for i in np.flatnonzero(flagged):
                pictures[i] = shown[i] / np.float32(255)
            return pictures, flagged, {}
        images = [self._picture(request, i, picture, flagged[i]) for i, picture in enumerate(shown)]
        unblurred = {
            i: self._picture(request, i, levels[i], flagged=False)
            for i in np.flatnonzero(by_screen).tolist()
            if not by_checker[i]
        }
        return images, flagged, unblurred

    def _flagged(self, run: CompiledSampler, images: np.ndarray) -> list[bool]:
        config = self._config.safety_checker
        if config is None:
            return [False] * len(images)
        return run.check(moderation.prepare(images, config)).tolist()

    def _screened(self, images: np.ndarray) -> list[bool]:
        if self._screen is None:
            return [False] * len(images)
        return verdicts(self._screen, images)

    def _picture(self, request: Request, i: int, levels: np.ndarray, flagged: bool) -> Image.Image:
        """A picture `[H, W, 3]` uint8 with its settings."""
        image = Image.fromarray(levels)
        metadata.attach(image, self._settings(request, i, image.size, flagged))
        return image

    def _settings(
        self, request: Request, i: int, size: tuple[int, int], flagged: bool
    ) -> metadata.Settings:
        varied = request.variation_strength > 0
        return metadata.Settings(
            prompt=request.prompts[i],
            negative_prompt=request.negative_prompts[i],
            seed=request.seeds[i],
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            width=size[0],
            height=size[1],
            model=self.model,
            revision=self.revision,
            sampler=metadata.SAMPLERS[self._config.scheduler.name]
            + (" Karras" if self._config.scheduler.use_karras_sigmas else ""),
            safety_checker=metadata.BLURRED if flagged else None,
            guidance_until=request.guidance_until if request.guidance_until < 1 else None,
            variation_seed=request.variation_seeds[i] if varied else None,
            variation_strength=request.variation_strength if varied else None,
        )


@without_collecting_garbage()
def _load(
    checkpoint: Checkpoint,
    config: Config,
    dtype: np.dtype[Any],
    mesh: Mesh,
    shapes: Shapes,
    cache: ExecutableCache | None,
) -> tuple[Tokenizers, CompiledSampler]:
    """Of a checkpoint on this machine, what text goes through.

    What has been compiled before is loaded while the checkpoint is looked through. The rest is
    compiled while its parameters are loaded, and nothing for one that turns out to be damaged.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="load") as threads:
        keeping = threads.submit(load_kept, config, dtype, mesh, shapes, cache)
        tokenizers = load_tokenizers(checkpoint.folder, config, cache)
        found = find_networks(checkpoint, config, dtype, cache)
        loading = threads.submit(load_networks, found, place_on(mesh))
        empty = Networks.named({name: stored.module for name, stored in found.items()})
        compiled = CompiledSampler(config, empty, mesh, shapes, cache, keeping.result())
    compiled.fill(loading.result())
    return tokenizers, compiled
