"""A folder of ControlNets that changes while a pipeline runs."""

import asyncio
import io
import math
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image as Pillow

from pipeline import SDXLPipeline
from serving.generator import Done, Error, ErrorKind, Event
from serving.generators.local import Folders
from serving.generators.watched import ControlFolder
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.checkpoints import EXECUTABLES, SMALLEST, nothing_compiles
from tests.controlnets import save_single_controlnet
from tests.generators import draw, ending, local_generator, request

NEVER_READ = (
    Message(
        Code.UNTRANSLATED,
        {
            "text": "the control 'broken' cannot be read at the moment; name another one, or try"
            " again later"
        },
    ),
    ErrorKind.FAILED,
)


@cache
def pipe() -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        num_inference_steps=3,
        devices=jax.devices()[:1],
        cache_dir=EXECUTABLES,
        controlnets={},
    )


def picture() -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(np.full((16, 16, 3), 128, np.uint8)).save(file, "PNG")
    return file.getvalue()


def save(folder: Path, *names: str) -> None:
    for seed, name in enumerate(names):
        file = save_single_controlnet(folder / f"{name}.safetensors", SMALLEST, "full", seed)
        os.utime(file, (1, 1))  # settled


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    save(tmp_path, "a", "broken")
    yield tmp_path
    for name in [*pipe().controls]:
        pipe().remove_control(name)


def drawn(folder: ControlFolder, *names: str) -> Mapping[str, Event]:
    """Return how requests that each follow a picture through one network end, by its name."""

    async def use() -> Mapping[str, Event]:
        folders = Folders(controls=folder)
        generator = local_generator(pipe(), Limits(), Observer(), folders=folders)
        wanted = [request(controls=name, followed=(picture(),), images=1) for name in names]
        try:
            events = await asyncio.gather(*(draw(generator, one) for one in wanted))
            return dict(zip(names, map(ending, events), strict=True))
        finally:
            await generator.close(60)

    return asyncio.run(use())


def test_a_file_that_is_damaged_after_it_was_listed_hurts_no_other_request(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    watched = ControlFolder(pipe(), folder)
    assert [control.name for control in watched.describe()] == ["a", "broken"]
    monkeypatch.setattr("serving.folders.RESCAN_S", math.inf)  # it is not looked at again
    os.truncate(folder / "broken.safetensors", 1000)
    with nothing_compiles():
        endings = drawn(watched, "a", "broken")
    assert isinstance(endings["a"], Done)
    error = endings["broken"]
    assert isinstance(error, Error)
    assert (error.message, error.kind) == NEVER_READ
    assert "broken.safetensors: not a complete safetensors file" in caplog.text
