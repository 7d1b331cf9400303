"""A drawing: the pictures of one request, from their start to the end."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import jax
import numpy as np
from jax import Array
from PIL import Image

from pipeline.errors import Cancelled
from pipeline.images.canvas import Frame
from pipeline.request import Request
from pipeline.runtime.compiled import CompiledSampler
from pipeline.runtime.slots import Start
from pipeline.runtime.work import Work, pack
from pipeline.schedulers.table import Schedule, State
from pipeline.text.embeddings import Placement


@dataclass(frozen=True)
class Picture:
    """A finished picture.

    Attributes:
        index: its place in the request.
        image: a PIL picture with its settings in `info`; or `[H, W, 3]` float32 in 0..1; or latents
            `[h, w, C]` float32.
        flagged: whether the safety checker or `screen` flagged it, in which case it is blurred;
            always False for latents.
        unblurred: the unblurred PIL picture if `screen` flagged it and the safety checker did not,
            for users who ask to see it.
    """

    index: int
    image: Any
    flagged: bool = False
    unblurred: Image.Image | None = None


@dataclass(frozen=True)
class Result:
    """The result of one request.

    Attributes:
        images: PIL pictures with their settings in `info`; or `[images, H, W, 3]` float32 in 0..1;
            or latents `[images, h, w, C]` float32.
        seeds: the seed of each picture; variations share one seed.
        flagged: for each picture whether the safety checker or `screen` flagged it, in which case
            it is blurred; always False for latents.
        truncated: for each picture the end of its prompt that did not fit, or "".
        negative_truncated: for each picture the end of its negative prompt that did not fit, or "".
        variation_seeds: the variation seed of each picture; None without variations.
        unblurred: the unblurred PIL pictures that `screen` flagged and the safety checker did not,
            by index, for users who ask to see them.
    """

    images: Any
    seeds: list[int]
    flagged: list[bool]
    truncated: list[str]
    negative_truncated: list[str]
    variation_seeds: list[int] | None = None
    unblurred: dict[int, Image.Image] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated:
    """The newest completed evaluation of a drawing's pictures.

    Attributes:
        before: the state of all slots before it.
        after: the state after it.
        slots: the slot of each picture that was in it, by index.
        evaluations: the number of the evaluation of each, by index, counted from 0.
    """

    before: State
    after: State
    slots: dict[int, int]
    evaluations: dict[int, int]


@dataclass(eq=False)
class Drawing:
    """A request's pictures that wait, are drawn or are finished.

    Attributes:
        request: the checked request.
        named: the request as its pictures name it.
        run: the programs of its size.
        schedule: the schedule of its steps.
        start: all that its pictures start from.
        text_of_step: `[images, steps, 2]`, which of the texts in `start` each step uses for the
            negative prompt and for the prompt.
        guided: the number of evaluations with guidance, which come first.
        placement: the embeddings that its prompts use.
        output_type: the kind of its results, one of `OUTPUT_TYPES`.
        truncated, negative_truncated: see `Result`.
        frames: the picture around each part that is drawn; none if they are drawn as a whole.
        skipped: the number of steps of the run that another model took before.
        then: the drawing of the refiner, which goes on from the latents of this one; or None.
        lora_hashes: the names and hashes of the LoRAs that it is drawn with; None without any.
        cancelled: set it to stop the drawing within two steps.
        begun: the number of its pictures that have begun to wait for slots, in order.
        entered: the number of those that have entered a slot.
        vacated: the number of those whose slot is free, or will be after the next evaluation.
        steps: the number of completed steps of each picture.
        pictures: the finished pictures by index.
        error: the reason why it ended early; None if it did not.
        newest: its newest completed evaluation; None before the first one.
    """

    request: Request
    named: Request
    run: CompiledSampler
    schedule: Schedule
    start: Start
    text_of_step: np.ndarray
    guided: int
    placement: Placement
    output_type: str
    truncated: list[str]
    negative_truncated: list[str]
    frames: Sequence[Frame] = ()
    cancelled: Event = field(default_factory=Event)
    skipped: int = 0
    then: "Drawing | None" = None
    lora_hashes: str | None = None
    begun: int = 0
    entered: int = 0
    vacated: int = 0
    steps: list[int] = field(init=False)
    pictures: dict[int, Picture] = field(default_factory=dict)
    error: Exception | None = None
    newest: Evaluated | None = None

    def __post_init__(self) -> None:
        self.steps = [0] * self.request.images
        self._work = [self._work_of(seed) for seed in self.request.seeds]

    def _work_of(self, seed: int) -> Work[np.ndarray]:
        scales = self.request.guidance, self.request.guidance_rescale
        return pack(self.schedule, *scales, self.guided, seed, self.request.cache_interval)

    @property
    def total(self) -> int:
        """The number of steps, with those of the refiner."""
        if self.then is None:
            return len(self.schedule.stops)
        return self.then.skipped + self.then.total

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the network for each picture."""
        return self.schedule.stops[-1]

    @property
    def done(self) -> int:
        """The number of steps that all its pictures have completed."""
        return min(self.steps)

    @property
    def is_over(self) -> bool:
        """Whether all its pictures are finished, or none will be any more."""
        return self.error is not None or len(self.pictures) == self.request.images

    @property
    def is_paused(self) -> bool:
        """Whether all pictures that have begun are finished, and others have not begun."""
        return not self.is_over and len(self.pictures) == self.begun

    def work(self, index: int, evaluation: int) -> Work[np.ndarray]:
        """Return the row of a picture's work for an evaluation."""
        numbers, integers = self._work[index]
        return Work(numbers[evaluation], integers[evaluation])

    def texts(self, index: int, evaluation: int) -> tuple[int, int]:
        """Return which texts in `start` an evaluation of a picture uses, the negative one first."""
        step = bisect_right(self.schedule.stops, evaluation)
        negative, positive = self.text_of_step[index, step].tolist()
        return negative, positive

    def stop(self) -> None:
        """End the drawing because it was cancelled."""
        self.error = Cancelled(f"stopped after {self.done} of {self.total} steps")

    def has_left(self, index: int) -> bool:
        """Return whether a picture is finished, or the refiner draws it."""
        newest = None if self.then is None else self.then.newest
        return index in self.pictures or (newest is not None and index in newest.slots)

    def forget(self) -> None:
        """Forget the newest evaluation, which holds the state of all slots."""
        self.newest = None
        if self.then is not None:
            self.then.forget()

    def latents(self) -> Array:
        """Return the newest latents of the pictures that are drawn, `[n, h, w, C]` float32.

        They are the devices' own array if the pictures fill all slots. Otherwise they take a way
        over the host, because a program that selects some would have to be compiled.
        """
        if self.then is not None and self.then.newest is not None:
            return self.then.latents()
        assert self.newest is not None
        slots = [slot for _, slot in sorted(self.newest.slots.items())]
        latents = self.newest.after.latents
        if slots == [*range(len(latents))]:
            return latents
        return jax.device_put(np.asarray(latents)[slots])

    def result(self) -> Result:
        """Return the result of a drawing whose pictures are all finished."""
        pictures = [self.pictures[i] for i in range(self.request.images)]
        images = [picture.image for picture in pictures]
        return Result(
            images=images if self.output_type == "pil" else np.stack(images),
            seeds=self.request.seeds,
            flagged=[picture.flagged for picture in pictures],
            truncated=self.truncated,
            negative_truncated=self.negative_truncated,
            variation_seeds=self._variation_seeds,
            unblurred={
                picture.index: picture.unblurred
                for picture in pictures
                if picture.unblurred is not None
            },
        )

    @property
    def _variation_seeds(self) -> list[int] | None:
        return self.request.variation_seeds if self.request.variation_strength > 0 else None


@dataclass(frozen=True)
class Progress:
    """The progress of a drawing in one call of `Engine.advance`.

    Attributes:
        drawing: the drawing; its `error` says why it ended early, if it did.
        finished: the pictures that have become finished.
    """

    drawing: Drawing
    finished: Sequence[Picture] = ()
