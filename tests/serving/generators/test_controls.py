"""ControlNets of a folder in the local generator: listing, drawing, and files that fail."""

import asyncio
import io
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from pipeline import SDXLPipeline
from pipeline.facts import digest_of
from serving.generator import Done, Request
from serving.generator import Image as Finished
from serving.generators.local import Folders
from serving.generators.watched import ControlFolder
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.checkpoints import EXECUTABLES, SD_1, SMALLEST
from tests.controlnets import save_controlnet, save_single_controlnet
from tests.generators import ending, local_generator, until

Test = Callable[[RequestLifecycle], Awaitable[None]]


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.folders.SETTLED_S", 0.0)
    monkeypatch.setattr("serving.folders.RESCAN_S", 0.0)
    monkeypatch.setattr("serving.generators.local.RESCAN_S", 0.001)


@pytest.fixture
def pipe() -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        devices=jax.devices()[:1],
        images_per_request=2,
        cache_dir=EXECUTABLES,
        controlnets={},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "controls"
    save_controlnet(folder / "edges", SMALLEST, "full", 1)
    return folder


def run(test: Test, pipe: SDXLPipeline, folder: Path) -> None:
    async def whole() -> None:
        folders = Folders(controls=ControlFolder(pipe, folder))
        generator = local_generator(pipe, Limits(), Observer(), folders=folders)
        await generator.open()
        try:
            await test(generator)
        finally:
            await generator.close(0)

    asyncio.run(whole())


def picture() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


async def drawn(generator: RequestLifecycle, controls: str) -> bytes:
    files = (picture(),) if controls else ()
    asked = Request(
        "a star", seed=1, num_inference_steps=2, images=1, controls=controls, followed=files
    )
    await generator.submit(asked)
    events = [event async for event in generator.events(asked.id)]
    assert ending(events) == Done()
    [finished] = [event for event in events if isinstance(event, Finished)]
    return Image.open(io.BytesIO(finished.png)).tobytes()


def names(generator: RequestLifecycle) -> list[str]:
    return [control.name for control in generator.facts.controls]


def test_networks_come_and_go(
    pipe: SDXLPipeline, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(generator: RequestLifecycle) -> None:
        assert names(generator) == ["edges"]
        with_edges, without = await drawn(generator, "edges"), await drawn(generator, "")
        assert with_edges != without
        save_controlnet(tmp_path / "other", SMALLEST, "full", 2).rename(folder / "other")
        await until(lambda: names(generator) == ["edges", "other"])
        assert await drawn(generator, "other") not in (with_edges, without)
        # A new architecture, a file for another model, and one that is damaged.
        save_controlnet(tmp_path / "union", SMALLEST, "union", 3).rename(folder / "union")
        save_single_controlnet(tmp_path / "sd_1.safetensors", SD_1).rename(folder / "x.safetensors")
        save_controlnet(tmp_path / "bad", SMALLEST, "full", 3)
        (tmp_path / "bad/config.json").write_text("{")
        (tmp_path / "bad").rename(folder / "bad")
        await until(lambda: caplog.text.count("CONTROL_DIR: ") == 3)
        assert names(generator) == ["edges", "other"]
        shutil.rmtree(folder / "edges")
        await until(lambda: names(generator) == ["other"])

    run(test, pipe, folder)
    for reason in (
        "union cannot be used: .* after the next start",
        "x cannot be used: .* for another model",
        "bad cannot be used: .*config.json",
    ):
        assert any(re.search(reason, message) for message in caplog.messages), reason


def test_a_replaced_network_is_another(pipe: SDXLPipeline, folder: Path, tmp_path: Path) -> None:
    asked = Request("a star", seed=1, controls="edges")

    async def test(generator: RequestLifecycle) -> None:
        before, digest = await drawn(generator, "edges"), digest_of(asked, generator.facts)
        [old] = generator.facts.controls
        save_controlnet(tmp_path / "new", SMALLEST, "full", 9)
        shutil.rmtree(folder / "edges")
        (tmp_path / "new").rename(folder / "edges")
        await until(lambda: generator.facts.controls not in ((), (old,)))
        assert await drawn(generator, "edges") != before
        assert digest_of(asked, generator.facts) != digest

    run(test, pipe, folder)
