"""A batch from its file of prompts to its folder, as the command line runs it."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipeline.batch import drawing
from pipeline.batch.journal import NAME, Journal
from pipeline.batch.prompts import Batch, Item
from pipeline.batch.sheets import write_sheets
from pipeline.pipeline import SDXLPipeline


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
    items: list[Item] = drawing.grouped(journal.left)
    drawing.check(pipe, items)
    drawing.add_sizes(pipe, items)
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

        drawing.draw(pipe, items, folder, journal, bar.update, on_cut)


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
