"""The sampler on devices: mesh, sharding, and the runs of compiled programs over slots.

Everything is compiled once, for fixed shapes. The values that a request may change are arguments,
so that nothing compiles after startup.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.errors import InputError
from pipeline.families.latent_unet import CONTROL
from pipeline.runtime.control_networks import ControlNetwork
from pipeline.runtime.controlling import Prompts, Residuals
from pipeline.runtime.executables import Executables, compile_missing, load_cached, measured_bytes
from pipeline.runtime.parameters import Parameters
from pipeline.runtime.programs import PROGRAMS, Target, network_names
from pipeline.runtime.room import Room
from pipeline.runtime.sampler import Context, Deep, Embeds, Stepped, Tokens
from pipeline.runtime.work import Work, no_work, pack
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import Kept, State
from pipeline.text.controls import UNION_TYPES
from pipeline.text.embeddings import MAX_VECTORS
from pipeline.text.prompt_syntax import MAX_TEXTS

log = logging.getLogger(__name__)


class Layout(NamedTuple):
    """How many devices share the pictures, the guidance halves (1 or 2), and a picture's rows."""

    images: int
    guidance: int
    rows: int = 1

    @property
    def devices(self) -> int:
        """The number of devices in use."""
        return self.images * self.guidance * self.rows


def choose_layout(devices: int, images: int, per_picture: int = 1) -> Layout:
    """Return the layout of devices in which at least `per_picture` of them share a picture.

    It gives each device an equal share of the pictures and uses as many devices as possible. Among
    such layouts it is the one that splits the pictures most.

    Raises:
        InputError: if `per_picture` is odd and not 1, or more than the devices.
    """
    if per_picture > devices or (per_picture > 1 and per_picture % 2):
        right = ", ".join(map(str, (1, *range(2, devices + 1, 2))))
        raise InputError(
            f"devices_per_picture is {per_picture}, with {devices} devices to draw on; expected"
            f" {right}, so that each half of guidance has equally many devices"
        )
    shares = [n for n in range(1, images + 1) if images % n == 0]
    halves, rows = ((1, 2), 1) if per_picture == 1 else ((2,), per_picture // 2)
    layouts = [Layout(n, guidance, rows) for n in shares for guidance in halves]
    fitting_layouts = [layout for layout in layouts if layout.devices <= devices]
    return max(fitting_layouts, key=lambda layout: (layout.devices, layout.images))


def make_mesh(devices: Sequence[jax.Device], images: int, per_picture: int = 1) -> Mesh:
    """Return a mesh with the axes of a `Layout` over as many of the devices as fit."""
    layout = choose_layout(len(devices), images, per_picture)
    if (used := layout.devices) < len(devices):
        log.warning("%d devices found; %d pictures use %d of them", len(devices), images, used)
    # Devices that share rows exchange most, and are neighbours here.
    grid = np.array(devices[:used]).reshape(layout.guidance, layout.images, layout.rows)
    return Mesh(grid, ("guidance", "images", "rows"))


def place_on(mesh: Mesh) -> Callable[[np.ndarray], Array]:
    """Return a function that copies a whole host array to every device of the mesh."""
    return partial(jax.device_put, device=NamedSharding(mesh, P()))


class ControlPrograms(NamedTuple):
    """The programs of networks that guide the denoiser, and the shapes of such a network."""

    network: nnx.Module
    programs: Mapping[str, jax.stages.Compiled]


class CompiledSampler:
    """The sampler's functions as executables for one set of shapes, with networks to run.

    Nothing compiles except in `resized`.

    Args:
        target: what the executables were compiled for.
        executables: the executables of all the target's programs.
        parameters: the parameters of the networks.
        room: the memory that holds them; other sizes need to fit into it.

    Attributes:
        target: what the executables were compiled for.
        parameters: the parameters that every run takes.
        room: the memory that holds them.
        executables: the executables by program name.
        compile_seconds: seconds spent on the executables: "hit" for those from the cache, "miss"
            for those that were compiled.
    """

    def __init__(
        self,
        target: Target,
        executables: Executables,
        parameters: Parameters,
        room: Room,
    ):
        self.mesh = target.mesh
        self.shapes = target.shapes
        self.latents_shape = target.latents_shape
        self.executables = {name: built.executable for name, built in executables.items()}
        self.compile_seconds = {
            source: sum(built.seconds for built in executables.values() if built.source == source)
            for source in ("hit", "miss")
        }
        self.target = target
        self._config = target.config
        self.room = room
        self.parameters = parameters
        self._by_image = NamedSharding(target.mesh, P("images"))
        # The programs of networks that guide the denoiser, by their configuration.
        self._controls: dict[Any, ControlPrograms] = {}

    def guided_by(self, config: Any) -> bool:
        """Return whether it has the programs of networks of a configuration."""
        return config in self._controls

    def add_control(self, config: Any, network: nnx.Module) -> None:
        """Load or compile the programs of networks that guide the denoiser.

        Args:
            config: their configuration.
            network: such a network; shapes and dtypes suffice in place of its parameters.
        """
        if config in self._controls:
            return
        target, cache = self.target.guided_by(config), self.room.cache
        networks = {**self.parameters.networks, CONTROL: network}
        executables = compile_missing(target, networks, cache, load_cached(target, cache))
        programs = {name: built.executable for name, built in executables.items()}
        self._controls[config] = ControlPrograms(network, programs)

    def resized(
        self,
        height: int,
        width: int,
        programs: Mapping[str, jax.stages.Compiled] = MappingProxyType({}),
    ) -> "CompiledSampler":
        """Return a sampler of the same networks and devices for another size, in pixels.

        The two share the parameters, and the programs that do not depend on the size. They also
        share those in `programs`, which are not compiled again.

        Raises:
            DeviceError: if the memory cannot hold the size beside the others.
        """
        unsized_programs = {
            name: executable
            for name, executable in self.executables.items()
            if not PROGRAMS[name].sized
        }
        target, shared_programs = (
            self.target.resized(height, width),
            {**programs, **unsized_programs},
        )
        run = compile_sampler(target, self.parameters, self.room, shared_programs)
        for config, control in self._controls.items():
            run.add_control(config, control.network)
        return run

    def _run(self, program: str, *arguments: Any) -> Any:
        names = network_names(program, self._config.architecture)
        weights = {name: self.parameters.leaves[name] for name in names}
        return _call(self.executables[program], weights, *arguments)

    # --- running

    def warm_up(self, latents: np.ndarray) -> np.ndarray:
        """Run every program once, because the first run of an executable is slow.

        Args:
            latents: latents to decode, `[B, h, w, C]` float32.

        Returns:
            The decoded pictures `[B, H, W, 3]` float32 in 0..1.
        """
        images = self.shapes.images
        all_slots = np.ones(images, bool)
        # One picture on each device is enough, except for `decode`, whose pictures are returned.
        one_per_device = np.arange(images) % (images // self.mesh.shape["images"]) == 0
        ids = [np.zeros((2, images, count), np.int32) for count in self.target.prompt_tokens]
        zeroed, guidance = np.zeros((2, images), bool), np.zeros(images, np.float32)
        embeds = self.encode(self.blank_embeds(), all_slots, ids, zeroed)
        text_numbers = np.zeros((2, images), np.int32)
        context = self.condition(self.blank_context(), all_slots, [embeds], text_numbers, guidance)
        noise = self.initial_latents(np.zeros(images, np.uint32), 1.0)
        pixels = np.zeros((images, self.shapes.height, self.shapes.width, 3), np.float32)
        x0, _ = self.encode_image(pixels, self.vary(noise, noise, 0.5), (1.0, 0.0), one_per_device)
        state, kept = self.enter(
            self.blank_state, self.nothing_kept, x0, self.nothing_kept, all_slots
        )
        first = pack(make_schedule(self._config.scheduler, 1), 2.0, 0.0, guided=1, seed=0)
        work = Work(*(part[:1] * one_per_device[:, None].astype(part.dtype) for part in first))
        residuals = None
        if self.target.controls:
            residuals = self.clear(self.blank_residuals(), one_per_device)
        jax.block_until_ready(self.step(state, context, work, kept, self.blank_deep(), residuals))
        if (checker := self._config.safety_checker) is not None:
            side = checker.vision.image_size
            self.check(np.zeros((images, side, side, 3), np.uint8), one_per_device)
        device_latents = self.put_columns(latents)
        if self.has_tiny_vae:
            jax.block_until_ready(self.tiny_decode(device_latents, one_per_device))
        pictures, _ = self.decode(device_latents, all_slots)
        return np.asarray(pictures)

    def warm_up_control(self, network: ControlNetwork) -> None:
        """Run the programs of a network that guides the denoiser once, as `warm_up` does."""
        images = self.shapes.images
        nothing, ones = np.zeros(images, bool), np.ones(images, np.float32)
        pixels = np.zeros((images, self.shapes.height, self.shapes.width, 3), np.float32)
        numbers = np.zeros((2, images), np.int32)
        hints = self.hint(network, self.blank_hints(), pixels, numbers[0], ones, nothing, nothing)
        residuals = self.blank_residuals()
        prompts = [self.blank_embeds()], numbers, numbers + 1
        types = np.zeros((images, len(UNION_TYPES)), np.float32)
        self.control(
            network,
            residuals,
            self.blank_state.latents,
            no_work(images),
            (*prompts, types),
            hints,
            np.zeros((2, images, len(residuals)), np.float32),
            (nothing, nothing),
        )

    def blank_embeds(self) -> Embeds:
        """Return the embeddings of empty slots, zeros of their own."""
        return self._blank("encode")

    def blank_context(self) -> Context:
        """Return the context of empty slots, zeros of its own."""
        return self._blank("condition")

    def _blank(self, program: str) -> Any:
        """Return zeros in place of the first argument of a program."""
        executable = self.executables[program]
        specs, shardings = executable.args_info[0][1], executable.input_shardings[0][1]
        return jax.tree.map(
            lambda info, sharding: jax.device_put(np.zeros(info.shape, info.dtype), sharding),
            specs,
            shardings,
        )

    @cached_property
    def blank_state(self) -> State:
        """The state of empty slots."""
        return _zeros(self.target.state_spec)

    def blank_deep(self) -> Deep:
        """Return the deep features of empty slots, zeros of their own; None without step caching.

        The memory of deep features is used again by `step`.
        """
        return _zeros(self.target.deep_spec)

    @cached_property
    def nothing_kept(self) -> Kept:
        """The kept parts of pictures that are drawn as a whole."""
        blank = jax.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), self.target.kept_spec)
        return self.put_columns(blank._replace(mask=np.ones_like(blank.mask)))

    def encode_image(
        self,
        images: np.ndarray,
        noise: Array,
        coefficients: tuple[float, float],
        slot_mask: np.ndarray,
    ) -> tuple[Array, Array]:
        """Return the latents `[B, h, w, C]` of pictures, and those with noise.

        Args:
            images: `[B, H, W, 3]` float32 in 0..1.
            noise: standard normal noise `[B, h, w, C]` float32.
            coefficients: those of the pictures' latents and of the noise; see `add_noise`.
            slot_mask: `[B]` bool, the slots to encode; the others are 0.
        """
        pair = np.array(coefficients, np.float32)
        return self._run("encode_image", images, noise, pair, slot_mask)

    def encode(
        self,
        embeds: Embeds,
        new_slots: np.ndarray,
        input_ids: Sequence[np.ndarray],
        zeroed: np.ndarray,
        vectors: Sequence[np.ndarray] | None = None,
        weights: Sequence[np.ndarray] | None = None,
        chunks: np.ndarray | None = None,
        clip_skip: np.ndarray | None = None,
    ) -> Embeds:
        """Return embeddings with those of new pictures' prompts.

        New pictures with the same prompts on the same device share one encoding.

        Args:
            embeds: the embeddings of all slots. Their buffers are donated.
            new_slots: `[B]` bool, the slots of the new pictures. The other arguments matter only
                there.
            input_ids: for each text encoder `[2, B, C * L]` int32 for C chunks, the negative
                prompts first; see `Architecture.encode`.
            zeroed: `[2, B]` bool; see `Architecture.encode`.
            vectors: each text encoder's `[MAX_VECTORS, D]` float32, for ids below 0; see
                `CLIPTextEncoder`. None means zeros.
            weights: how much each token counts, like `input_ids` but float32; None means 1.
            chunks: `[2, B]` int32, the number of chunks of each prompt, at most C; None means 1.
            clip_skip: likewise; see `Architecture.encode`. None means 1.
        """
        ones = np.ones(zeroed.shape, np.int32)
        tokens = Tokens(
            ids=(*input_ids,),
            weights=tuple(weights or (np.ones(ids.shape, np.float32) for ids in input_ids)),
            zeroed=zeroed,
            chunks=ones if chunks is None else chunks,
            clip_skip=ones if clip_skip is None else clip_skip,
        )
        rows = self._no_vectors if vectors is None else tuple(vectors)
        per_device = len(new_slots) // self.mesh.shape["images"]
        sources = _sources(
            new_slots, per_device, [leaf.swapaxes(0, 1) for leaf in jax.tree.leaves(tokens)]
        )
        return self._run("encode", embeds, sources, tokens, rows)

    def condition(
        self,
        context: Context,
        new_slots: np.ndarray,
        texts: Sequence[Embeds],
        text_numbers: np.ndarray,
        guidance: np.ndarray,
        chunks: np.ndarray | None = None,
    ) -> Context:
        """Return the context with that of some pictures' prompts, for the steps that follow.

        Args:
            context: the context of all slots. Its buffers are donated.
            new_slots: `[B]` bool, the slots of these pictures. The other arguments matter only
                there.
            texts: the embeddings of the texts between which prompts change, up to `MAX_TEXTS`.
            text_numbers: `[2, B]` int32, which of the texts each prompt has, the negative prompts
                first.
            guidance: `[B]` float32, the guidance scales minus 1, for networks that take them.
            chunks: `[2, B]` int32, the number of chunks of each prompt; None means 1.
        """
        counts = np.ones(text_numbers.shape, np.int32) if chunks is None else chunks
        inputs = new_slots, _all_texts(texts), text_numbers, *self._picture, guidance, counts
        return self._run("condition", context, *inputs)

    @cached_property
    def _no_vectors(self) -> tuple[Array, ...]:
        widths = [encoder.hidden_size for encoder in self._config.text_encoders.values()]
        zeros = tuple(np.zeros((MAX_VECTORS, width), np.float32) for width in widths)
        return jax.device_put(zeros, NamedSharding(self.mesh, P()))

    def put_columns(self, arrays: Any) -> Any:
        """Copy arrays `[B, ...]` to the devices, each device its slots' part."""
        return jax.device_put(arrays, self._by_image)

    def initial_latents(self, seeds: np.ndarray, init_noise_sigma: float) -> Array:
        """Return noise `[B, h, w, C]` float32 of deviation `init_noise_sigma`.

        `seeds` are `[B]` uint32.
        """
        return self._run("noise", seeds, np.float32(init_noise_sigma))

    def vary(self, base_noise: Array, other_noise: Array, strength: float) -> Array:
        """Return initial latents: `base_noise` turned towards `other_noise` by `strength`, 0..1."""
        return self._run("vary", base_noise, other_noise, np.float32(strength))

    def enter(
        self, state: State, kept: Kept, latents: Array, parts: Kept, new_slots: np.ndarray
    ) -> tuple[State, Kept]:
        """Return the state and the kept parts with those of pictures in new slots, `[B]` bool.

        The pictures start from `latents`, and `parts` of them are kept.
        """
        return self._run("enter", state, kept, latents, parts, new_slots)

    def step(
        self,
        state: State,
        context: Context,
        work: Work[np.ndarray],
        kept: Kept,
        deep: Deep = None,
        residuals: Residuals | None = None,
    ) -> Stepped:
        """Return the state after one evaluation of the network for each slot with work.

        `residuals` are those of all slots; None without controls.

        Returns:
            The state, and the deep features for the next evaluation, which take the memory of
            `deep`.
        """
        return self._run("step", state, context, work, kept, deep, residuals)

    # --- networks that guide the denoiser

    def blank_residuals(self) -> Residuals:
        """Return the residuals of empty slots, zeros of their own."""
        return _zeros(self.target.residuals_spec)

    def blank_hints(self) -> Array:
        """Return hints of empty slots, zeros of their own."""
        return _zeros(self.target.hints_spec)

    def clear(self, residuals: Residuals, slot_mask: np.ndarray) -> Residuals:
        """Return residuals with zeros in some slots, `[B]` bool. Their buffers are donated."""
        return self._run("clear", residuals, slot_mask)

    def hint(
        self,
        network: ControlNetwork,
        hints: Array,
        images: np.ndarray,
        kinds: np.ndarray,
        weights: np.ndarray,
        adds: np.ndarray,
        new_slots: np.ndarray,
    ) -> Array:
        """Return hints with those of new pictures; see `controlling.hint`.

        The buffers of `hints` are donated.
        """
        executable = self._controls[network.config].programs["hint"]
        arguments = hints, images, kinds, weights, adds, new_slots
        return _call(executable, {CONTROL: network.leaves}, *arguments)

    def control(
        self,
        network: ControlNetwork,
        residuals: Residuals,
        latents: Array,
        work: Work[np.ndarray],
        prompts: tuple[Sequence[Embeds], np.ndarray, np.ndarray, np.ndarray],
        hints: Array,
        scales: np.ndarray,
        flags: tuple[np.ndarray, np.ndarray],
    ) -> Residuals:
        """Return residuals with those of a network for some pictures.

        Args:
            network: the network.
            residuals: those of all slots. Their buffers are donated.
            latents: the latents of all slots, `[B, h, w, C]`.
            work: the work of all slots.
            prompts: the fields of `controlling.Prompts`, with up to `MAX_TEXTS` texts.
            hints: what the pictures follow, from `hint`.
            scales: see `controlling.Following`.
            flags: the slots, `[B]` bool, whose residuals are added to those that are there; and all
                slots of these pictures.
        """
        texts, *numbers = prompts
        executable = self._controls[network.config].programs["control"]
        inputs = residuals, latents, work, Prompts(_all_texts(texts), *numbers), self._picture
        return _call(executable, {CONTROL: network.leaves}, *inputs, hints, scales, flags)

    @property
    def _picture(self) -> tuple[np.ndarray, np.ndarray]:
        """The pictures' size, and which halves of guidance are those of the negative prompts."""
        size = np.array([self.shapes.height, self.shapes.width], np.float32)
        return size, np.array([True, False])

    def decode(self, latents: Array, slot_mask: np.ndarray) -> tuple[Array, Array]:
        """Return the pictures of latents, `[B, H, W, 3]`, as float32 in 0..1 and as uint8.

        Only the slots in `slot_mask`, `[B]` bool, are decoded; the others are 0.
        """
        return self._run("decode", latents, slot_mask)

    @property
    def has_tiny_vae(self) -> bool:
        """Whether `tiny_decode` and `preview` can be called."""
        return "tiny_decode" in self.executables

    def tiny_decode(self, latents: Array, slot_mask: np.ndarray) -> tuple[Array, Array]:
        """Do what `decode` does, with the tiny VAE."""
        coefficients = np.tile(np.array([1, 0], np.float32), (len(slot_mask), 1))
        state = State(latents, self.blank_state.history)
        images, pixels, _ = self._run("tiny_decode", state, coefficients, slot_mask)
        return images, pixels

    def preview(
        self, before: Array, after: State, pred_x0: np.ndarray, slot_mask: np.ndarray
    ) -> np.ndarray:
        """Return previews of unfinished pictures, `[B, h, w, 3]` uint8, by the tiny VAE.

        Args:
            before: the latents `[B, h, w, C]` before an evaluation.
            after: the state after it.
            pred_x0: `[B, 2]` float32, the row of each picture's `Schedule.pred_x0`.
            slot_mask: `[B]` bool, the slots to decode; the others are 0.
        """
        state = State(before, after.history)
        *_, previews = self._run("tiny_decode", state, pred_x0, slot_mask)
        return np.asarray(previews)

    def check(self, images: np.ndarray, slot_mask: np.ndarray) -> np.ndarray:
        """Return which of the pictures in `slot_mask` the safety checker flags, `[B]` bool.

        `images` are `[B, S, S, 3]` uint8, from `moderation.prepare`.
        """
        return np.asarray(self._run("check", images, slot_mask))


def compile_sampler(
    target: Target,
    parameters: Parameters,
    room: Room,
    shared: Mapping[str, jax.stages.Compiled],
) -> CompiledSampler:
    """Return a sampler for a target, whose programs are loaded from the cache or compiled.

    Args:
        target: what to compile for.
        parameters: the parameters of its networks.
        room: the memory that holds them.
        shared: executables of another sampler that serve this one too, by program name.

    Raises:
        DeviceError: if there is too little memory.
    """
    cached = load_cached(target, room.cache, without=shared)
    executables = compile_missing(target, parameters.networks, room.cache, cached, shared)
    room.admit(target, measured_bytes(executables))
    return CompiledSampler(target, executables, parameters, room)


def _call(executable: jax.stages.Compiled, weights: Mapping[str, Any], *arguments: Any) -> Any:
    """Run an executable; arrays of the host are copied to the devices."""
    _, *shardings = executable.input_shardings[0]
    return executable(weights, *jax.tree.map(_placed, arguments, tuple(shardings)))


def _all_texts(texts: Sequence[Embeds]) -> tuple[Embeds, ...]:
    """Return `MAX_TEXTS` texts, of which the first ones matter."""
    return (*texts, *[texts[0]] * (MAX_TEXTS - len(texts)))


def _placed(array: Any, sharding: jax.sharding.Sharding) -> Array:
    """Copy an array of the host to the devices; an array of the devices stays where it is."""
    return array if isinstance(array, Array) else jax.device_put(array, sharding)


def _zeros(specs: Any) -> Any:
    """Return zeros on the devices in place of specs."""
    return jax.tree.map(
        lambda spec: jax.device_put(np.zeros(spec.shape, spec.dtype), spec.sharding), specs
    )


def _sources(new_slots: np.ndarray, per_device: int, values: Sequence[np.ndarray]) -> np.ndarray:
    """Return which slot each new slot gets its embeddings from, `[B]` int32.

    It is the first new slot of the same device with the same values, by its index among the
    device's slots; -1 for a slot that is not new.

    Args:
        new_slots: `[B]` bool.
        per_device: the number of slots of each device.
        values: arrays `[B, ...]`.
    """
    sources = np.full(len(new_slots), -1, np.int32)
    first: dict[tuple[int | bytes, ...], int] = {}
    for slot in map(int, np.flatnonzero(new_slots)):
        slot_values = (*(array[slot].tobytes() for array in values),)
        sources[slot] = first.setdefault((slot // per_device, *slot_values), slot % per_device)
    return sources
