"""A drawing: the pictures of one request, from their start to the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from pipeline.errors import Cancelled
from pipeline.images import metadata
from pipeline.images.canvas import Frame
from pipeline.images.preview import Colours
from pipeline.request import Request
from pipeline.runtime.slots import Start
from pipeline.runtime.work import Work
from pipeline.schedulers.table import Schedule, State
from pipeline.text.embeddings import Placement

if TYPE_CHECKING:
    from jax import Array

    from pipeline.runtime.adapters import Adapters
    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.control_networks import Controls
    from pipeline.runtime.models import Model


@dataclass(frozen=True)
class Picture:
    """A picture that a stage has drawn.

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
        ignored: see `Drawing.ignored`.
    """

    images: Any
    seeds: list[int]
    flagged: list[bool]
    truncated: list[str]
    negative_truncated: list[str]
    variation_seeds: list[int] | None = None
    unblurred: dict[int, Image.Image] = field(default_factory=dict)
    ignored: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Stage:
    """The part of some pictures of a request that one model draws.

    Attributes:
        run: the programs of the size.
        adapters: the parameters that the programs take.
        model: the model whose parameters these are.
        loras: the weights of the LoRAs in the denoisers and in the text encoders, by name.
        controls: the networks that the pictures can follow others through.
        schedule: the schedule of its steps.
        start: all that the pictures start from, beside latents of the stage before.
        work: the work of each picture.
        text_of_step: `[n, steps, 2]`, which of the texts in `start` each step uses for the negative
            prompt and for the prompt.
        placement: the embeddings that the prompts use.
        output_type: the kind of its results, one of `OUTPUT_TYPES`.
        truncated, negative_truncated: see `Result`.
        frames: the picture around each part that is drawn; none if they are drawn as a whole.
        before: the number of steps that earlier stages take.
        then: returns the job that goes on from a picture of a job; None if the picture is finished.
            A worker calls it.
    """

    run: CompiledSampler
    adapters: Adapters
    model: Model
    loras: Mapping[str, tuple[float, float]]
    controls: Controls
    schedule: Schedule
    start: Start
    work: Sequence[Work[np.ndarray]]
    text_of_step: np.ndarray
    placement: Placement
    output_type: str
    truncated: list[str]
    negative_truncated: list[str]
    frames: Sequence[Frame] = ()
    before: int = 0
    then: Callable[[Job, Picture], Job] | None = None

    @property
    def total(self) -> int:
        """The number of steps up to its end."""
        return self.before + len(self.schedule.stops)

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the network for each picture."""
        return self.schedule.stops[-1]


@dataclass(frozen=True, eq=False)
class Job:
    """A picture of a request in one of its stages.

    Attributes:
        drawing: the request's pictures.
        index: its place among them.
        stage: the stage.
        row: its place among the pictures of the stage.
        latents: `[h, w, C]` float32, those that another model has drawn so far, to go on from; or
            None.
        flagged: whether an earlier stage's picture was flagged.
    """

    drawing: Drawing
    index: int
    stage: Stage
    row: int
    latents: np.ndarray | None = None
    flagged: bool = False

    def work(self, evaluation: int) -> Work[np.ndarray]:
        """Return the row of its work for an evaluation."""
        numbers, integers = self.stage.work[self.row]
        return Work(numbers[evaluation], integers[evaluation])

    def texts(self, evaluation: int) -> tuple[int, int]:
        """Return which texts of `start` an evaluation uses, the negative one first."""
        step = bisect_right(self.stage.schedule.stops, evaluation)
        negative, positive = self.stage.text_of_step[self.row, step].tolist()
        return negative, positive


class Look(NamedTuple):
    """How a model's pictures are shown while they are drawn, and described.

    Attributes:
        colours: the map from latents to colours, for previews without a tiny VAE.
        describe: returns the settings of a picture, from the request as its pictures name it, the
            picture's index and the size of the first run, (width, height).
    """

    colours: Colours
    describe: Callable[[Request, int, tuple[int, int]], metadata.Settings]


@dataclass(frozen=True)
class Evaluated:
    """The newest completed evaluation of a picture.

    Attributes:
        job: the picture in its stage.
        slot: its slot.
        number: the number of the evaluation in the stage, counted from 0.
        before: the state of all slots before it.
        after: the state after it.
    """

    job: Job
    slot: int
    number: int
    before: State
    after: State


@dataclass(eq=False)
class Drawing:
    """A request's pictures that wait, are drawn or are finished.

    Attributes:
        request: the checked request, as the pictures name it.
        first: the first stage of all its pictures.
        total: the number of steps of all stages.
        look: how its pictures are shown and described.
        output_type: the kind of its results, one of `OUTPUT_TYPES`.
        latents: `[images, h, w, C]` float32, those that another model has drawn, to go on from; or
            None.
        cancelled: set it to stop the drawing within two steps.
        lora_hashes: the names and hashes of the LoRAs that it is drawn with; None without any.
        begun: the number of its pictures that have begun to wait for slots, in order.
        entered: the number of those that have entered a slot.
        vacated: the number of those whose first slot is free, or will be after the next evaluation.
        steps: the number of completed steps of each picture.
        pictures: the finished pictures by index.
        error: the reason why it ended early; None if it did not.
        newest: the newest completed evaluation of each picture, by index.
    """

    request: Request
    first: Stage
    total: int
    look: Look
    output_type: str
    latents: np.ndarray | None = None
    cancelled: Event = field(default_factory=Event)
    lora_hashes: str | None = None
    begun: int = 0
    entered: int = 0
    vacated: int = 0
    steps: list[int] = field(init=False)
    pictures: dict[int, Picture] = field(default_factory=dict)
    error: Exception | None = None
    newest: dict[int, Evaluated] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = [0] * self.request.images

    @property
    def done(self) -> int:
        """The number of steps that all its pictures have completed."""
        return min(self.steps)

    @property
    def ignored(self) -> list[tuple[str, ...]]:
        """For each picture the parts of its prompts without effect, and the ends that did not fit.

        Lists that are not there are among them, which are read as text.
        """
        parts = self.request.ignored or [()] * self.request.images
        ends = zip(self.first.truncated, self.first.negative_truncated, strict=True)
        return [
            tuple(dict.fromkeys(filter(None, (*ignored, *truncated))))
            for ignored, truncated in zip(parts, ends, strict=True)
        ]

    @property
    def is_over(self) -> bool:
        """Whether all its pictures are finished, or none will be any more."""
        return self.error is not None or len(self.pictures) == self.request.images

    @property
    def is_paused(self) -> bool:
        """Whether all pictures that have begun are finished, and others have not begun."""
        return not self.is_over and len(self.pictures) == self.begun

    def begin(self, pictures: int | None) -> list[Job]:
        """Return the jobs of the next pictures; None means all that are left."""
        remaining_count = self.request.images - self.begun
        first = self.begun
        self.begun += remaining_count if pictures is None else min(pictures, remaining_count)
        latents = [None] * self.request.images if self.latents is None else self.latents
        return [Job(self, i, self.first, i, latents[i]) for i in range(first, self.begun)]

    def complete(self, evaluated: Evaluated) -> None:
        """Note an evaluation that is complete."""
        job, stage = evaluated.job, evaluated.job.stage
        self.newest[job.index] = evaluated
        steps = stage.before + bisect_right(stage.schedule.stops, evaluated.number + 1)
        self.steps[job.index] = max(self.steps[job.index], steps)

    def stop(self) -> None:
        """End the drawing because it was cancelled."""
        self.error = Cancelled(f"stopped after {self.done} of {self.total} steps")

    def forget(self) -> None:
        """Forget the newest evaluations, which hold the state of all slots."""
        self.newest.clear()

    def newest_latents(self) -> Array | np.ndarray:
        """Return the newest latents of the pictures in the latest stage, `[n, h, w, C]` float32.

        They are the devices' own array if the pictures fill all slots. Otherwise they are copied
        through the host, because a program that selects some would have to be compiled.
        """
        latest = max(evaluated.job.stage.before for evaluated in self.newest.values())
        newest = [
            evaluated
            for _, evaluated in sorted(self.newest.items())
            if evaluated.job.stage.before == latest
        ]
        latents = newest[0].after.latents
        is_whole = [evaluated.slot for evaluated in newest] == [*range(len(latents))]
        if is_whole and all(evaluated.after.latents is latents for evaluated in newest):
            return latents
        return np.stack(
            [np.asarray(evaluated.after.latents)[evaluated.slot] for evaluated in newest]
        )

    def result(self) -> Result:
        """Return the result of a drawing whose pictures are all finished."""
        pictures = [self.pictures[i] for i in range(self.request.images)]
        images = [picture.image for picture in pictures]
        return Result(
            images=images if self.output_type == "pil" else np.stack(images),
            seeds=self.request.seeds,
            flagged=[picture.flagged for picture in pictures],
            truncated=self.first.truncated,
            negative_truncated=self.first.negative_truncated,
            variation_seeds=(
                self.request.variation_seeds if self.request.variation_strength > 0 else None
            ),
            unblurred={
                picture.index: picture.unblurred
                for picture in pictures
                if picture.unblurred is not None
            },
            ignored=self.ignored,
        )


@dataclass(frozen=True)
class Progress:
    """The progress of a drawing in one call of `Engine.advance`.

    Attributes:
        drawing: the drawing; its `error` says why it ended early, if it did.
        finished: the pictures that have become finished.
    """

    drawing: Drawing
    finished: Sequence[Picture] = ()
