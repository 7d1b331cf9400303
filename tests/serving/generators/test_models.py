"""Models of a folder in the local generator: listing, drawing in turns, and files that fail."""

import asyncio
import hashlib
import io
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image as Pillow
from safetensors.numpy import save_file

from pipeline import SDXLPipeline
from pipeline.facts import digest_of
from serving.folders import Folder
from serving.generator import Done, Error, ErrorKind, Request, RequestError
from serving.generator import Image as Finished
from serving.generators.local import Folders
from serving.generators.watched import Hashes, ModelFolder
from serving.messages import Code
from serving.metrics import Observer
from serving.requests.admission import expand
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.checkpoints import (
    EXECUTABLES,
    PLAIN,
    SD_1,
    SMALLEST,
    CompilationCount,
    change_json,
    copy_checkpoint,
    make_model,
)
from tests.generators import ending, local_generator, refuses, until
from tests.run_by import run_by

Test = Callable[[RequestLifecycle], Awaitable[None]]


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.folders.SETTLED_S", 0.0)
    monkeypatch.setattr("serving.folders.RESCAN_S", 0.0)
    monkeypatch.setattr("serving.generators.local.RESCAN_S", 0.001)


@pytest.fixture(scope="module")
def shared() -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        SMALLEST, devices=jax.devices()[:1], images_per_request=2, cache_dir=EXECUTABLES
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "bc":
        made = make_model(tmp_path / f"made {name}", "unet", *("vae",) * (name == "c"))
        (tmp_path / "models").mkdir(exist_ok=True)
        made.rename(tmp_path / "models" / name)
    return tmp_path / "models"


def run(test: Test, pipe: SDXLPipeline, folder: Path) -> None:
    async def whole() -> None:
        generator = local_generator(
            pipe, Limits(), Observer(), folders=Folders(models=ModelFolder(pipe, folder))
        )
        await generator.open()
        try:
            await test(generator)
        finally:
            await generator.close(0)

    try:
        asyncio.run(whole())
    finally:
        for model in pipe.facts.models:
            pipe.remove_model(model.name)


def request(model: str, seed: int = 1, **values: Any) -> Request:
    return Request(
        "a star", None, seed=seed, num_inference_steps=2, images=1, model=model, **values
    )


async def draw(generator: RequestLifecycle, asked: Request) -> list:
    await generator.submit(asked)
    return [event async for event in generator.events(asked.id)]


def pixels(events: list) -> list[bytes]:
    pngs = [event.png for event in events if isinstance(event, Finished)]
    return [Pillow.open(io.BytesIO(png)).tobytes() for png in pngs]


async def listed(generator: RequestLifecycle, *names: str) -> None:
    await until(lambda: [model.name for model in generator.facts.models] == [*names])


def test_models_are_listed_before_the_first_request(shared: SDXLPipeline, folder: Path) -> None:
    """A front-end would give up the requests of an instance that was started again."""
    folders = Folders(models=ModelFolder(shared, folder))
    generator = local_generator(shared, Limits(), Observer(), folders=folders)
    names = generator.facts.model_names
    for name in names[1:]:
        shared.remove_model(name)
    assert names == ("checkpoint", "b", "c")


def test_the_first_model_may_be_in_the_folder(shared: SDXLPipeline, folder: Path) -> None:
    (folder / "b").rename(folder / shared.facts.name)

    async def test(generator: RequestLifecycle) -> None:
        await listed(generator, "c")

    run(test, shared, folder)


def test_the_folder_hides_no_model_that_was_named(shared: SDXLPipeline, folder: Path) -> None:
    shared.add_model((folder / "b").rename(folder.parent / "named"))
    (folder / "c").rename(folder / "named")

    async def test(generator: RequestLifecycle) -> None:
        assert generator.facts.model_names == ("checkpoint", "named")
        assert [bool(model.fault) for model in generator.facts.models] == [False, True]
        assert isinstance(ending(await draw(generator, request("named"))), Done)

    run(test, shared, folder)


@run_by(run, "shared", "folder")
async def test_requests_for_several_models_in_turns(generator: RequestLifecycle):
    await listed(generator, "b", "c")
    assert generator.facts.model_names == ("checkpoint", "b", "c")
    alone = {name: pixels(await draw(generator, request(name))) for name in ("", "b", "c")}
    assert len({*map(tuple, alone.values())}) == 3
    with CompilationCount() as count:
        many = [
            request(name, visitor=f"{name}{i}", address=f"{name}{i}")
            for i in range(4)
            for name in ("", "b", "c", "checkpoint")
        ]
        drawn = await asyncio.gather(*(draw(generator, each) for each in many))
    assert count.value == 0
    for each, events in zip(many, drawn, strict=True):
        assert isinstance(ending(events), Done)
        assert pixels(events) == alone["" if each.model == "checkpoint" else each.model]


@run_by(run, "shared", "folder")
async def test_models_come_and_go(generator: RequestLifecycle, folder: Path):
    await listed(generator, "b", "c")
    before = pixels(await draw(generator, request("b")))
    shutil.rmtree(folder / "b")
    await listed(generator, "c")
    with refuses(Code.UNKNOWN_CHOICE):
        await draw(generator, request("b", enlarge="32x32"))
    shutil.copytree(folder / "c", folder / "b")
    await listed(generator, "b", "c")
    after, of_c = [pixels(await draw(generator, request(name))) for name in "bc"]
    assert before != after == of_c


def test_what_cannot_be_used_is_listed_with_the_reason(shared: SDXLPipeline, folder: Path) -> None:
    shutil.rmtree(folder / "b")
    shutil.copytree(PLAIN, folder / "other")
    save_file({"x": np.zeros(2, np.float32)}, folder / "odd.safetensors")
    whole = (folder / "odd.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-1])  # it may still grow
    (folder / "odd.txt").write_text("Found in the attic.\n")
    long = shutil.copytree(SMALLEST, folder / "long")
    (long / "unet/config.json").write_bytes(b"[" * (2**25 + 1))
    quoted = shutil.copytree(SMALLEST, folder / "quoted")
    change_json(quoted / "scheduler/scheduler_config.json", trained_betas=[0.1] * 10**5)

    async def test(generator: RequestLifecycle) -> None:
        await listed(generator, "c", "long", "odd", "other", "quoted")
        _, long, odd, other, quoted = generator.facts.models
        assert quoted.fault.startswith(
            "quoted/scheduler/scheduler_config.json: trained_betas = [0.1"
        )
        assert len(quoted.fault) < 600
        assert long.fault == "its .json and .txt files have more than 32 MiB"
        assert odd.fault.startswith("unknown contents (first tensor: x)")
        assert odd.text == "Found in the attic."
        assert "the programs of checkpoint cannot draw with it, because its" in other.fault
        assert not any(str(folder) in model.fault for model in generator.facts.models)
        with refuses(Code.UNUSABLE_MODEL):
            await draw(generator, request("odd"))
        assert isinstance(ending(await draw(generator, request("c"))), Done)

    run(test, shared, folder)


def test_a_file_that_is_cut_while_it_waits_fails_alone(
    shared: SDXLPipeline, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.generators.local.RESCAN_S", 3600)  # one look at the folder

    async def test(generator: RequestLifecycle) -> None:
        await listed(generator, "b", "c")
        [file] = (folder / "b" / "unet").glob("*.safetensors")
        file.write_bytes(file.read_bytes()[:-9])
        asked = [request(name, seed) for seed in range(2) for name in ("c", "b", "")]
        drawn = await asyncio.gather(*(draw(generator, each) for each in asked))
        for each, events in zip(asked, drawn, strict=True):
            last = ending(events)
            if each.model != "b":
                assert isinstance(last, Done)
                continue
            assert isinstance(last, Error)
            assert last.kind is ErrorKind.FAILED
            assert str(last.message).startswith("the model b cannot be read at the moment; choose")

    run(test, shared, folder)


def test_a_model_has_the_picture_beside_it(
    shared: SDXLPipeline, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pillow.new("RGB", (300, 200), "teal").save(folder / "b.preview.png")

    async def test(generator: RequestLifecycle) -> None:
        assert [model.pictured for model in generator.facts.models] == [True, False]
        picture = await generator.thumbnail("models", "b")
        assert Pillow.open(io.BytesIO(picture or b"")).size == (160, 160)
        assert await generator.thumbnail("models", "c") is None
        assert await generator.thumbnail("loras", "b") is None
        with monkeypatch.context() as patch:  # no request for the model may fail meanwhile
            patch.delattr(SDXLPipeline, "remove_model")
            (folder / "b.preview.png").unlink()
            (folder / "b.txt").write_text("Teal.")
            await until(lambda: generator.facts.models[0].text == "Teal.")
            assert not generator.facts.models[0].pictured

    run(test, shared, folder)


def test_hashes_are_computed_once(tmp_path: Path) -> None:
    save_file({"x": np.zeros(2, np.float32)}, tmp_path / "a.safetensors")
    [file] = Folder(tmp_path, "MODEL_DIR").look().files.values()
    right = hashlib.sha256(file.path.read_bytes()).hexdigest()
    kept = tmp_path / "hashes.json"

    def found(hashes: Hashes) -> None:
        async def wait() -> None:
            # It is written after it is known, in place of the file before.
            await until(
                lambda: (
                    hashes.of(file) == right
                    and kept.exists()
                    and right in kept.read_text(errors="ignore")
                )
            )

        asyncio.run(wait())

    assert Hashes(kept).of(file) == ""
    found(Hashes(kept))
    assert Hashes(kept).of(file) == right
    for damaged in (b"[", b"[1]", b"\xff", b"[" * 10**5, b"{}"):
        kept.write_bytes(damaged)
        found(Hashes(kept))
    hashes = Hashes(kept)
    save_file({"y": np.zeros(2, np.float32)}, file.path)
    [file] = Folder(tmp_path, "MODEL_DIR").look().files.values()
    right = hashlib.sha256(file.path.read_bytes()).hexdigest()
    found(hashes)
    assert [*json.loads(kept.read_text()).values()] == [right]  # the replaced file's has gone


@run_by(run, "shared", "folder")
async def test_a_model_does_not_wait_for_ever(generator: RequestLifecycle):
    """Requests for another model get their turn among many for the one in the slots."""

    await listed(generator, "b", "c")
    order: list[str] = []

    async def one(asked: Request) -> None:
        assert isinstance(ending(await draw(generator, asked)), Done)
        order.append(asked.model)

    crowd = [request("", i, visitor="many", address="many") for i in range(12)]
    waits = request("b", visitor="one", address="one")
    await asyncio.gather(*map(one, (*crowd, waits)))
    assert sorted(order) == [*[""] * 12, "b"]


def test_a_model_of_another_shape_is_drawn_beside_the_first(tmp_path: Path) -> None:
    copy_checkpoint(tmp_path, SD_1).rename(tmp_path / "small")
    pipe = SDXLPipeline.from_pretrained(
        SMALLEST,
        devices=jax.devices()[:1],
        images_per_request=2,
        cache_dir=EXECUTABLES,
        models=[tmp_path / "small"],
    )
    alone = pipe.generate("a star", model="small", seed=1, images=1, num_inference_steps=2).images

    async def test(generator: RequestLifecycle) -> None:
        [other] = generator.facts.others
        size = other.width, other.height
        assert expand(request("small"), generator.facts).size == size
        assert generator.facts.sizes[0] != size
        with pytest.raises(RequestError) as refused:
            await draw(generator, replace(request("small"), size=generator.facts.sizes[0]))
        assert refused.value.message.params["choices"] == ["{}x{}".format(*size)]
        assert len({digest_of(request(name), generator.facts) for name in ("", "small")}) == 2
        endings: list[str] = []

        async def one(name: str, steps: int) -> list:
            events = await draw(generator, replace(request(name), num_inference_steps=steps))
            endings.append(name)
            return events

        _, drawn = await asyncio.gather(one("", 50), one("small", 2))
        assert endings == ["small", ""]
        assert pixels(drawn) == [alone[0].tobytes()]

    run(test, pipe, tmp_path / "models")
