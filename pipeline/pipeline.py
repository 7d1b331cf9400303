"""SDXLPipeline, the one stateful object, which turns prompts into pictures.

It is named after the model it was made for, and draws with Stable Diffusion 1 and 2 as well.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from pipeline.adapters.adapter import Adapter
from pipeline.adapters.reader import find_adapter, read_adapter
from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.folder import count_parameters
from pipeline.checkpoints.source import fetch, fetch_component
from pipeline.checkpoints.weights import match_weights
from pipeline.drawing.drawing import Drawing, Look, Progress, Result
from pipeline.drawing.engine import Engine
from pipeline.drawing.models import Models, Others, facts_of, read_facts, settings_of
from pipeline.drawing.origins import (
    EXTEND_PADDING,
    NO_INPUTS,
    Given,
    Inputs,
    extended,
)
from pipeline.drawing.planning import Drawer, Planner, placed
from pipeline.drawing.refining import (
    Refiner,
    SecondModel,
    find_refiner,
    load_second_model,
    models_of,
)
from pipeline.errors import DeviceError, InputError, UnlikeError
from pipeline.facts import ControlFacts, EmbeddingFacts, Facts, LoraFacts
from pipeline.families import FamilyReader
from pipeline.families.controlnets import find_control
from pipeline.families.family import image_size
from pipeline.families.latent_unet import CONTROL
from pipeline.families.reader import fetch_tiny_vae
from pipeline.families.single_files import UNET_FILE, VAE_FILE
from pipeline.images import preview
from pipeline.images.moderation import Screen
from pipeline.models.quantized import QUANTIZATIONS
from pipeline.platforms import network_dtype, worth_a_copy, worth_bfloat16
from pipeline.request import (
    MAX_IMAGES,
    GenerateRequest,
    check_choice,
    check_count,
    check_name,
)
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.compiled import CompiledSampler, make_mesh, place_on
from pipeline.runtime.control_networks import ControlNetwork, Controls
from pipeline.runtime.executables import (
    ExecutableCache,
    compile_missing,
    load_cached,
    measured_bytes,
)
from pipeline.runtime.loading import (
    load_networks,
    load_tokenizers,
    match_networks,
    timed,
    trace_networks,
)
from pipeline.runtime.memory import available_memory
from pipeline.runtime.mesh import failures_explained, find_devices
from pipeline.runtime.models import Model, ModelStore
from pipeline.runtime.parameters import Parameters
from pipeline.runtime.programs import Shapes, Target, check_rows
from pipeline.runtime.room import Room
from pipeline.schedulers.config import (
    DEFAULT_SIGMAS,
    MAX_INFERENCE_STEPS,
    SCHEDULERS,
)
from pipeline.schedulers.recipes import Recipe
from pipeline.text.controls import UNION_TYPES, Control, format_controls
from pipeline.text.embeddings import (
    Embedding,
    Embeddings,
    Placement,
    bundled_embeddings,
    is_embedding_name,
    read_embedding,
)
from pipeline.text.explanation import explain
from pipeline.text.loras import is_lora_name
from pipeline.text.prompt_syntax import PLAIN
from pipeline.text.tokenizer import Tokenizers, longest

log = logging.getLogger(__name__)

MAX_CHUNKS = 3  # of a prompt

OnStep = Callable[[int, int, jax.Array], object]
OnPreview = Callable[[Callable[[], np.ndarray]], object]


class Length(NamedTuple):
    """The length of a prompt in tokens.

    Attributes:
        tokens: the number of tokens, including the start and end tokens; without them if prompts
            may have several chunks.
        limit: the largest number of tokens that the model takes, likewise.
        left_out: the text beyond the limit, or "".
        chunks: the number of chunks that the prompt takes.
    """

    tokens: int
    limit: int
    left_out: str
    chunks: int = 1


class SDXLPipeline(Engine):
    """A checkpoint that is compiled for a fixed number of slots, each for one picture at a time.

    `from_pretrained` makes a pipeline for one size of pictures, and `add_size` adds others.
    `generate` draws one request. A server calls `prepare` and `begin` for each request, and
    `advance` for a step of all their pictures. Callers with several threads need a lock around all
    of these but `prepare`.

    Attributes:
        wildcard_dir: the folder of the lists that prompts can name, as text files; None for none.
        compile_seconds: seconds spent on the executables: "hit" for those loaded from the cache,
            "miss" for those compiled.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizers: Tokenizers,
        compiled: CompiledSampler,
        colours: preview.Colours,
        num_inference_steps: int | None,
        screen: Screen | None,
        beside: tuple[SecondModel, CompiledSampler] | None,
        wildcard_dir: str | Path | None,
        others: Others,
    ):
        self.wildcard_dir = None if wildcard_dir is None else Path(wildcard_dir)
        screened = screen is not None
        runs = [compiled] if beside is None else [compiled, beside[1]]
        own = facts_of(checkpoint.model, checkpoint, num_inference_steps)
        self._facts = read_facts(own, checkpoint, compiled, screened, beside and beside[0].name)
        config = checkpoint.config
        self.compile_seconds = {
            kind: sum(run.compile_seconds[kind] for run in runs)
            for kind in compiled.compile_seconds
        }
        self._config = config
        self._tokenizers = tokenizers
        self._compiled = compiled
        # This mapping is replaced, never mutated: one thread may draw while another adds a size.
        self._by_size: Mapping[tuple[int, int], CompiledSampler] = {
            (compiled.shapes.height, compiled.shapes.width): compiled
        }
        self._adding = Lock()
        family, files = config.family, compiled.parameters.files
        networks = [part.name for part in (*family.text_encoders, *family.networks)]
        reader = replace(others.reader, safety_checker=False, unet=None)
        # The operator's VAE is that of all models.
        own_networks = [name for name in networks if name not in reader.replacements]
        base = Model("", {name: files[name] for name in own_networks})
        store = ModelStore(base, compiled.parameters, others.limit)
        self._adapters = Adapters(
            compiled.parameters,
            compiled.mesh,
            text_encoders=[part.name for part in family.text_encoders],
            denoisers=config.architecture.predict.networks,
            store=store,
        )
        controls = Controls(place_on(compiled.mesh), compiled.room)
        refiner = None if beside is None else Refiner(*beside, config, store, self._adapters)
        kept = () if refiner is None else refiner.text_encoders
        compiled.room.loras = partial(self._adapters.device_bytes, kept=kept)
        self._embeddings = Embeddings()  # replaced, never mutated
        self._loading = Lock()  # of a LoRA
        self._embedding = Lock()  # changes of the embeddings, which do not wait for a LoRA
        super().__init__(screen, compiled)
        self._others: tuple[SDXLPipeline, ...] = ()
        self._controls = controls
        self._refiner = refiner
        self._models = Models(
            Drawer(config, tokenizers, compiled, self._adapters, base, controls),
            own,
            reader,
            store,
            num_inference_steps,
        )
        self._planner = Planner(
            self._models,
            refiner,
            lambda: self.facts,
            self._sampler,
            lambda: self._embeddings,
            Look(colours, partial(settings_of, self._facts)),
            self.wildcard_dir,
        )

    @classmethod
    @failures_explained()
    def from_pretrained(  # noqa: PLR0913
        cls,
        model: str | Path,
        revision: str | None = None,
        height: int | None = None,
        width: int | None = None,
        images_per_request: int = 4,
        num_inference_steps: int | None = None,
        dtype: DTypeLike | None = None,
        devices: Sequence[jax.Device] | None = None,
        cache_dir: str | Path | None = None,
        scheduler: str | None = None,
        safety_checker: bool = True,
        screen: Screen | None = None,
        vae: str | Path | None = None,
        ema: bool = False,
        unet: str | Path | None = None,
        tiny_vae: str | Path | None = None,
        prompt_chunks: int = 1,
        refiner: str | Path | None = None,
        step_cache: bool = False,
        devices_per_picture: int = 1,
        quantization: str | None = None,
        wildcard_dir: str | Path | None = None,
        model_memory: int | None = None,
        models: Sequence[str | Path] = (),
        more_sizes: Sequence[tuple[int, int]] = (),
        controlnets: Mapping[str, str | Path] | None = None,
    ) -> "SDXLPipeline":
        """Load a checkpoint, compile it and warm it up.

        Args:
            model: a folder in diffusers' layout, or an id on the Hub; or a single file such as
                "model.safetensors", or "owner/name/model.safetensors" on the Hub.
            revision: a branch, tag or commit on the Hub.
            height: in pixels; the checkpoint's own where None.
            width: in pixels; the checkpoint's own where None.
            images_per_request: the number of pictures that are drawn at once, and that a call draws
                unless it asks for fewer.
            num_inference_steps: the default of `generate`, 1 to 50. None means 25, or as many as a
                distilled model was made for; see `pipeline.schedulers.recipes`.
            dtype: dtype of the networks. None means bfloat16 on accelerators, and for a large
                checkpoint on a CPU with AMX or AVX512_BF16; float16 on NVIDIA GPUs without
                bfloat16, with the VAE in float32; otherwise float32.
            devices: the devices to run on. None means all devices of the default backend, but
                only the first for a large checkpoint on a CPU.
            cache_dir: a private folder in which to cache compiled executables and other results
                of startup; None disables the cache.
            scheduler: a key of `pipeline.schedulers.config.SCHEDULERS`, such as "euler" or
                "dpmsolver++"; that of a distilled model's recipe or the checkpoint's own where
                None.
            safety_checker: whether the checkpoint's safety checker, if it has one, checks every
                picture. Flagged pictures are blurred.
            screen: a function that takes the finished pictures of a request, as PIL pictures,
                and returns for each whether to blur it. It runs beside the safety checker.
            vae: a VAE to use in place of the checkpoint's own: a folder or an id on the Hub, of a
                VAE or of a checkpoint in diffusers' layout, or a single file here or there. The
                checkpoint's own is then not downloaded.
            ema: whether to draw with the moving average of the UNet's weights, which some single
                files hold beside the weights.
            unet: the same as `vae` for a UNet, such as that of a distilled model.
            tiny_vae: a tiny VAE (AutoencoderTiny) such as "madebyollin/taesdxl", for previews, and
                for the pictures of calls that ask for it: a folder, an id on the Hub, or a single
                file.
            prompt_chunks: the most chunks of 75 tokens that a prompt can have, 1 to 3. More take
                more memory. A prompt that fits into one chunk gives the same picture as with 1.
            refiner: the refiner of SDXL, such as "stabilityai/stable-diffusion-xl-refiner-1.0", for
                the last steps of pictures: a folder, an id on the Hub, or a single file. Only its
                UNet is loaded; the base model's text encoder and VAE serve it too.
            step_cache: whether calls can have a `cache_interval` above 1, for which every slot
                takes some memory.
            devices_per_picture: the number of devices that draw a picture together, for latency:
                1, or an even number, half of the devices for each half of guidance. From 4 on they
                share the picture's rows too, and their sums are in another order: it is the same
                picture up to rounding, not to the bit. 1 lets two devices share a picture only
                where there are more than pictures.
            quantization: "int8" multiplies 8-bit integers in most of the UNet. This is quicker on
                accelerators, takes less memory for the UNet's parameters, and is less exact. A
                refiner stays as it is. None multiplies in `dtype`.
            wildcard_dir: the folder of the lists that prompts can name, as text files.
            model_memory: the most bytes of the host's memory for models from `add_model` that are
                not on the devices; half of what is free where None. A model that does not fit is
                read from its files each time.
            models: further checkpoints that calls can name, as for `add_model`. A model of another
                architecture gets programs of its own, which are compiled for its own default size,
                and stays on the devices beside the first. It draws without LoRAs, embeddings and
                the refiner.
            more_sizes: the (height, width) of sizes that will be added with `add_size`, which are
                checked before anything is compiled.
            controlnets: ControlNets that calls can name, as for `add_control`, by name. An empty
                mapping lets them be added later; with None they cannot.

        Raises:
            CheckpointError: if the checkpoint is missing, damaged or not supported.
            DeviceError: if there is no device, or a device fails or has too little memory.
            InputError: if an argument cannot be used; the message names it.
            PermissionError: if `cache_dir` is open to other users.
        """
        check_count("images_per_request", images_per_request, 1, MAX_IMAGES)
        check_count("prompt_chunks", prompt_chunks, 1, MAX_CHUNKS)
        if num_inference_steps is not None:
            check_count("num_inference_steps", num_inference_steps, 1, MAX_INFERENCE_STEPS)
        if scheduler is not None:
            check_choice("scheduler", scheduler, [*SCHEDULERS])
        check_choice("quantization", quantization, (None, *QUANTIZATIONS))
        used = find_devices() if devices is None else list(devices)
        if not used:
            raise InputError("devices is empty; expected at least one")
        check_count("devices_per_picture", devices_per_picture, 1, len(used))
        # The weight files are chosen before the number of parameters is known. A CPU that gets
        # bfloat16 below therefore reads full precision where the checkpoint has it.
        chosen = network_dtype(dtype, used)
        cache = None if cache_dir is None else ExecutableCache(Path(cache_dir))
        half = chosen.itemsize == 2
        vae_, unet_ = (
            None if source is None else fetch_component(str(source), name, section, half)
            for source, name, section in ((vae, "vae", VAE_FILE), (unet, "unet", UNET_FILE))
        )
        tiny = fetch_tiny_vae(tiny_vae, half)
        reader = FamilyReader(scheduler, safety_checker, vae_, unet_, tiny).for_model(str(model))
        checkpoint = fetch(str(model), revision, reader, prefer_fp16=half, ema=ema)
        parameters = count_parameters(checkpoint)
        if dtype is None and worth_bfloat16(used[0], parameters):
            chosen = network_dtype("bfloat16", used)
        config = checkpoint.config
        if (recipe := config.recipe) is not None:
            _log_recipe(recipe)
        size = image_size(config, height, width)
        shapes = Shapes(images_per_request, *size, prompt_chunks)
        if devices is None:
            used = worth_a_copy(used, parameters)
        mesh = make_mesh(used, images_per_request, devices_per_picture)
        target = Target(
            config, chosen, mesh, shapes, step_cache, quantization, controlnets is not None
        )
        second = None if refiner is None else find_refiner(str(refiner), config, size, half)
        for one in (config,) if second is None else (config, second.config):
            for other in (size, *more_sizes):
                check_rows(one, mesh, image_size(one, *other)[0])
        tokenizers, compiled = _load(checkpoint, target, cache, second)
        beside = None if second is None else (second, load_second_model(compiled, second))
        with timed("warmed up"):
            tokenizers.tokenize(["warm up"])
            colours = preview.fit(compiled.warm_up, (images_per_request, *compiled.latents_shape))
            if beside is not None:
                _warm_up(beside[1])
        pipe = cls(
            checkpoint,
            tokenizers,
            compiled,
            colours,
            num_inference_steps,
            screen,
            beside,
            wildcard_dir,
            Others(
                reader, (available_memory() or 0) // 2 if model_memory is None else model_memory
            ),
        )
        for name, source in (controlnets or {}).items():
            pipe.add_control(source, name)
        load = partial(
            cls.from_pretrained,
            images_per_request=images_per_request,
            num_inference_steps=num_inference_steps,
            dtype=dtype,
            devices=devices,
            cache_dir=cache_dir,
            safety_checker=safety_checker,
            screen=screen,
            prompt_chunks=prompt_chunks,
            devices_per_picture=devices_per_picture,
            quantization=quantization,
            wildcard_dir=wildcard_dir,
            model_memory=model_memory,
        )
        for source in models:
            pipe._add_or_load(source, load)
        return pipe

    def _add_or_load(self, source: str | Path, load: Callable[..., "SDXLPipeline"]) -> None:
        """Add a model to the programs that draw with it, or to new ones.

        Raises:
            InputError: if a model of this name is there.
        """
        for pipe in (self, *self._others):
            with suppress(UnlikeError):
                pipe._models.add(str(source), None, self.facts.model_names)
                return
        other = load(source)
        if (name := other.facts.name) in self.facts.model_names:
            raise InputError(f"two models are named {name!r}; rename one's folder or file")
        room = self._compiled.room
        if room.memory is not None:
            room.memory -= other._compiled.room.needs().total
        self._others = (*self._others, other)

    def _pipe_of(self, model: str) -> "SDXLPipeline":
        """Return the pipeline whose programs draw with a model."""
        others = (other for other in self._others if model in other.facts.model_names)
        return next(others, self)

    def check_size(self, height: int, width: int) -> None:
        """Raise InputError for a size that `add_size` does not support."""
        image_size(self._config, height, width)
        check_rows(self._config, self._compiled.mesh, height)
        if self._refiner is not None:
            self._refiner.check_size(height, width)

    def check_memory(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Raise DeviceError if the memory cannot hold more sizes, (height, width).

        The message says what to leave out. Nothing is compiled: what programs take is counted for
        those that were compiled before, with the same `cache_dir`.
        """
        self._compiled.room.check(sizes)

    @failures_explained()
    def add_size(self, height: int, width: int) -> None:
        """Compile for another size of pictures; all sizes share the networks' parameters.

        Another thread may draw meanwhile. Call `warm_up` before the first request of that size.

        Raises:
            DeviceError: if there is too little memory.
            InputError: if the height or width cannot be used.
        """
        self.check_size(height, width)
        size = height, width
        with self._adding:
            if size not in self._by_size:
                self.check_memory([size])
                run = self._compiled.resized(*size)
                if self._refiner is not None:
                    self._refiner.add_size(run)
                run.room.sizes = (*run.room.sizes, size)
                self._by_size = {**self._by_size, size: run}

    @property
    def facts(self) -> Facts:
        """All that requests can name, as of now. Any thread may read them."""
        sizes = [(width, height) for height, width in self._by_size]
        loras = sorted(self.loras.items())
        embeddings = (
            EmbeddingFacts(name, each.length, sum(x.shape[1] for x in each.vectors), each.digest)
            for name, each in sorted(self.embeddings.items())
        )
        controls = [control for _, control in sorted(self.controls.items())]
        # The first model's safety checker checks the pictures of all models.
        return replace(
            self._facts,
            more_sizes=tuple(sizes[1:]),
            loras=tuple(LoraFacts(name, name, digest=lora.digest) for name, lora in loras),
            embeddings=tuple(embeddings),
            controls=tuple(map(_control_facts, controls)),
            models=self._models.facts,
            others=tuple(
                replace(facts, safety_checker=facts.safety_checker or self._facts.safety_checker)
                for facts in (other.facts for other in self._others)
            ),
        )

    def add_model(self, source: str | Path, name: str | None = None) -> str:
        """Add a checkpoint that `generate` can then draw with; nothing is compiled.

        It must have the architecture of the pipeline's own. Its weights are read when a request
        first names it.
        Any thread may call this, while another draws.

        Args:
            source: a folder in diffusers' layout, a single file, or either on the Hub, as for
                `from_pretrained`.
            name: its name in requests, without commas, colons, < and >; the folder's or the file's
                where None.

        Returns:
            The name.

        Raises:
            CheckpointError: if it is missing, damaged or not supported, or the pipeline's programs
                cannot draw with it.
            InputError: if the name cannot be used, or a model of this name is there.
        """
        return self._models.add(str(source), name, self.facts.model_names)

    def remove_model(self, name: str) -> None:
        """Forget a model that was added. Any thread may call this; a run that uses it goes on.

        Raises:
            InputError: if no model of this name was added.
        """
        self._pipe_of(name)._models.remove(name)

    def read_ahead(
        self, model: str, loras: Mapping[str, tuple[float, float]] | None = None
    ) -> None:
        """Begin to read a model into the host's memory. Any thread may call this.

        If the devices have the model already, loaded LoRAs are merged with it in advance.

        Args:
            model: its name in requests.
            loras: the weights of LoRAs in the UNet and in the text encoders, by name.

        Raises:
            InputError: if there is no such model.
        """
        pipe = self._pipe_of(model)
        drawer = pipe._models.drawer(model, pipe._compiled)
        pipe._adapters.read_ahead(drawer.model, loras or {})

    @property
    def loras(self) -> Mapping[str, Adapter]:
        """The loaded LoRAs by name. Any thread may read them."""
        return self._adapters.loaded

    def load_lora(self, source: str | Path, name: str | None = None) -> str:
        """Load a LoRA, with which `generate` can then draw; nothing is compiled.

        Embeddings in its file (`bundle_emb.*`) can be named by prompts that are drawn with it. Any
        thread may call this, while another draws.

        Args:
            source: a file; a folder with one `.safetensors` file; or a file on the Hub, such as
                `owner/name/file.safetensors`.
            name: its name in requests, without commas, colons, < and >; the file's where None.

        Returns:
            The name.

        Raises:
            CheckpointError: if the file cannot be read, or does not fit the model's networks.
            DeviceError: if there is too little memory for a copy of the parameters that it changes.
            InputError: if the name cannot be used, or a LoRA of this name is loaded.
        """
        file = find_adapter(source)
        name = file.stem if name is None else name
        check_name("a LoRA's", name, is_lora_name, "commas, colons, < and >")
        with self._loading:
            self._adapters.check_new(name)
            adapter = read_adapter(file, name, self._adapters.inventory)
            bundled_embeddings(adapter, self._config.widths)  # an error tells of one that misfits
            try:
                self._compiled.room.check(more=adapter)
                self._adapters.check_host(adapter)
            except DeviceError as error:
                raise DeviceError(f"the LoRA {name!r} cannot be loaded: {error}") from error
            self._adapters.add(adapter)
        return name

    def unload_lora(self, name: str) -> None:
        """Forget a LoRA. Any thread may call this; a run that uses it goes on.

        Raises:
            InputError: if no LoRA of this name is loaded.
        """
        self._adapters.remove(name)

    @property
    def controls(self) -> Mapping[str, ControlNetwork]:
        """The loaded ControlNets by name. Any thread may read them."""
        return self._controls.loaded

    def add_control(
        self, source: str | Path, name: str | None = None, *, compiles: bool = True
    ) -> str:
        """Load a ControlNet, which `generate` can then name in `controls`.

        Nothing is compiled for one of the architecture of another that was loaded. Its weights are
        read when a request first names it. Any thread may call this, while another draws.

        Args:
            source: a folder in diffusers' layout, or an id on the Hub; or a single file here or
                there.
            name: its name in requests, without commas, colons, < and >; the folder's or the file's
                where None.
            compiles: whether one of another architecture may be compiled for.

        Returns:
            The name.

        Raises:
            CheckpointError: if it is missing, damaged, or does not fit the model.
            InputError: if it would have to be compiled for, the name cannot be used, a ControlNet
                of this name is loaded, or the pipeline was loaded without `controlnets`.
        """
        target = self._compiled.target
        if not target.controls:
            raise InputError(
                "the pipeline was loaded without ControlNets; pass controlnets to from_pretrained"
            )
        control = find_control(str(source), self._config, target.dtype.itemsize == 2)
        name = control.name if name is None else name
        check_name("a control's", name, is_lora_name, "commas, colons, < and >")
        self._controls.check_new(name)
        if not (compiles or self._compiled.guided_by(control.config)):
            raise InputError(
                f"{source}: its architecture is new here; it can be used after the next start"
            )
        only = replace(self._config, networks={CONTROL: control.config})
        traced = trace_networks(only, target.dtype, self._compiled.room.cache)[CONTROL]
        files = match_weights(traced, control.open)
        with self._adding:
            for run in self._by_size.values():
                run.add_control(control.config, traced)
        self._controls.add(ControlNetwork(name, control.config, files, control.digest))
        return name

    def remove_control(self, name: str) -> None:
        """Forget a ControlNet. Any thread may call this; a run that follows it goes on.

        Raises:
            InputError: if no ControlNet of this name is loaded.
        """
        self._controls.remove(name)

    @property
    def embeddings(self) -> Mapping[str, Embedding]:
        """The loaded embeddings by name. Any thread may read them."""
        return self._embeddings

    def load_embedding(
        self, source: str | Path, name: str | None = None, *, replace: bool = False
    ) -> str:
        """Load a textual inversion, which prompts can then name; nothing is compiled.

        Prompts name it by its bare name or in angle brackets, `<name>`. Any thread may call this,
        while another draws.

        Args:
            source: a `.safetensors` file: one tensor for Stable Diffusion 1 and 2, `clip_l` and
                `clip_g` for Stable Diffusion XL.
            name: its name in prompts; the file's where None.
            replace: whether it replaces an embedding of this name.

        Returns:
            The name.

        Raises:
            CheckpointError: if the file cannot be read, or does not fit the text encoders.
            InputError: if the name cannot be used, or an embedding of this name is loaded.
        """
        file = Path(source)
        name = file.stem if name is None else name
        right = "commas, colons, bars, backslashes and brackets"
        check_name("an embedding's", name, is_embedding_name, right)
        embedding = read_embedding(file, name, self._config.widths)
        with self._embedding:
            self._embeddings = self._embeddings.with_one(embedding, replace=replace)
        return name

    def unload_embedding(self, name: str) -> None:
        """Forget an embedding. Any thread may call this; a run that uses it goes on.

        Raises:
            InputError: if no embedding of this name is loaded.
        """
        with self._embedding:
            self._embeddings = self._embeddings.without(name)

    @failures_explained()
    def warm_up(self, height: int | None = None, width: int | None = None) -> None:
        """Run every program of a size once, because the first run of an executable is slow.

        `from_pretrained` has done so for the pipeline's own size. As with `generate`, nothing else
        may run on the devices meanwhile.

        Args:
            height: in pixels; the pipeline's own where None.
            width: in pixels; the pipeline's own where None.

        Raises:
            DeviceError: if a device fails or has too little memory.
            InputError: if the size is neither the pipeline's own nor one that was added.
        """
        run = self._sampler(height, width)
        _warm_up(run)
        if self._refiner is not None:
            _warm_up(self._refiner.of_size(run))
        of_config = {control.config: control for control in self.controls.values()}
        for control in of_config.values():
            self._controls.acquire([control], (), wait=True)
            run.warm_up_control(control)

    @failures_explained()
    def generate(  # noqa: PLR0913
        self,
        prompt: str | Sequence[str] | GenerateRequest,
        negative_prompt: str | Sequence[str] | None = None,
        guidance_scale: float | None = None,
        seed: int | None = None,
        *,
        images: int | None = None,
        height: int | None = None,
        width: int | None = None,
        image: Given = None,
        mask: Given = None,
        extend: Mapping[str, int] | None = None,
        controls: Sequence[Control] | str | None = None,
        latents: np.ndarray | None = None,
        denoising_start: float | None = None,
        output_type: str = "pil",
        on_step: OnStep | None = None,
        on_preview: OnPreview | None = None,
        cancelled: Event | None = None,
        **settings: Any,
    ) -> Result:
        """Draw pictures, without compiling anything.

        Args:
            prompt: one prompt for all pictures, or one for each; or a request, in which the other
                arguments replace settings. A blank prompt leaves the content to the model. Names of
                loaded embeddings stand for their vectors; the prompts of a request can use 256
                vectors.
            negative_prompt: one for all pictures, or one for each; a blank one counts as none.
            guidance_scale: how closely to follow the prompt; 1 and below means no guidance. None
                means the pipeline's default, which is 5 except for distilled models. Models
                that take the scale as an input, such as latent consistency models, need no second
                prediction for it, and ignore `guidance_until` and negative prompts.
            seed: picture i is drawn from the random numbers of seed + i (modulo 2^32) alone.
            num_inference_steps: 1 to 50; the pipeline's default where None.
            latents: `[images, h, w, C]` float32 standard normal noise to start from, instead of
                the seed's noise. A scheduler that adds noise at later steps still takes it from
                the seed.
            output_type: "pil", "np" (`[images, H, W, 3]` float32 in 0..1) or "latent".
            on_step: called as `on_step(step, total, latents)` after every step. `step` counts
                from 1; `latents` is the devices' array `[images, h, w, C]` float32.
            cancelled: an event; once it is set, the run stops before its next step.
            on_preview: called as `on_preview(look)` after `on_step`, at every step except the
                last. While it runs, `look()` returns the pictures so far, `[images, h, w, 3]`
                uint8: as small as the latents, or with a tiny VAE twice as large. A preview is
                computed only when `look` is called.
            guidance_until: the share of the steps, 0 to 1, after which guidance ends. A step
                without guidance is half the work, unless the guidance halves have devices of
                their own.
            variation_seed: used if `variation_strength` is above 0. All pictures then start from
                the noise of `seed`; picture i turns it towards the noise of variation_seed + i
                (modulo 2^32).
            variation_strength: how far to turn the noise, from 0, not at all, to 1, all the way.
            variation_of: earlier variations, such as "12:0.25,34:0.5": the noise of `seed` is first
                turned by 0.25 towards the noise of seed 12, then by 0.5 towards that of 34.
            height: in pixels; the pipeline's own where None. With `width` it must be the
                pipeline's own size or one that was added.
            width: in pixels; the pipeline's own where None.
            guidance_rescale: the share, 0 to 1, in which guided predictions get the standard
                deviation of those without guidance. High guidance scales then overexpose less;
                models with zero terminal SNR want about 0.7.
            loras: weights, -4 to 4, of LoRAs from `load_lora` by name, such as `{"pixel": 0.8}`; a
                pair is the weight in the UNet and that in the text encoders. A text such as
                "pixel:0.8,other:0.5:0.3" means the same. If the request before had other LoRAs or
                weights, merging these into the networks takes a moment.
            scheduler: a key of `pipeline.schedulers.config.SCHEDULERS`, or another program's name
                for one, such as "DPM++ 2M Karras"; the pipeline's own where None.
            sigma_schedule: "default", "karras", "exponential", "beta" or "align-your-steps", for
                the schedulers that can space noise levels; the scheduler's own where None.
            timestep_spacing: "leading", "trailing" or "linspace"; the scheduler's own where None.
            timesteps: the timesteps of the run, falling, in place of `num_inference_steps` spaced
                ones, for the schedulers that can be given them.
            eta: the share of new noise in the steps of "ddim" and "tcd", 0 to 1; 0 for "ddim" and
                0.3 for "tcd" where None.
            decoder: "full", or "tiny" for pictures by the tiny VAE, which are quicker to decode and
                less exact; "full" where None.
            recipe: the name of one of `recipes`, such as "lightning-4", which sets the LoRA with
                the scheduler, steps and guidance scale that it was made for. A number of steps that
                the recipe allows, and a weight of its LoRA, may be given beside it.
            images: the number of pictures, 1 to `images_per_request`; as many as that where None.
                Fewer take less time.
            image: a picture to start from, or one for each: a PIL picture of any size, or
                `[H, W, 3]` float32 in 0..1. It is cut to the shape of the size that is drawn.
                `latents` beside it are the noise that is added to it.
            mask: the part of `image` to redraw, or one for each: a PIL picture that is white there,
                or `[H, W]` float32, 1 there and 0 where the picture is kept. The rest of the
                picture does not change.
            strength: how far to redraw `image`, above 0 to 1: the share of the steps that are
                taken; 0.8 where None.
            padding: draw the masked part alone, at full size, with this many pixels around it, and
                paste it into the whole `image`, whose size the result has. None draws the whole
                picture.
            extend: draw what lies around `image`: the number of pixels to add at each side, such as
                `{"left": 64, "top": 32}`; also "right" and "bottom". The new parts are drawn with
                `padding` pixels of the picture, 32 where None, and the result is as much larger.
            controls: what the pictures follow, such as `[Control("canny", image, scale=0.8)]`, each
                through a ControlNet. A control without an image follows `image`. As a text, such as
                "canny:scale=0.8", all of them do.
            enlarge: the height and width in pixels, which must be a size that was added, at which
                the finished pictures are drawn again. `on_step` counts the steps of both runs.
            enlarge_strength: how far the second run redraws the enlarged pictures; see `strength`.
                Where None it is 0.35, but at least the share of one step.
            enlarge_steps: the steps of the second run, of which the share `enlarge_strength` is
                taken; as many as those of the first where None.
            prompt_syntax: "plain", or "a1111" for AUTOMATIC1111's syntax: weights such as
                `(x:1.3)`, changes such as `[from:to:when]`, `BREAK`, LoRAs such as
                `<lora:pixel:0.8>`, and lists such as `{red|blue}` and `__colour__`, from which a
                picture's seed chooses; "plain" where None.
            denoising_end: the share of the denoising, above 0 to 1, after which the refiner goes
                on; with a refiner 0.8 where None, unless a model or a recipe of few steps draws. 1
                is the base model alone. Without a refiner the run ends there, and `output_type`
                must be "latent".
            denoising_start: the share of the denoising, 0 to below 1, that another model has done.
                The run goes on from `latents`, its result, without new noise. `image` and `mask`
                may say which part of a picture is kept.
            cache_interval: the whole UNet runs only once in this many evaluations, 1 to 5. The
                others reuse the result of its deep layers, which is quicker and less exact (Ma et
                al. 2023, "DeepCache"). Above 1 it needs a pipeline with `step_cache`.
            clip_skip: the layer of the text encoder that is read, counted from the last one, 1 to
                12, as in AUTOMATIC1111; 0 is the model's own, mostly 1. Only Stable Diffusion 1
                has it. diffusers counts from 0.
            model: the name of a model from `add_model`; the pipeline's own where None. If the
                request before had another model, copying this one to the devices takes a moment.

        Raises:
            DeviceError: if a device fails or has too little memory.
            InputError: if an argument cannot be used; the message names it.
            ScreenError: if `screen` fails; no pictures are returned then.
            NotFiniteError: if values overflow, as when LoRAs change a network too much.
            Cancelled: if `cancelled` was set during the run.
        """
        settings |= {
            "negative_prompt": negative_prompt,
            "guidance_scale": guidance_scale,
            "seed": seed,
        }
        values = {name: value for name, value in settings.items() if value is not None}
        request = prompt if isinstance(prompt, GenerateRequest) else GenerateRequest(prompt)
        request = replace(request, **values)
        if extend is not None:
            image, mask = extended(image, mask, extend)
            if request.padding is None:
                request = replace(request, padding=EXTEND_PADDING)
        pictures: list[Given] = []
        if not isinstance(controls, str | None):
            pictures = [control.image for control in controls]
            controls = _controls_text(controls)
        if controls is not None:
            request = replace(request, controls=controls)
        inputs = Inputs(image, mask, latents, denoising_start, pictures)
        drawing = self.prepare(request, images, height, width, inputs, output_type, cancelled)
        self.begin(drawing)
        try:
            self._draw(drawing, on_step, on_preview)
        finally:
            self.drop(drawing)
        return drawing.result()

    def _draw(self, drawing: Drawing, on_step: OnStep | None, on_preview: OnPreview | None) -> None:
        """Advance all drawings until this one is over; raise its error if there is one."""
        reported = 0
        while not drawing.is_over:
            self.advance()
            if drawing.error is None and drawing.done > reported:
                reported = drawing.done
                if on_step is not None:
                    on_step(reported, drawing.total, jax.device_put(drawing.newest_latents()))
                if on_preview is not None and reported < drawing.total:
                    on_preview(partial(self._looks, drawing))
        if drawing.error is not None:
            raise drawing.error

    def _looks(self, drawing: Drawing) -> np.ndarray:
        return np.stack([look for _, look in sorted(self.look(drawing).items())])

    # --- drawings

    def prepare(
        self,
        request: GenerateRequest,
        images: int | None = None,
        height: int | None = None,
        width: int | None = None,
        inputs: Inputs = NO_INPUTS,
        output_type: str = "pil",
        cancelled: Event | None = None,
    ) -> Drawing:
        """Return the drawing of a request, which `begin` begins; no device is used.

        Any thread may call this. The arguments are those of `generate`, but for `request` and
        `inputs`.

        Raises:
            Cancelled: if `cancelled` is set.
            InputError: if a value cannot be used; the message names it.
        """
        pipe = self._pipe_of(request.model)
        return pipe._planner.plan(
            request,
            self._facts.images_per_request if images is None else images,
            pipe._sampler(height, width),
            inputs,
            output_type,
            Event() if cancelled is None else cancelled,
        )

    @failures_explained()
    def advance(self) -> list[Progress]:
        """Advance the pictures in all slots by one evaluation, without compiling anything.

        Pictures of drawings that have begun enter free slots first. The devices work ahead: what
        this returns was queued up to two calls earlier. See `Engine.advance`.

        Returns:
            The drawings that moved.

        Raises:
            DeviceError: if a device fails or has too little memory; no drawing goes on then.
        """
        return super().advance()

    def measure(
        self,
        prompt: str,
        prompt_syntax: str | None = None,
        num_inference_steps: int | None = None,
    ) -> Length:
        """Return the length of a prompt in tokens. Any thread may call this.

        If the prompt has several texts in a run of these steps, the longest one counts, and the
        longest options of its lists. The arguments are those of `generate`.

        Raises:
            InputError: if an argument cannot be used; the message names it.
        """
        facts = self._facts
        steps = facts.num_inference_steps if num_inference_steps is None else num_inference_steps
        check_count("num_inference_steps", steps, 1, facts.max_inference_steps)
        reading = explain(prompt, prompt_syntax or PLAIN, steps)
        adapters = map(self._adapters.loaded.get, reading.loras)
        embeddings = self._embeddings.with_bundles(adapters, self._config.widths)
        placement = Placement(embeddings, limit=None)
        chunks, length = self._compiled.shapes.chunks, self._tokenizers.length
        placed_texts = (placed(text.sections, placement) for text in reading.texts)
        tokens = longest([longest(self._tokenizers.tokens(each, chunks)) for each in placed_texts])
        if chunks == 1:
            return Length(tokens.count, length, tokens.truncated)
        return Length(tokens.count - 2, chunks * (length - 2), tokens.truncated, tokens.chunks)

    def _sampler(self, height: int | None, width: int | None) -> CompiledSampler:
        default = self._facts
        wanted = (
            default.height if height is None else height,
            default.width if width is None else width,
        )
        by_size = self._by_size
        if wanted not in by_size:
            there_are = ", ".join(self.facts.size_names)
            raise InputError(f"the size is {wanted[1]}x{wanted[0]}; expected one of {there_are}")
        return by_size[wanted]


def _controls_text(controls: Sequence[Control]) -> str:
    try:
        return format_controls(controls)
    except ValueError as error:
        raise InputError(f"controls: {error}") from error


def _control_facts(control: ControlNetwork) -> ControlFacts:
    types = UNION_TYPES[: control.config.control_types]
    return ControlFacts(control.name, control.digest, types)


def _warm_up(run: CompiledSampler) -> None:
    run.warm_up(np.zeros((run.shapes.images, *run.latents_shape), np.float32))


def _log_recipe(recipe: Recipe) -> None:
    silent = "", None, DEFAULT_SIGMAS
    settings = {name: value for name, value in recipe.settings.items() if value not in silent}
    used_settings = ", ".join(f"{name} {value}" for name, value in settings.items())
    log.info("recognised %s; its settings are the defaults: %s", recipe.title, used_settings)


def _load(
    checkpoint: Checkpoint,
    target: Target,
    cache: ExecutableCache | None,
    second: SecondModel | None,
) -> tuple[Tokenizers, CompiledSampler]:
    """Load the tokenizers and the compiled sampler of a checkpoint on this machine.

    Cached executables are loaded while the checkpoint's files are checked. The other programs are
    compiled while the parameters are loaded. A checkpoint whose files do not fit is refused before
    anything is compiled. So is one that needs more memory than there is, with a second model, by
    its shapes and by what its programs took before; otherwise once its programs are compiled.
    """
    traced = trace_networks(target.config, target.dtype, cache, target.quantization)
    room = Room(models_of(target, traced, second, cache), cache)
    room.check()
    with ThreadPoolExecutor(2, thread_name_prefix="load") as threads:
        cached = threads.submit(load_cached, target, cache)
        tokenizers = load_tokenizers(checkpoint, cache)
        found = match_networks(checkpoint, traced)
        networks = threads.submit(load_networks, found, place_on(target.mesh))
        executables = compile_missing(target, traced, cache, cached.result())
        room.admit(target, measured_bytes(executables))
        parameters = Parameters(networks.result(), found)
    return tokenizers, CompiledSampler(target, executables, parameters, room)
