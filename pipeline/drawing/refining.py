"""The refiner: a second model that draws the last steps of pictures of the base model.

A drawing of the base model may have a second one, `Drawing.then`. As soon as the base model has
drawn its part of a picture, the latents go over the host into the second drawing, whose pictures
have slots of their own. All progress is that of the first drawing, so that callers see one run.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.checkpoints.source import fetch_component
from pipeline.drawing.drawing import Drawing, Picture, Progress
from pipeline.drawing.engine import Engine
from pipeline.drawing.finishing import Finisher
from pipeline.drawing.origins import Inputs, Origin
from pipeline.drawing.preparing import Drawer, make_drawing, part_of
from pipeline.errors import Cancelled, InputError
from pipeline.families.family import Config, image_size
from pipeline.families.refiners import DENOISER, read_refiner
from pipeline.families.single_files import UNET_FILE
from pipeline.request import Request
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.beside import Beside, resized_beside
from pipeline.runtime.compiled import CompiledSampler
from pipeline.runtime.program import check_rows
from pipeline.schedulers.config import SchedulerConfig
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.tokenizer import Tokenizers


def find_refiner(source: str, base: Config, size: tuple[int, int], prefer_fp16: bool) -> Beside:
    """Find the UNet of a refiner, and read its configuration.

    Args:
        source: a folder, an id on the Hub, or a single file, of a refiner or of its UNet.
        base: the base model's configuration.
        size: the height and width of the pictures.
        prefer_fp16: as in `fetch`.

    Raises:
        CheckpointError: if it is not there, not supported, or does not fit the base model.
        InputError: if it cannot draw pictures of this size.
    """
    unet = fetch_component(source, DENOISER, UNET_FILE, prefer_fp16)
    config = read_refiner(base, unet)
    _check_size(config, *size)
    return Beside(unet.name, config, unet)


def _check_size(config: Config, height: int, width: int) -> None:
    try:
        image_size(config, height, width)
    except InputError as error:
        raise InputError(f"the refiner cannot draw pictures of this size: {error}") from None


class Refiner:
    """A refiner beside a base model, compiled for the same sizes of pictures.

    Args:
        source: the refiner, as it was loaded.
        run: its programs of the first size.
        base: the base model's configuration.
        tokenizers: the base model's.

    Attributes:
        name: its name for users.
        run: its programs of the first size.
        text_encoders: the names of those that it shares with the base model.
    """

    def __init__(
        self, source: Beside, run: CompiledSampler, base: Config, tokenizers: Tokenizers
    ) -> None:
        self.name = source.name
        self.run = run
        self._source = source
        self._config = source.config
        self.text_encoders = tuple(source.config.text_encoders)
        own = [[*base.text_encoders].index(name) for name in self.text_encoders]
        self._encoders: Sequence[int] = own  # the places of its text encoders in the base model
        self._tokenizers = Tokenizers(tuple(tokenizers.each[i] for i in own))
        self._by_size = {(run.shapes.height, run.shapes.width): run}

    def engine(self, finisher: Finisher) -> Engine:
        """Return an engine for the refiner's slots; it has no LoRAs."""
        return Engine(Adapters(self.run.parameters, self.run.mesh, (), ()), finisher)

    def check_size(self, height: int, width: int) -> None:
        """Raise InputError for a size of pictures that the refiner cannot draw."""
        _check_size(self._config, height, width)
        check_rows(self._config, self.run.mesh, height)

    def add_size(self, base: CompiledSampler) -> None:
        """Compile for the size of the base model's programs."""
        size = base.shapes.height, base.shapes.width
        self._by_size = {**self._by_size, size: resized_beside(self.run, base, self._source)}

    def warm_up(self, base: CompiledSampler) -> None:
        """Run every program for the size of the base model's once."""
        run = self.of_size(base)
        run.warm_up(np.zeros((run.shapes.images, *run.latents_shape), np.float32))

    def of_size(self, base: CompiledSampler) -> CompiledSampler:
        """Return the programs for the size of the base model's."""
        return self._by_size[base.shapes.height, base.shapes.width]

    def fitting(
        self, request: Request, scheduler: SchedulerConfig, denoising_start: float | None
    ) -> Request:
        """Return a request that leaves the refiner out if one of the models would have no step."""
        if not request.ends_early:
            return request
        try:
            part_of(scheduler, request, denoising_start)
            part_of(scheduler, replace(request, denoising_end=None), request.denoising_end)
        except InputError:
            return replace(request, denoising_end=1.0)
        return request

    def prepare(
        self,
        first: Drawing,
        scheduler: SchedulerConfig,
        origin: Origin | None,
        embeddings: Embeddings,
    ) -> Drawing:
        """Return the drawing that goes on from the latents of the base model's drawing.

        LoRAs change the base model alone. If the drawing starts from pictures with masks, the
        refiner keeps the same parts of them.
        """
        request, run = first.request, self.of_size(first.run)
        latents = np.zeros((request.images, *run.latents_shape), np.float32)
        then = make_drawing(
            replace(request, loras="", denoising_end=None),
            Drawer(self._config, self._tokenizers, run),
            scheduler,
            Placement(embeddings.for_encoders(self._encoders)),
            Inputs(latents=latents, denoising_start=request.denoising_end),
            None if origin is None or origin.masks is None else origin,
            first.output_type,
            first.cancelled,
        )
        then.named = first.named
        then.start = replace(then.start, noise=first.start.noise)
        return then


class RefiningEngine:
    """Draws with a base model and its refiner, each in slots of its own; see `Engine`.

    While pictures wait for the refiner's slots, the base model rests.
    """

    def __init__(self, base: Engine, refiner: Engine) -> None:
        self._base = base
        self._refiner = refiner
        self._first: dict[Drawing, Drawing] = {}  # the base model's drawing, by the refiner's

    @property
    def evaluations(self) -> int:
        """The number of evaluations of both models so far."""
        return self._base.evaluations + self._refiner.evaluations

    @property
    def picture_evaluations(self) -> int:
        """The number of pictures in these, summed up."""
        return self._base.picture_evaluations + self._refiner.picture_evaluations

    @property
    def is_busy(self) -> bool:
        """Whether any drawing is under way or waits."""
        return self._base.is_busy or self._refiner.is_busy

    @property
    def is_finishing(self) -> bool:
        """Whether the worker alone has something to do."""
        return self.is_busy and _is_idle(self._base) and _is_idle(self._refiner)

    @property
    def in_slots(self) -> int:
        """Number of the base model's slots with a picture."""
        return self._base.in_slots

    def begin(self, drawing: Drawing, pictures: int | None = None) -> None:
        """Let the next pictures of a drawing wait for slots; None means all that are left."""
        self._base.begin(drawing, pictures)
        if drawing.then is not None:
            self._first[drawing.then] = drawing

    def advance(self) -> list[Progress]:
        """Queue an evaluation of each model, and wait for the oldest ones if need be.

        After an exception the slots are empty, and no drawing goes on.

        Returns:
            The drawings that moved, each once.
        """
        moved: dict[Drawing, list[Picture]] = {}
        try:
            if not self._refiner.waiting:
                for progress in self._base.advance(_is_idle(self._refiner)):
                    finished = self._drawn(progress)
                    moved.setdefault(progress.drawing, []).extend(finished)
            for progress in self._refiner.advance(_is_idle(self._base)):
                first = self._first[progress.drawing]
                self._refined(first, progress)
                moved.setdefault(first, []).extend(progress.finished)
        except BaseException:
            self.reset()
            raise
        return [Progress(drawing, finished) for drawing, finished in moved.items()]

    def look(self, drawing: Drawing) -> dict[int, np.ndarray]:
        """Return previews `[h, w, 3]` uint8 of a drawing's unfinished pictures, by index."""
        looks = self._base.look(drawing)
        return looks if drawing.then is None else looks | self._refiner.look(drawing.then)

    def drop(self, drawing: Drawing) -> None:
        """Forget a drawing; nothing comes of the evaluations of its pictures that are queued."""
        self._base.drop(drawing)
        if drawing.then is not None:
            self._refiner.drop(drawing.then)
            self._first.pop(drawing.then, None)

    def reset(self) -> None:
        """Forget all drawings and the state on the devices, as after a failure."""
        self._base.reset()
        self._refiner.reset()
        self._first.clear()

    def _drawn(self, progress: Progress) -> Sequence[Picture]:
        """Hand the pictures that the base model has drawn to the refiner; return the finished."""
        drawing = progress.drawing
        then = drawing.then
        if then is None:
            return progress.finished
        if drawing.error is not None:
            self.drop(drawing)
        elif progress.finished:
            assert then.start.latents is not None
            for picture in progress.finished:
                then.start.latents[picture.index] = picture.image
            then.lora_hashes = drawing.lora_hashes
            self._refiner.begin(then, len(progress.finished))
        return ()

    def _refined(self, first: Drawing, progress: Progress) -> None:
        """Note on a drawing what the refiner has done."""
        then = progress.drawing
        for index, steps in enumerate(then.steps):
            if steps:
                first.steps[index] = max(first.steps[index], then.skipped + steps)
        first.pictures |= {picture.index: picture for picture in progress.finished}
        if isinstance(then.error, Cancelled):
            first.stop()
        elif then.error is not None:
            first.error = then.error
        if first.is_over:
            self.drop(first)


def _is_idle(engine: Engine) -> bool:
    """Return whether an engine has nothing for the devices to do."""
    return engine.is_finishing or not engine.is_busy
