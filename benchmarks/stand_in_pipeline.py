"""A stand-in for `SDXLPipeline`: the real engine, over slots in which nothing is computed."""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from pipeline import InputError
from pipeline.drawing.drawing import Drawing, Look
from pipeline.drawing.engine import Engine
from pipeline.drawing.origins import NO_INPUTS, Inputs
from pipeline.drawing.planning import Drawer, make_stage, plan_run, resolved
from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.images.preview import Colours
from pipeline.request import GenerateRequest, Request, check_request, effective
from pipeline.resolve import resolve
from pipeline.runtime.work import Work
from pipeline.schedulers.config import Betas, SchedulerConfig
from pipeline.schedulers.table import State
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.prompt_syntax import PLAIN
from pipeline.text.tokenizer import Tokenizers, Tokens, Words

if TYPE_CHECKING:
    from pipeline import SDXLPipeline
    from pipeline.runtime.adapters import Adapters
    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.models import Model

EULER = SchedulerConfig(
    name="euler",
    num_train_timesteps=1000,
    training=Betas(0.00085, 0.012, "scaled_linear"),
    prediction_type="epsilon",
    timestep_spacing="leading",
    steps_offset=1,
    sigma_schedule="default",
    set_alpha_to_one=False,
)


def number_of(prompt: str) -> int:
    """Return the number that stands for a prompt in place of its tokens."""
    return zlib.crc32(prompt.encode())


@dataclass(frozen=True)
class Computation:
    """A step that the devices compute; `wait` returns when they have."""

    wait: Callable[[], None]

    def block_until_ready(self) -> Computation:
        """Wait for it, as for a JAX array."""
        self.wait()
        return self


class Run:
    """A stand-in for `CompiledSampler`.

    The latents of a picture are its seed and, after a step, the number of its prompt for the model
    in use, float64.

    Args:
        pipe: begins steps, and makes the pictures.
        height: in pixels.
        width: in pixels.
    """

    has_tiny_vae = True
    nothing_kept = None
    latents_shape = 1, 1, 2

    def __init__(self, pipe: StandInPipeline, height: int, width: int) -> None:
        self.shapes = SimpleNamespace(
            images=pipe.facts.images_per_request, height=height, width=width, chunks=1
        )
        self.mesh = SimpleNamespace(shape={"images": 1})
        self.target = SimpleNamespace(config=SimpleNamespace(safety_checker=None), controls=False)
        latents = np.zeros((self.shapes.images, *self.latents_shape))
        self.blank_state = _state(latents, Computation(lambda: None))
        self._pipe = pipe

    def blank_embeds(self) -> np.ndarray:
        """Return the numbers of the prompts in the slots, `[B]`."""
        return np.zeros(self.shapes.images, np.int64)

    def blank_context(self) -> np.ndarray:
        """Return the numbers of the prompts in the slots, `[B]`."""
        return self.blank_embeds()

    def encode(
        self, embeds: np.ndarray, new: np.ndarray, input_ids: Sequence[np.ndarray], *_: Any
    ) -> np.ndarray:
        """See `CompiledSampler.encode`."""
        return np.where(new, input_ids[0][1, :, 0], embeds)

    def condition(
        self,
        context: np.ndarray,
        new: np.ndarray,
        texts: Sequence[np.ndarray],
        chosen: np.ndarray,
        *_: Any,
    ) -> np.ndarray:
        """See `CompiledSampler.condition`."""
        return np.where(new, np.stack(texts)[chosen[1], np.arange(len(new))], context)

    def initial_latents(self, seeds: np.ndarray, init_noise_sigma: float) -> np.ndarray:
        """See `CompiledSampler.initial_latents`; a deviation that is not finite spreads."""
        latents = np.zeros((self.shapes.images, *self.latents_shape))
        latents[:, 0, 0, 0] = seeds + 0 * init_noise_sigma
        return latents

    def vary(self, own: np.ndarray, *_: Any) -> np.ndarray:
        """Return the latents as they are."""
        return own

    def enter(
        self, state: State, kept: None, latents: np.ndarray, parts: None, new: np.ndarray
    ) -> tuple[State, None]:
        """See `CompiledSampler.enter`."""
        entered = np.where(new[:, None, None, None], latents, state.latents)
        return _state(entered, state.history), None

    def blank_deep(self) -> None:
        """See `CompiledSampler.blank_deep`."""

    def step(
        self, state: State, context: np.ndarray, work: Work[np.ndarray], *_: None
    ) -> tuple[State, None]:
        """See `CompiledSampler.step`."""
        wanted = work.column("halves") > 0
        computation = self._pipe.begin_step(context[wanted])
        latents = np.array(state.latents)
        latents[wanted, 0, 0, 1] = context[wanted] ^ number_of(self._pipe.adapters.model.name)
        return _state(latents, computation), None

    def decode(self, latents: np.ndarray, wanted: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return the wanted pictures `[B, H, W, 3]` uint8 in the second place."""
        height, width = self.shapes.height, self.shapes.width
        pixels = np.zeros((len(latents), height, width, 3), np.uint8)
        for slot in np.flatnonzero(wanted & np.isfinite(latents).all((1, 2, 3))):
            seed, prompt = (int(number) for number in latents[slot, 0, 0])
            pixels[slot] = self._pipe.picture(seed, prompt, height, width)
        return None, pixels

    tiny_decode = decode

    def preview(self, before: np.ndarray, *_: Any) -> np.ndarray:
        """See `CompiledSampler.preview`."""
        return np.full((len(before), self.shapes.height // 8, self.shapes.width // 8, 3), 99, "u1")


def _state(latents: np.ndarray, computation: Any) -> State:
    return State(cast(Any, latents), computation)


class _Tokenizers:
    """A stand-in for `Tokenizers`, for which every prompt is one token."""

    def __init__(self, truncated: str) -> None:
        self._truncated = truncated

    def tokens(self, prompt: Sequence[Any], chunks: int) -> list[Tokens]:
        """Return the number of a prompt, and the text that did not fit."""
        number = number_of("".join(part.text for part in prompt if isinstance(part, Words)))
        return [Tokens(np.array([number]), np.ones(1, np.float32), self._truncated, count=1)]


@dataclass(frozen=True, eq=False)
class _Model:
    """A stand-in for `Model`, which has no files."""

    name: str


MODEL = cast("Model", _Model(""))


class _Selection:
    """A stand-in for `Adapters`: the model and LoRAs in use.

    `check` raises for unknown LoRAs, and a change of the model takes `change_s` seconds.
    """

    hashes = None

    def __init__(self, check: Callable[[Mapping[str, Any]], None], change_s: float) -> None:
        self._check = check
        self._change_s = change_s
        self.weights, self.model = {}, MODEL

    def is_selected(self, weights: Mapping[str, Any], model: Model) -> bool:
        return (weights, model) == (self.weights, self.model)

    def select(self, weights: Mapping[str, Any], model: Model) -> None:
        self._check(weights)
        time.sleep(self._change_s * (model is not self.model))
        self.weights, self.model = weights, model

    def read_ahead(self, model: Model, weights: Mapping[str, Any]) -> None:
        pass


class StandInPipeline(Engine, ABC):
    """A pipeline whose pictures depend on the model, the prompt and the seed alone, like real ones.

    A subclass says how long a step takes and what a picture shows.

    Args:
        images_per_request: number of slots.
        num_inference_steps: default of requests.
        change_s: the seconds that a change of the model takes.
    """

    facts = Facts(
        name="stand-in",
        revision=None,
        device="none",
        num_devices=1,
        height=64,
        width=64,
        images_per_request=4,
        num_inference_steps=25,
        family="Stable Diffusion XL",
        safety_checker=False,
        scheduler="euler",
        version="none",
        schedulers=("euler",),
        sigma_schedules=("default",),
    )
    compile_seconds: ClassVar = {"hit": 0.0, "miss": 0.0}
    wildcard_dir: Path | None = None
    truncated = ""  # said to be left out of every prompt

    def __init__(
        self, images_per_request: int, num_inference_steps: int, change_s: float = 0.0
    ) -> None:
        self.facts = replace(
            self.facts,
            images_per_request=images_per_request,
            num_inference_steps=num_inference_steps,
        )
        self.loras: dict[str, Path] = {}
        self.models = {"": MODEL}
        self.adapters = _Selection(self._check_loras, change_s)
        colours = Colours(np.zeros((2, 3), np.float32), np.zeros(3, np.float32))
        self._look = Look(colours, self._describe)
        super().__init__()
        self._runs: dict[tuple[int, int], Run] = {}

    def as_pipeline(self) -> SDXLPipeline:
        """Return it as what it stands in for."""
        return cast("SDXLPipeline", self)

    # --- for a subclass to define

    @abstractmethod
    def begin_step(self, prompts: np.ndarray) -> Computation:
        """Begin a step for pictures with these numbers of prompts, `[n]`."""

    @abstractmethod
    def picture(self, seed: int, prompt: int, height: int, width: int) -> np.ndarray:
        """Return a finished picture `[H, W, 3]` uint8."""

    # --- as in `SDXLPipeline`

    def measure(
        self, prompt: str, prompt_syntax: str = PLAIN, num_inference_steps: int | None = None
    ) -> tuple[int, int, str]:
        """See `SDXLPipeline.measure`; here every word is a token, and so are signs of a syntax."""
        return 2 + len(prompt.split()), 77, ""

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
        """See `SDXLPipeline.prepare`; a picture to start from changes nothing."""
        checked = check_request(request, images or self.facts.images_per_request)
        checked = resolved(resolve(checked, self.facts, has_image=False), None, cancelled)
        self._check_loras(checked.lora_weights)
        size = height or self.facts.height, width or self.facts.width
        run = self._runs.setdefault(size, Run(self, *size))
        config = SimpleNamespace(
            force_zeros_for_empty_prompt=False, architecture=SimpleNamespace(embeds_guidance=False)
        )
        drawer = Drawer(
            cast(Any, config),
            cast(Tokenizers, _Tokenizers(self.truncated)),
            cast("CompiledSampler", run),
            cast("Adapters", self.adapters),
            self.models.setdefault(checked.model, cast("Model", _Model(checked.model))),
            cast(Any, None),  # it follows nothing
        )
        scheduler = replace(EULER, name=checked.scheduler or self.facts.scheduler)
        plan = replace(
            plan_run(checked, scheduler, None, has_refiner=False),
            output_type=output_type,
            cancelled=cancelled,
        )
        stage = make_stage(plan, drawer, Placement(Embeddings()))
        stop = Event() if cancelled is None else cancelled
        return Drawing(checked, stage, stage.total, self._look, output_type, cancelled=stop)

    def read_ahead(self, model: str, loras: Mapping[str, Any]) -> None:
        """See `SDXLPipeline.read_ahead`; it takes no time here."""
        self.adapters.read_ahead(self.models.get(model, MODEL), loras)

    def _check_loras(self, weights: Mapping[str, Any]) -> None:
        if missing := weights.keys() - self.loras.keys():
            raise InputError(f"no LoRA named {min(missing)!r} is loaded")

    def _describe(self, request: Request, i: int, size: tuple[int, int]) -> metadata.Settings:
        values = effective(request.of_picture(i))
        values["model"] = request.model or self.facts.name
        return metadata.Settings(**values, width=size[0], height=size[1])
