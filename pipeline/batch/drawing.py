"""A batch from its file of prompts to its folder: the loop that keeps all slots full."""

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from pipeline.batch.journal import NAME, Journal
from pipeline.batch.prompts import Batch, Item
from pipeline.batch.sheets import write_sheets
from pipeline.drawing.drawing import Drawing
from pipeline.drawing.origins import Inputs
from pipeline.errors import InputError, NotFiniteError
from pipeline.images import metadata
from pipeline.images.files import write_durably
from pipeline.images.opening import open_file
from pipeline.pipeline import SDXLPipeline
from pipeline.request import GenerateRequest

_WRITERS = 2  # threads
MAX_WRITES = 8  # pictures that wait for them; then the drawing waits
_PREPARERS = 2


def run(
    batch: Batch,
    folder: Path,
    load: Callable[[], SDXLPipeline],
    network_options: Mapping[str, str | None],
) -> tuple[list[Path], int]:
    """Draw the pictures of a batch that are not in its folder yet, and their contact sheets.

    Args:
        batch: the batch.
        folder: its folder, which exists.
        load: returns the pipeline with its LoRAs; it is not called if nothing is left to draw.
        network_options: the names and options by which the command chose the networks.

    Returns:
        The journal and the contact sheets, and the number of pictures that could not be drawn.

    Raises:
        CheckpointError, DeviceError, InputError, OSError: as those that `load` and `draw` raise.
    """
    with Journal(folder, batch) as journal:
        try:
            if journal.left:
                _draw(batch, folder, journal, load(), network_options)
        except BaseException:
            if journal.drawn:
                _say(f"{_state(batch, folder, journal)}; the same command draws the others")
            raise
        sheets = write_sheets(folder, batch.items, journal.drawn)
        if journal.failed:
            _say(f"{_state(batch, folder, journal)}; these cannot be drawn:")
        for index, reason in sorted(journal.failed.items()):
            _say(f"{batch.items[index].line.where}: {reason}")
        return [folder / NAME, *sheets], len(journal.failed)


def _draw(
    batch: Batch,
    folder: Path,
    journal: Journal,
    pipe: SDXLPipeline,
    network_options: Mapping[str, str | None],
) -> None:
    items: list[Item] = grouped(journal.left)
    check(pipe, items)
    add_sizes(pipe, items)
    journal.begin(_identity(pipe, network_options))
    total = len(batch.items)
    # An average over the whole run, because slots finish together.
    with tqdm(
        desc="Drawing",
        unit="picture",
        total=total,
        initial=total - len(items),
        smoothing=0,
        disable=None,
    ) as bar:

        def on_cut(message: str) -> None:
            bar.write(message, file=sys.stderr)

        draw(pipe, items, folder, journal, bar.update, on_cut)


def _identity(pipe: SDXLPipeline, network_options: Mapping[str, str | None]) -> dict[str, Any]:
    """Return all that decides about pictures beside their requests, for the journal."""
    paths = {name: Path(value) for name, value in network_options.items() if value is not None}
    facts = pipe.facts
    models = {model.name: model.digest for model in facts.models}
    return {
        "model": [facts.name, facts.revision],
        "networks": [facts.vae, facts.unet, facts.tiny_vae, facts.refiner],
        "files": {name: str(path.resolve()) for name, path in paths.items() if path.exists()},
        "size": [facts.height, facts.width],
        "scheduler": [facts.scheduler, facts.sigma_schedule],
        "safety checker": facts.safety_checker,
        "LoRAs": {name: info.digest for name, info in sorted(pipe.loras.items())},
        "version": facts.version,
        **({"models": models} if models else {}),
    }


def _state(batch: Batch, folder: Path, journal: Journal) -> str:
    return f"{len(journal.drawn)} of {len(batch.items)} pictures are in {folder}"


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def grouped(items: Iterable[Item]) -> list[Item]:
    """Return pictures so that those that can share the slots follow each other.

    Every size has slots of its own. Pictures with other LoRAs wait until all slots are empty.
    """
    groups: dict[object, list[Item]] = {}
    for item in items:
        request = item.line.request
        groups.setdefault((item.line.size, request.loras, request.recipe), []).append(item)
    return [item for group in groups.values() for item in group]


def check(pipe: SDXLPipeline, items: Sequence[Item]) -> None:
    """Raise InputError if a picture cannot be drawn; the message names its line.

    One picture of each line is prepared, in the pipeline's own size, and nothing is compiled.
    """
    default_size = pipe.facts.size_names[0]

    def checked(item: Item) -> None:
        _prepare(
            pipe, item, replace(item.request, enlarge=item.request.enlarge and default_size), None
        )

    for size, item in {size: picture for picture in items for size in picture.line.sizes}.items():
        with _named(item):
            pipe.check_size(*size)
    lines = {item.line.number: item for item in items}
    with ThreadPoolExecutor(_PREPARERS, thread_name_prefix="check") as threads:
        list(threads.map(checked, lines.values()))  # raises what a check raised


def add_sizes(pipe: SDXLPipeline, items: Iterable[Item]) -> None:
    """Compile for all sizes of pictures.

    Raises:
        DeviceError: if there is too little memory for one more.
    """
    default_size = (pipe.facts.height, pipe.facts.width)
    sizes = dict.fromkeys(size for item in items for size in item.line.sizes)
    further_sizes = [size for size in sizes if size != default_size]
    pipe.check_memory(further_sizes)
    for size in further_sizes:
        pipe.add_size(*size)
        pipe.warm_up(*size)


def draw(
    pipe: SDXLPipeline,
    items: Sequence[Item],
    folder: Path,
    journal: Journal,
    on_over: Callable[[], object],
    on_cut: Callable[[str], object],
) -> None:
    """Draw pictures and write them into a folder and its journal.

    Args:
        pipe: the pipeline, which has all their sizes and LoRAs.
        items: the pictures, in the order in which they enter the slots.
        folder: the folder.
        journal: its journal.
        on_over: is called for each picture that is finished or fails.
        on_cut: is called with a message for each part of a line's prompts that has no effect, or
            is too long for the model.

    Raises:
        DeviceError: if a device fails.
        InputError: if a file of a picture to start from has changed since it was checked.
        OSError: if a file cannot be read or written.
    """
    items_by_drawing: dict[Drawing, Item] = {}
    slots = pipe.facts.images_per_request
    # All pictures that are finished are written, also after an exception.
    with (
        ThreadPoolExecutor(_WRITERS, thread_name_prefix="write") as writers,
        closing(_prepared(pipe, items)) as prepared,
    ):
        writes: deque[Future[None]] = deque()
        while True:
            while sum(not drawing.entered for drawing in items_by_drawing) < slots:
                if (next_pair := next(prepared, None)) is None:
                    break
                item, drawing = next_pair[0], next_pair[1].result()
                ends = {*drawing.first.truncated, *drawing.first.negative_truncated}
                for part in chain(*drawing.ignored) if item.place == 0 else ():
                    reason = "cut off, too long" if part in ends else "without effect"
                    on_cut(f"{item.line.where}: {reason}: {part}")
                pipe.begin(drawing)
                items_by_drawing[drawing] = item
            if not items_by_drawing:
                break
            for drawing in [progress.drawing for progress in pipe.advance()]:
                if not drawing.is_over:
                    continue
                item = items_by_drawing.pop(drawing)
                if drawing.error is None:
                    image = drawing.pictures[0].image
                    writes.append(writers.submit(write, folder, journal, item, image))
                elif isinstance(drawing.error, NotFiniteError):
                    journal.add_failed(item, str(drawing.error))
                else:
                    raise drawing.error
                on_over()
            while writes and (len(writes) > MAX_WRITES or writes[0].done()):
                writes.popleft().result()
        for pending in writes:
            pending.result()


def write(folder: Path, journal: Journal, item: Item, image: Image.Image) -> None:
    """Write a finished picture into a folder and its journal. Any thread may call this.

    Raises:
        OSError: if a file cannot be written.
    """
    png = metadata.to_png(image)
    journal.add(item, metadata.from_text(image.info[metadata.KEY]))
    write_durably(folder / item.name, png)
    journal.drawn.add(item.index)


def _prepare(
    pipe: SDXLPipeline, item: Item, request: GenerateRequest, size: tuple[int, int] | None
) -> Drawing:
    """Return the drawing of a request for a picture in a size, by default the pipeline's own."""
    line = item.line
    height, width = (None, None) if size is None else size
    with _named(item):
        return pipe.prepare(
            request,
            1,
            height,
            width,
            Inputs(
                None if line.image is None else open_file(line.image, "image"),
                None if line.mask is None else open_file(line.mask, "mask"),
            ),
        )


@contextmanager
def _named(item: Item) -> Iterator[None]:
    """Name a picture's line in errors about its settings."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{item.line.where}: {error}") from error


def _prepared(pipe: SDXLPipeline, items: Iterable[Item]) -> Generator[tuple[Item, Future[Drawing]]]:
    """Yield pictures whose drawings other threads prepare a little ahead of the slots."""
    with ThreadPoolExecutor(_PREPARERS, thread_name_prefix="prepare") as threads:
        ahead: deque[tuple[Item, Future[Drawing]]] = deque()
        for item in items:
            drawing = threads.submit(_prepare, pipe, item, item.request, item.line.size)
            ahead.append((item, drawing))
            if len(ahead) > pipe.facts.images_per_request:
                yield ahead.popleft()
        yield from ahead
