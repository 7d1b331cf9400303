"""Generator that draws in this process, in the slots of the devices."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from PIL import Image as Pillow

from pipeline import (
    Cancelled,
    CheckpointError,
    InputError,
    NotFiniteError,
    ScreenError,
)
from pipeline.drawing.drawing import Drawing, Picture
from pipeline.drawing.origins import Inputs
from pipeline.errors import ControlError, raise_if_cancelled
from pipeline.facts import Facts
from pipeline.request import GenerateRequest
from pipeline.text.prompt_syntax import A1111
from pipeline.text.wildcards import digest_of_lists
from serving.folders import RESCAN_S
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Length,
    Pictured,
    Preview,
    Request,
    RequestError,
    Step,
)
from serving.generators.devices import Devices, News
from serving.generators.picture_files import encode, jpeg_of, small_jpeg_of
from serving.generators.watched import (
    ControlFolder,
    EmbeddingFolder,
    LoadedLoras,
    LoraFolder,
    ModelFolder,
)
from serving.logs import log_fields
from serving.messages import Code, Message, Param, untranslated
from serving.metrics import Observer
from serving.requests.admission import check_words, expand
from serving.requests.lifecycle import MAX_FINISHING, Drawer
from serving.requests.record import Record
from serving.requests.registry import Limits

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger(__name__)

# Whether to draw live pictures: if the model is quick enough, always if it has a way of few steps,
# or never.
LiveMode = Literal["auto", "on", "off"]
LISTS_AGAIN_S = 5.0
# Seconds within which a live picture must be drawn, so that it appears as one types.
LIVE_WITHIN_S = 0.3
LIVE_AGAIN_S = 60.0  # after a measurement that failed
_LIVE_TRIES = 3  # the first one loads the LoRA; of the others the quickest counts

# Share of the time limit of a request that no single step takes, unless the devices are stuck.
_STUCK = 1 / 5


class Folders(NamedTuple):
    """Folders of the operator's that may change while the server runs; None for each without one.

    Attributes:
        loras: LoRAs that are loaded when they are first asked for.
        embeddings: embeddings that are loaded as the folder changes.
        models: models that are added as the folder changes.
        controls: ControlNets that are added likewise.
    """

    loras: LoraFolder | None = None
    embeddings: EmbeddingFolder | None = None
    models: ModelFolder | None = None
    controls: ControlFolder | None = None


NO_FOLDERS = Folders()


@dataclass(eq=False)
class Seated:
    """A request of which at least one picture has had its turn in the queue.

    Attributes:
        stop: stops its drawing once it is set.
        changed: set when it gets a turn, or when it is over.
        turns_at: `time.monotonic()` of each turn; picture i has turn i.
        given: number of pictures that were given to the devices.
        vacated: number of pictures whose slots others can have.
        drawing: its drawing, once it is prepared.
        done: number of steps that were published.
        looks: JPEG files of the pictures as they look at present, by index.
        files: the tasks that encode and publish its pictures, in order.
        error: the reason why it ends early; None if it does not.
        is_over: whether nothing of it is drawn any more.
        programs: the programs that draw it; see `Facts.programs_of`.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turns_at: list[float] = field(default_factory=list)
    given: int = 0
    vacated: int = 0
    drawing: Drawing | None = None
    done: int = 0
    looks: dict[int, bytes] = field(default_factory=dict)
    files: list[asyncio.Task[None]] = field(default_factory=list)
    error: Error | None = None
    is_over: bool = False
    programs: str = ""

    @property
    def in_slots(self) -> int:
        """Number of slots that it has, or that are kept for it."""
        return 0 if self.is_over else len(self.turns_at) - self.vacated

    def take_turn(self) -> None:
        """Use a turn for its next picture."""
        self.turns_at.append(time.monotonic())
        self.changed.set()

    def give(self) -> int:
        """Return the number of pictures that have a turn and were not given, now they are."""
        count = len(self.turns_at) - self.given
        self.given += count
        return count

    def end(self, error: Error | None = None) -> None:
        """Note that nothing of it is drawn any more."""
        self.error = self.error or error
        self.is_over = True
        self.changed.set()


class LocalDrawer(Drawer):
    """Drawer over a pipeline in this process.

    The pictures of several requests are drawn at once, each in a slot. A request gets a slot for
    each picture by a turn in the queue, so its pictures may begin and end at different times. A
    single thread does all the drawing. Other threads prepare requests and encode PNG files.
    Requests with another model or other LoRAs wait until the slots are empty.

    `more_sizes`, each (width, height), are compiled one after the other once the drawer is open.
    With `reveal`, a request can get the originals of pictures that the operator's screen blurred.
    `live` says whether visitors get pictures while they type; "auto" measures that once it is open.
    """

    def __init__(
        self,
        pipe: SDXLPipeline,
        limits: Limits,
        observer: Observer,
        *,
        bundled: bool = False,
        more_sizes: Sequence[tuple[int, int]] = (),
        reveal: bool = True,
        folders: Folders = NO_FOLDERS,
        live: LiveMode = "off",
    ) -> None:
        self._folders = folders
        # Functions that describe what folders hold, by the field of the facts, and seconds between
        # two calls.
        self._watched: dict[str, tuple[Callable[[], object], float]] = {
            field: (folder.describe, RESCAN_S)
            for field, folder in folders._asdict().items()
            if folder
        }
        if pipe.wildcard_dir:
            self._watched["lists"] = partial(digest_of_lists, pipe.wildcard_dir), LISTS_AGAIN_S
        # All is listed from the start: a front-end gives up the requests of an instance that was
        # started again if that does not list what they name.
        self._facts = replace(
            pipe.facts,
            bundled=bundled,
            coming_sizes=tuple(more_sizes),
            **{field: describe() for field, (describe, _) in self._watched.items()},
        )
        observer.compiled(pipe.compile_seconds)
        self._pipe = pipe
        self._blocked = limits.blocked
        self._reveal = reveal
        self._loaded = LoadedLoras(pipe, folders.loras) if folders.loras else None
        self._live_mode = live
        self._live_s: dict[str, float] = {}  # measured seconds of a live picture, by recipe
        self._live_failed_at = -math.inf
        self._devices = Devices(pipe, observer.evaluated)
        self._seated: dict[str, Seated] = {}  # by the id of the request
        self._encoding = 0  # pictures of which files are made
        self._preparing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preparing")
        # Strangers ask for these as often as they like, which must not hold up pictures.
        self._measuring = ThreadPoolExecutor(max_workers=1, thread_name_prefix="measuring")
        self._reducing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="thumbnails")
        self._prepares_since: float | None = None  # None while that thread is idle
        # Not one of asyncio's own threads, which asyncio waits for when it ends.
        self._compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compiler")
        self._compiling = False
        self._beside: list[asyncio.Task[None]] = []  # work beside the drawing
        self._running_s, self._stuck_s = limits.running_s, _STUCK * limits.running_s

    @property
    def facts(self) -> Facts:
        """See `Drawer.facts`."""
        return self._facts

    @property
    def stuck(self) -> bool:
        """Whether the devices, or a preparation, have been silent for far too long.

        A slow preparation is no sign of the devices. It stops soon after its request has ended, and
        only a thread that hangs, as in a file system, goes on.
        """
        now = time.monotonic()
        silent_s = now - (self._devices.heard_at or now)
        preparing_s = now - (self._prepares_since or now)
        return silent_s > self._stuck_s or preparing_s > self._stuck_s + self._running_s

    @property
    def at_work(self) -> bool:
        """See `Drawer.at_work`."""
        is_preparing = self._prepares_since is not None
        return self._devices.heard_at is not None or is_preparing or self._compiling

    async def open(self) -> None:
        """See `Drawer.open`."""
        work = [self._add_sizes(), self._watch_live(), *map(self._watch, self._watched)]
        self._beside = [asyncio.create_task(coroutine) for coroutine in work]

    async def measure(self, prompt: str, prompt_syntax: str, steps: int | None) -> Length | None:
        """See `Drawer.measure`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._measuring, self._measure, prompt, prompt_syntax, steps
        )

    def _measure(self, prompt: str, prompt_syntax: str, steps: int | None) -> Length:
        if self._folders.embeddings:
            self._folders.embeddings.refresh()
        return Length(*self._pipe.measure(prompt, prompt_syntax, steps))

    async def thumbnail(self, kind: Pictured, name: str) -> bytes | None:
        """See `Drawer.thumbnail`."""
        if (folder := getattr(self._folders, kind)) is None:
            return None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reducing, folder.thumbnail, name)

    async def close(self) -> None:
        """See `Drawer.close`."""
        for task in self._beside:
            task.cancel()
        self._devices.close()
        for thread in (self._preparing, self._measuring, self._reducing, self._compiler):
            thread.shutdown(wait=False)

    # --- turns and slots

    @property
    def slots(self) -> int:
        """See `Drawer.slots`."""
        return self.facts.images_per_request

    @property
    def slots_in_use(self) -> int:
        """See `Drawer.slots_in_use`."""
        return sum(seated.in_slots for seated in self._seated.values())

    @property
    def has_room(self) -> bool:
        """See `Drawer.has_room`."""
        return self.slots_in_use < self.slots and self._encoding < MAX_FINISHING * self.slots

    def read_ahead(self, record: Record) -> None:
        """See `Drawer.read_ahead`."""
        with suppress(InputError):  # the model is not there any more
            self._pipe.read_ahead(record.request.model, record.request.lora_weights)

    def place(self, record: Record) -> bool:
        """See `Drawer.place`."""
        programs = self.facts.programs_of(record.request.model)
        peers = (peer for peer in self._seated.values() if peer.programs == programs)
        if any(peer.in_slots for peer in peers) and not self.requests.suits(record):
            return False
        seated = self._seated.setdefault(record.request.id, Seated(programs=programs))
        seated.take_turn()
        return True

    def stop(self, record: Record) -> None:
        """See `Drawer.stop`."""
        if seated := self._seated.get(record.request.id):
            seated.stop.set()
            self._devices.stop_paused()

    def end(self, record: Record) -> None:
        """See `Drawer.end`."""
        del self._seated[record.request.id]

    # --- work beside the drawing

    async def _watch(self, field: str) -> None:
        """Describe anew, in a field of the facts, what a folder holds whenever it has changed."""
        describe, again_s = self._watched[field]
        while True:
            await asyncio.sleep(again_s)
            try:
                contents = await asyncio.to_thread(describe)
                if contents != getattr(self.facts, field):
                    self._facts = replace(self.facts, **{field: contents})
            except Exception as error:  # the looks must go on
                log.error("The %s cannot be listed", field, exc_info=error)

    async def _watch_live(self) -> None:
        """Offer live pictures, as soon as and for as long as they are quick enough."""
        while not await self._offer_live() or self._folders.loras:
            await asyncio.sleep(RESCAN_S)

    async def _offer_live(self) -> bool:
        """Draw live pictures from now on, if the model is quick and the operator allows it.

        Return whether that is decided. A measurement that failed is made again later.
        """
        recipe, seconds = self.facts.live_recipe, 0.0
        if recipe is None or self._live_mode == "off":
            seconds = math.inf
        elif self._live_mode == "auto":
            seconds = await self._seconds_of_live(recipe)
        live = seconds is not None and seconds <= LIVE_WITHIN_S
        if live != self.facts.live:
            self._facts = replace(self.facts, live=live)
        return seconds is not None

    async def _seconds_of_live(self, recipe: str) -> float | None:
        """Return how long a live picture takes, measured between two requests.

        It is None if a measurement failed within the last `LIVE_AGAIN_S`.
        """
        if recipe not in self._live_s and time.monotonic() - self._live_failed_at >= LIVE_AGAIN_S:
            request = Request("warm up", None, seed=0, live=True)
            request = expand(request, replace(self.facts, live=True))
            try:
                tries = [await self._time(request) for _ in range(_LIVE_TRIES)]
            except Exception as error:  # the server draws without live pictures meanwhile
                log.warning("A live picture cannot be drawn: %s", error)
                self._live_failed_at = time.monotonic()
            else:
                self._live_s[recipe] = min(tries[1:])
                log.info("A live picture takes %.2f s", self._live_s[recipe])
        return self._live_s.get(recipe)

    async def _time(self, request: Request) -> float:
        """Return the seconds that a request takes alone."""
        loop = asyncio.get_running_loop()

        def prepare() -> tuple[Drawing, float]:
            began = time.monotonic()
            drawing = self._prepare(request, Seated())
            return drawing, time.monotonic() - began

        drawing, prepared_s = await loop.run_in_executor(self._preparing, prepare)
        drawn_s = await asyncio.wrap_future(self._devices.call(partial(self._draw_alone, drawing)))
        return prepared_s + drawn_s

    def _draw_alone(self, drawing: Drawing) -> float:
        """Draw on the devices' thread, in empty slots; return the seconds that it took."""
        began = time.monotonic()
        self._pipe.begin(drawing)
        while self._pipe.is_busy:
            self._pipe.advance()
            self._devices.hear()
        if drawing.error is not None:
            raise drawing.error
        return time.monotonic() - began

    async def _add_sizes(self) -> None:
        for size in self.facts.coming_sizes:
            ready = await self._add_size(*size)
            coming_sizes = tuple(
                candidate for candidate in self.facts.coming_sizes if candidate != size
            )
            more_sizes = (*self.facts.more_sizes, size) if ready else self.facts.more_sizes
            self._facts = replace(self.facts, more_sizes=more_sizes, coming_sizes=coming_sizes)

    async def _add_size(self, width: int, height: int) -> bool:
        """Compile one more size while drawing goes on, and warm it up while the slots are empty.

        Returns whether that worked.
        """
        began = time.monotonic()
        loop = asyncio.get_running_loop()

        def compile_it() -> None:
            self._compiling = True
            try:
                self._pipe.add_size(height, width)
            finally:
                self._compiling = False

        warm_up = partial(self._pipe.warm_up, height, width)
        try:
            await loop.run_in_executor(self._compiler, compile_it)
            await asyncio.wrap_future(self._devices.call(warm_up))
        except Exception as error:  # the other sizes can still be drawn
            log.error("Pictures of %dx%d cannot be drawn", width, height, exc_info=error)
            return False
        log.info("Ready for %dx%d after %.1f s", width, height, time.monotonic() - began)
        return True

    # --- drawing

    async def draw(self, record: Record) -> None:
        """See `Drawer.draw`."""
        seated = self._seated[record.request.id]
        while not seated.is_over:
            seated.changed.clear()
            if pictures := seated.give():
                await self._give(record, seated, pictures)
            else:
                await seated.changed.wait()
        await asyncio.gather(*seated.files)
        self.requests.publish(record, seated.error or _done(record, seated.drawing))

    async def _give(self, record: Record, seated: Seated, pictures: int) -> None:
        """Give the next pictures of a request to the devices; end it if that fails."""
        loop, request = asyncio.get_running_loop(), record.request

        def tell(news: News) -> None:
            loop.call_soon_threadsafe(self._hear, record, seated, news)

        try:
            drawing = await loop.run_in_executor(self._preparing, self._prepare, request, seated)
        except Exception as error:
            failure = _error(request, error)
            if seated.drawing is None:
                seated.end(failure)
                self.requests.begin_next()
            else:  # others of its pictures may be under way
                seated.error = failure
                self.stop(record)
            return
        # Previews are not screened, so there are none where pictures must be.
        facts = self.facts.for_known(request.model)
        shows_early = request.previews and not (facts.safety_checker or facts.screened)
        self._devices.draw(drawing, pictures, tell, shows_early)

    def _prepare(self, request: Request, seated: Seated) -> Drawing:
        """Load a request's LoRAs, and return its drawing, made with the newest embeddings."""
        self._prepares_since = time.monotonic()
        try:
            return self._prepared(request, seated)
        finally:
            self._prepares_since = None

    def _prepared(self, request: Request, seated: Seated) -> Drawing:
        raise_if_cancelled(seated.stop)
        if self._loaded:
            self._loaded.prepare(request.lora_weights, seated.stop)
        if seated.drawing is None:
            if self._folders.embeddings:
                self._folders.embeddings.refresh()
            width, height = request.size or (None, None)
            drawing = self._pipe.prepare(
                GenerateRequest(**request.settings),
                request.images,
                height,
                width,
                Inputs(
                    _opened(request.image),
                    _opened(request.mask),
                    controls=[*map(_opened, request.followed)],
                ),
                cancelled=seated.stop,
            )
            raise_if_cancelled(seated.stop)
            if request.prompt_syntax == A1111:  # lists in prompts have become words
                check_words(drawing.request, self._blocked)
            seated.drawing = drawing
        return seated.drawing

    def _hear(self, record: Record, seated: Seated, news: News) -> None:
        """Publish news of a drawing, and let other pictures have the slots that it has left."""
        assert seated.drawing is not None
        done = sum(news.steps) // len(news.steps)
        if done > seated.done:
            seated.done = done
            self.requests.publish(record, Step(done, seated.drawing.total))
        if news.previews:
            self._show(record, seated, news.previews)
        if news.finished:
            self._deliver(record, seated, news.finished)
        has_left, seated.vacated = news.vacated > seated.vacated, news.vacated
        if news.is_over:
            seated.end(news.error and _error(record.request, news.error))
        if has_left or news.is_over:
            self.requests.begin_next()

    def _show(self, record: Record, seated: Seated, looks: Mapping[int, bytes]) -> None:
        """Publish how the pictures look at present, those that have begun."""
        seated.looks |= looks
        self.requests.publish(record, Preview(tuple(seated.looks[i] for i in sorted(seated.looks))))

    def _deliver(self, record: Record, seated: Seated, pictures: Sequence[Picture]) -> None:
        """Let other threads encode finished pictures, which are published in order."""
        for picture in pictures:
            self.requests.observe_pace(record, time.monotonic() - seated.turns_at[picture.index])
        self._encoding += len(pictures)
        last_task = seated.files[-1] if seated.files else None
        work = self._publish(record, seated, pictures, last_task)
        seated.files.append(asyncio.create_task(work))

    async def _publish(
        self,
        record: Record,
        seated: Seated,
        pictures: Sequence[Picture],
        last_task: asyncio.Task[None] | None,
    ) -> None:
        try:
            if record.request.live:  # no settings and no PNG file, which would take longer
                jpeg = await asyncio.to_thread(jpeg_of, pictures[0].image)
                self.requests.publish(record, Preview((jpeg,)))
                return
            assert seated.drawing is not None
            seeds, ignored = seated.drawing.request.seeds, seated.drawing.ignored
            unblurred = self._reveal and record.request.unblurred
            images = await asyncio.gather(
                *(
                    asyncio.to_thread(
                        encode,
                        picture,
                        seeds[picture.index],
                        unblurred,
                        ignored[picture.index],
                        self.facts.hashes,
                    )
                    for picture in pictures
                )
            )
            if last_task is not None:
                await last_task
            for image in images:
                self.requests.publish(record, image)
            if seated.looks and not seated.is_over:
                jpegs = [
                    await asyncio.to_thread(small_jpeg_of, picture.image) for picture in pictures
                ]
                indices = [picture.index for picture in pictures]
                self._show(record, seated, dict(zip(indices, jpegs, strict=True)))
        finally:
            self._encoding -= len(pictures)
            self.requests.begin_next()


def _opened(png: bytes | None) -> Pillow.Image | None:
    """Return a picture that a request starts from; its file is one that `requests.inputs` made."""
    return None if png is None else Pillow.open(io.BytesIO(png), formats=["PNG"])


def _done(record: Record, drawing: Drawing | None) -> Done:
    """Return the ending of a request whose pictures are all finished."""
    if record.request.live:
        return Done()
    assert drawing is not None
    ends = [*drawing.first.truncated, *drawing.first.negative_truncated]
    return Done(" … ".join(dict.fromkeys(filter(None, ends))))


def _error(request: Request, error: Exception) -> Error:
    """Return the ending of a request that an exception ended."""
    match error:
        case RequestError():
            return Error(error.kind, error.message)
        case Cancelled():
            return Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))
        case InputError():
            return Error(ErrorKind.INVALID, untranslated(str(error)))
        case NotFiniteError():  # it would be the same on another instance
            log.warning("A request drew nothing: %s", error, extra=log_fields(request))
            return Error(ErrorKind.INVALID, Message(Code.NOT_FINITE))
        case ControlError():
            log.error("A request drew nothing: %s", error, extra=log_fields(request))
            reason = f"the control {error.name!r} cannot be read at the moment"
            text = f"{reason}; name another one, or try again later"
            return Error(ErrorKind.FAILED, untranslated(text))
        case CheckpointError():
            log.error("The model %r cannot draw: %s", request.model, error)
            params: dict[str, Param] = {"value": request.model}
            return Error(ErrorKind.FAILED, Message(Code.UNREADABLE_MODEL, params))
    return _failed(request, error)


def _failed(request: Request, error: Exception) -> Error:
    log.error("A request failed", exc_info=error, extra=log_fields(request))
    if isinstance(error, ScreenError):
        return Error(ErrorKind.FAILED, Message(Code.UNSCREENED))
    # XLA has no exception type for this; its message has this word on every platform.
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return Error(ErrorKind.OUT_OF_MEMORY, Message(Code.OUT_OF_MEMORY))
    return Error(ErrorKind.FAILED, Message(Code.FAILED))
