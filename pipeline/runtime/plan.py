"""Plans of a pipeline's memory and compile time, made before anything is compiled.

Nothing is compiled for a plan, and no weights are read. The weights' bytes are exact, since they
follow from the networks' shapes. The rest follows from a few rules, whose rates differ by kind of
device (`pipeline.runtime.device_kinds`):

- The code of a program, and the time to compile it, grow with the number of its networks' weight
  tensors, because every layer is compiled by itself.
- The temporaries of a program grow with its network's largest activations, which are those of one
  picture, or of all of a device's pictures where the UNet predicts for these in one batch. The
  UNet's program also holds copies of the prompt's keys and values.
- Every size of pictures has programs of its own, except for those of prompts and the safety
  checker's, which serve all sizes.
- Every picture is counted with a prompt that changes between as many texts as it may.
- Programs run one at a time, so that only the largest temporaries count.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipeline.errors import DeviceError
from pipeline.kernels.attention import CACHED_BYTES, SCORE_BYTES
from pipeline.kernels.int8 import WIDENED
from pipeline.runtime.compiled import Layout
from pipeline.runtime.device_kinds import DeviceKind
from pipeline.runtime.model_size import (
    CONTEXT,
    FLOAT32,
    SAFETY_CHECKER,
    TEXT_ENCODERS,
    TINY_VAE,
    UNET,
    VAE,
    ModelSize,
)
from pipeline.schedulers.table import REMEMBERED
from pipeline.text.prompt_syntax import MAX_TEXTS

log = logging.getLogger(__name__)

Size = tuple[int, int]  # height and width in pixels
HALVES = 2  # of guidance: one for the negative prompt, one for the prompt
SPREAD = {UNET, VAE, TINY_VAE}  # the networks whose activations devices share with the rows


class Share(NamedTuple):
    """One device's share of the work.

    Attributes:
        pictures: number of pictures that the device draws at once.
        halves: number of guidance halves that it computes, 1 or 2.
        tokens: number of tokens of a prompt.
        pixels: pixels of a picture; 0 for programs that serve all sizes.
        rows: number of devices that share a picture's rows in the UNet.
    """

    pictures: int
    halves: int
    tokens: int
    pixels: int
    rows: int = 1


@dataclass(frozen=True)
class Load:
    """The work of a program: its network, and the batch that the network sees at once.

    Attributes:
        network: name of the network in `ModelSize`; None for a program without one.
        by_size: whether every size of pictures needs its own program.
        units: returns the number of units in a share; `NetworkSize.activations` are per unit.
    """

    network: str | None
    by_size: bool
    units: Callable[[Share], int]


LOADS = {
    "step": Load(UNET, True, lambda share: share.pixels),
    "decode": Load(VAE, True, lambda share: share.pixels),
    "tiny_decode": Load(TINY_VAE, True, lambda share: share.pixels),
    "encode_image": Load(VAE, True, lambda share: share.pixels),
    "encode": Load(TEXT_ENCODERS, False, lambda share: share.halves * share.tokens),
    "condition": Load(CONTEXT, False, lambda share: share.halves * share.tokens),
    "enter": Load(None, True, lambda share: share.pictures * share.pixels),
    "noise": Load(None, True, lambda share: share.pictures * share.pixels),
    "vary": Load(None, True, lambda share: share.pictures * share.pixels),
    "check": Load(SAFETY_CHECKER, False, lambda _: 1),
}


# The programs that a refiner does not share with the base model.
REFINER_LOADS = "step", "encode", "condition"


@dataclass(frozen=True)
class PlannedProgram:
    """One program's part of a plan: bytes of code and temporaries on a device, and seconds."""

    name: str
    size: Size | None
    code: int
    temporaries: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The memory and the compile time of a pipeline, in bytes of one device and seconds.

    On a CPU, whose devices share one memory and all code, the bytes are those of all devices.

    Attributes:
        kind: the kind of the devices.
        devices: the number of devices in use.
        weights: the parameters.
        pristine: the copy of the parameters that LoRAs change, and on a CPU the LoRAs themselves
            and the parameters merged last.
        arrays: the arguments and results of programs beside the parameters.
        programs: the programs, the slowest to compile first for each size.
        memory: the device's memory; None if it is not known.
    """

    kind: DeviceKind
    devices: int
    weights: int
    pristine: int
    arrays: int
    programs: tuple[PlannedProgram, ...]
    memory: int | None

    @property
    def where(self) -> str:
        """Phrase for the owner of the memory."""
        return "this machine" if self.is_shared else f"one {self.kind.name}"

    @property
    def is_shared(self) -> bool:
        """Whether all devices share one memory."""
        return not self.kind.platform.is_accelerator

    @property
    def code(self) -> int:
        """Bytes of all programs' code."""
        return sum(program.code for program in self.programs)

    @property
    def temporaries(self) -> int:
        """Bytes of the largest temporaries; programs run one at a time."""
        return max(program.temporaries for program in self.programs)

    @property
    def seconds(self) -> float:
        """Seconds to compile all programs, those of one size in parallel."""
        slowest: dict[Size | None, float] = {}
        for program in self.programs:
            slowest[program.size] = max(slowest.get(program.size, 0), program.seconds)
        # Programs that serve all sizes are compiled together with those of the first size.
        of_no_size, first, *others = slowest.pop(None), *slowest.values()
        return max(of_no_size, first) + sum(others)

    @property
    def total(self) -> int:
        """Estimated bytes in total."""
        return self._total(1)

    @property
    def range(self) -> tuple[int, int]:
        """Lowest and highest likely total, in bytes."""
        least, most = self.kind.rates.spread
        return self._total(least), self._total(most)

    @property
    def fits(self) -> bool:
        """Whether the estimated total fits into the device's memory."""
        return self.memory is None or self.total <= self.memory

    @property
    def is_hopeless(self) -> bool:
        """Whether even the lowest likely total exceeds the memory."""
        return self.memory is not None and self.range[0] > self.memory

    def _total(self, factor: float) -> int:
        fixed = self.weights + self.pristine + self.arrays
        return fixed + int(factor * (self.code + self.temporaries))


# A smaller pipeline: the advice to use it, its budget, and its sizes.
Alternative = tuple[str, "Budget", Sequence[Size]]


@dataclass(frozen=True)
class Budget:
    """The memory of a machine's devices, and the pipeline that has to fit into it.

    Attributes:
        model: sizes of the checkpoint's networks.
        kind: the kind of the devices.
        memory: bytes of one device, or of all devices of a CPU; None if not known.
        layout: returns how the devices share a number of pictures, as `compiled.choose_layout`
            does.
        images: pictures per request.
        tokens: tokens of a prompt.
        pristine: bytes of the parameters that loaded LoRAs change; there is a copy without them.
        adapters: bytes of the loaded LoRAs, and of the parameters merged last, which are in the
            host's memory.
        refiner: sizes of the networks of a refiner, which has a UNet of its own; None without one.
        unchanged: bytes of the parameters that LoRAs change in the text encoders that the refiner
            shares, because it goes on with those from before.
        step_cache: whether the slots hold deep features.
    """

    model: ModelSize
    kind: DeviceKind
    memory: int | None
    layout: Callable[[int], Layout]
    images: int
    tokens: int
    pristine: int = 0
    adapters: int = 0
    refiner: ModelSize | None = None
    unchanged: int = 0
    step_cache: bool = False

    @property
    def most_pristine(self) -> int:
        """Bytes of all parameters that LoRAs can change."""
        networks = (self.model.networks[name] for name in (UNET, TEXT_ENCODERS))
        return sum(network.bytes for network in networks)

    @property
    def most_unchanged(self) -> int:
        """Bytes of all parameters that LoRAs can change in text encoders of the refiner too."""
        return 0 if self.refiner is None else self.refiner.networks[TEXT_ENCODERS].bytes

    def plan(self, sizes: Sequence[Size]) -> Plan:
        """Return the plan of a pipeline with these sizes of pictures."""
        layout = self.layout(self.images)
        copies = 1 if self.kind.platform.is_accelerator else layout.devices
        pictures, halves = self.images // layout.images, HALVES // layout.guidance
        names = [name for name in LOADS if self._exists(name)]
        models, weights = [("", self)], self.model.weights
        if self.refiner is not None:
            models.append(("refiner ", replace(self, model=self.refiner, refiner=None)))
            weights += self.refiner.networks[UNET].bytes
        programs = []
        for size in (*sizes, None):
            pixels = 0 if size is None else math.prod(size)
            share = Share(pictures, halves, self.tokens, pixels, layout.rows)
            programs += [
                replace(model._program(name, size, share, copies), name=f"{prefix}{name}")
                for prefix, model in models
                for name in names
                if LOADS[name].by_size == (size is not None)
                and not (prefix and name not in REFINER_LOADS)
            ]
        shares = [Share(pictures, halves, self.tokens, math.prod(size)) for size in sizes]
        arrays = sum(max(map(model._arrays, shares)) for _, model in models)
        return Plan(
            self.kind,
            layout.devices,
            copies * weights,
            self._pristine(layout.devices),
            copies * arrays,
            tuple(programs),
            self.memory,
        )

    def _pristine(self, devices: int) -> int:
        """Return the bytes that the pristine copy takes of a device's memory, or of a CPU's."""
        if not self.kind.platform.is_accelerator:
            return self.pristine + self.adapters
        spread = math.ceil(self.pristine / devices) if devices > 1 else 0
        return spread + (self.unchanged if self.refiner is not None else 0)

    def check(self, sizes: Sequence[Size]) -> None:
        """Refuse sizes of pictures that the memory cannot hold, and log a warning where it may not.

        Raises:
            DeviceError: if even the lowest likely total exceeds the memory. The message says what
                to leave out.
        """
        plan = self.plan(sizes)
        if plan.is_hopeless:
            raise DeviceError(self.refusal(plan, sizes))
        if not plan.fits:
            log.warning("%s", self.refusal(plan, sizes))

    def refusal(self, plan: Plan, sizes: Sequence[Size]) -> str:
        """Return why a plan does not fit, and what to leave out."""
        assert plan.memory is not None
        needs, total = (
            ("needs at least", plan.range[0]) if plan.is_hopeless else ("may need", plan.total)
        )
        copy = f"{gigabytes(plan.pristine)} for LoRAs, " if plan.pristine else ""
        return (
            f"too little memory: {sizes_text(sizes)}, {self.images} pictures per request, {needs} "
            f"{gigabytes(total)} of the {gigabytes(plan.memory)} of {plan.where}: "
            f"{gigabytes(plan.weights)} of weights, {copy}about {gigabytes(plan.code)} of code and "
            f"about {gigabytes(plan.temporaries)} of temporaries; {self._advice(sizes, plan)}"
        )

    def _advice(self, sizes: Sequence[Size], refused: Plan) -> str:
        """Return advice on what to leave out, such that the rest would not be refused."""

        def works(budget: "Budget", sizes: Sequence[Size]) -> bool:
            plan = budget.plan(sizes)
            return not plan.is_hopeless if refused.is_hopeless else plan.fits

        found = (
            next((text for text, budget, rest in ways if works(budget, rest)), None)
            for ways in (
                self._fewer_loras(sizes),
                self._no_refiner(sizes),
                self._fewer_sizes(sizes),
                self._fewer_pictures(sizes),
            )
        )
        either = [text for text in found if text is not None]
        if not either:
            smaller = self._smaller(sizes)
            either = [text for text, budget, rest in smaller if works(budget, rest)][:1]
        return " or ".join(either) or "use a smaller model, or a device with more memory"

    def _fewer_loras(self, sizes: Sequence[Size]) -> Iterator[Alternative]:
        if self.pristine:
            yield "load fewer LoRAs", replace(self, pristine=0, adapters=0, unchanged=0), sizes

    def _no_refiner(self, sizes: Sequence[Size]) -> Iterator[Alternative]:
        if self.refiner is not None:
            yield "leave out the refiner (REFINER_ID)", replace(self, refiner=None), sizes

    def _fewer_sizes(self, sizes: Sequence[Size]) -> Iterator[Alternative]:
        for size in reversed(sizes[1:]):
            rest = [each for each in sizes if each != size]
            yield f"leave out the size {sizes_text([size])}", self, rest
        if len(sizes) > 2:
            yield f"leave out the sizes {sizes_text(sizes[1:])}", self, sizes[:1]

    def _fewer_pictures(self, sizes: Sequence[Size]) -> Iterator[Alternative]:
        for images in range(self.images - 1, 0, -1):
            if self.images % images == 0:
                count = f"{images} picture{'s' * (images > 1)}"
                yield f"draw {count} per request", replace(self, images=images), sizes

    def _smaller(self, sizes: Sequence[Size]) -> Iterator[Alternative]:
        """Yield pipelines that draw one picture per request, of the first size or a smaller one."""
        multiple = 8 * self.model.scale_factor
        height, width = sizes[0]
        smaller = (
            (int(share * height) // multiple * multiple, int(share * width) // multiple * multiple)
            for share in (3 / 4, 1 / 2)
        )
        for size in ((height, width), *smaller):
            if min(size) > 0:
                text = f"draw 1 picture per request, of {sizes_text([size])}"
                yield text, replace(self, images=1), [size]

    def _exists(self, name: str) -> bool:
        network = LOADS[name].network
        return network is None or network in self.model.networks

    def _program(self, name: str, size: Size | None, share: Share, copies: int) -> PlannedProgram:
        load, rates = LOADS[name], self.kind.rates
        if load.network is None:
            latents = share.pictures * self._latents(share) * FLOAT32
            return PlannedProgram(name, size, 0, int(copies * latents), 0.0)
        network = self.model.networks[load.network]
        temporaries = rates.activations[load.network] * self._activations(load, share)
        if load.network == UNET:
            temporaries += self._beside_activations(share)
        if load.network == VAE:
            temporaries = max(temporaries, rates.scores * self._decoder_scores(share))
        tensors = network.tensors * (self._forward_passes(share) if load.network == UNET else 1)
        if network.itemsize < FLOAT32:
            own = network.parameters - network.quantized
            temporaries += rates.widened * own * FLOAT32
        if self.kind.platform.int8 == WIDENED:  # XLA converts all of them before its loop
            temporaries += network.quantized * FLOAT32
        return PlannedProgram(
            name,
            size,
            int(rates.code[load.network] * tensors),
            int(copies * temporaries),
            rates.seconds[load.network] * tensors,
        )

    def _beside_activations(self, share: Share) -> float:
        """Return the bytes that the UNet's program holds in addition to activations."""
        rates, unet = self.kind.rates, self.model.networks[UNET]
        batch = share.halves * (share.pictures if self._all_at_once else 1)
        context = rates.context * batch * share.tokens * self.model.context
        arrays = (context + rates.upsampling * unet.upsampling) * unet.itemsize
        return arrays + rates.scores * self._scores(share, batch)

    def _scores(self, share: Share, batch: int) -> float:
        """Return the bytes of attention scores that `attention` holds at once."""
        latent_pixels = share.pixels / self.model.scale_factor**2
        held = [0.0]
        for pixels, heads in self.model.attended:
            of_head = FLOAT32 * (latent_pixels / pixels) ** 2
            held.append(min(batch * heads * of_head, max(CACHED_BYTES, of_head), SCORE_BYTES))
        return max(held)

    def _decoder_scores(self, share: Share) -> float:
        """Return the bytes of the scores of the VAE's attention, which has one head."""
        if not self.model.decoder_attends:
            return 0
        latent_pixels = share.pixels / self.model.scale_factor**2
        return min(FLOAT32 * latent_pixels**2, SCORE_BYTES)

    def _activations(self, load: Load, share: Share) -> float:
        """Return the bytes of a network's largest activations."""
        assert load.network is not None
        network = self.model.networks[load.network]
        units = load.units(share)
        if load.network == UNET:
            units = self._batch(share) * units / self.model.scale_factor**2
        if load.network in SPREAD:
            units /= share.rows
        return network.activations * units * network.itemsize

    @property
    def _all_at_once(self) -> bool:
        """Whether the UNet predicts for all of a device's pictures in one batch."""
        return self.kind.platform.forward == "slots"

    def _batch(self, share: Share) -> int:
        """Return the number of halves of pictures for which the UNet predicts at once."""
        if self.kind.platform.forward == "half":
            return 1
        return share.halves * (share.pictures if self._all_at_once else 1)

    def _forward_passes(self, share: Share) -> int:
        """Return how often the UNet's code is in its program: for both halves, and for one."""
        in_one_batch = self.kind.platform.forward != "half" and share.halves == HALVES
        return 2 if in_one_batch and not self.model.embeds_guidance else 1

    def _latents(self, share: Share) -> float:
        """Return the number of elements in a picture's latents."""
        return self.model.latent_channels * share.pixels / self.model.scale_factor**2

    def _arrays(self, share: Share) -> int:
        """Return the bytes of prompts, latents and finished pictures of one request."""
        itemsize = self.model.networks[UNET].itemsize
        # Prompts that change have the embeddings of all their texts, beside the context of one.
        prompts = self.model.context + MAX_TEXTS * self.model.embeds
        prompts *= share.halves * share.tokens * itemsize
        # A state, and the latents and the noise of the pictures that others start from.
        latents = (1 + REMEMBERED + 2) * self._latents(share) * FLOAT32
        pictures = share.pixels * 3 * (FLOAT32 + 1)  # as float32 and as uint8
        return int(share.pictures * (prompts + latents + pictures + self._deep(share)))

    def _deep(self, share: Share) -> float:
        """Return the bytes of a picture's deep features; 0 without step caching."""
        if not self.step_cache:
            return 0
        halves = 1 if self.model.embeds_guidance else share.halves
        pixels = share.pixels / self.model.scale_factor**2
        return halves * pixels * self.model.deep * self.model.networks[UNET].itemsize


def sizes_text(sizes: Sequence[Size]) -> str:
    """Return sizes as WIDTHxHEIGHT, separated by commas."""
    return ", ".join(f"{width}x{height}" for height, width in sizes)


def gigabytes(size: int) -> str:
    """Return a number of bytes in GB, or in MB where it is small."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
