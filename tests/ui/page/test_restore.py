"""Settings restored from a visitor's pictures and texts."""

import asyncio
import io
import json
import socket
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from PIL import Image, PngImagePlugin
from starlette.datastructures import Address
from starlette.testclient import TestClient

from pipeline import metadata
from pipeline.images.metadata import Settings
from serving.generator import MAX_CHARACTERS
from serving.messages import Code, Message
from serving.requests import readers
from tests.pages import MADE_HERE, MODEL, StandIn
from ui import i18n
from ui.form import settings
from ui.mount import mount
from ui.page import restore
from ui.page.restore import RestoreError
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for
from ui.wiring import Updates

SMALL = replace(MADE_HERE, width=8, height=8)

STYLES = styles_for(Kind.SDXL)


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for uploads and set it as Gradio's."""
    folder = tmp_path / "uploads"
    folder.mkdir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(folder))
    return folder


@pytest.fixture
def upload(uploads: Path) -> Path:
    """Return the path of an upload in Gradio's folder."""
    (uploads / "hash").mkdir()
    return uploads / "hash" / "x.png"


def picture(path: Path, text: str | None) -> Path:
    info = PngImagePlugin.PngInfo()
    if text is not None:
        info.add_text(metadata.KEY, text)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)
    return path


def long_png(path: Path) -> Path:
    """Write a PNG whose text is longer than any that this program writes."""
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "x" * 2**21)
    Image.new("RGB", (8, 8)).save(path, "PNG", pnginfo=info)
    return path


def test_a_picture_made_here(upload: Path):
    path = picture(upload, metadata.to_text(SMALL))
    assert restore.from_picture(path) == SMALL
    assert not path.exists()


def test_a_text_of_another_program():
    found = restore.from_text(
        "a cat\nNegative prompt: dog\n"
        "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 42, Size: 512x768, Model: v3"
    )
    assert (found.prompt, found.negative_prompt, found.seed) == ("a cat", "dog", 42)


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ("a (cat:1.2)\nSteps: 20, Seed: 42, Version: v1.10.1", "a1111"),
        ("a cat\nNegative prompt: (dog)\nSteps: 20, Seed: 42, Version: v1.10.1", "a1111"),
        ("a (cat:1.2)\nSteps: 20, Seed: 42, Version: sdxl-flax", "plain"),
        ("a (cat:1.2)\nSteps: 20, Seed: 42, Prompt syntax: a1111, Version: sdxl-flax", "a1111"),
        ("a cat\nSteps: 20, Seed: 42, Version: sdxl-flax", "a1111"),  # the page's own
    ],
)
def test_the_syntax_is_restored(text: str, syntax: str):
    fields, _ = settings.as_fields(restore.from_text(text), MODEL)
    assert fields.prompt_syntax == syntax


def damaged(path: Path) -> Path:
    whole = picture(path, "x").read_bytes()
    path.write_bytes(whole[:40])
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: picture(path, "<script>alert(1)</script>"), i18n.UNREADABLE_SETTINGS),
        (
            lambda path: picture(path, "x\nSteps: many, Seed: 1, Size: 1x1"),
            i18n.UNREADABLE_SETTINGS,
        ),
        (long_png, i18n.TOO_LARGE_A_PICTURE),
        (damaged, i18n.UNREADABLE_PICTURE),
        (lambda path: path.write_text("<svg/>") and path, i18n.UNREADABLE_PICTURE),
        (lambda path: path.write_bytes(b"") or path, i18n.UNREADABLE_PICTURE),
    ],
)
def test_pictures_without_settings(upload: Path, make: Any, said: str):
    path = make(upload)
    with pytest.raises(RestoreError) as raised:
        restore.from_picture(path)
    assert str(raised.value) == said
    assert not path.exists()
    assert not path.parent.exists()


@pytest.mark.parametrize("text", ["", "hello", "a: b", "x" * 2**21, "Steps: x, Seed: y, CFG: z"])
def test_texts_without_settings(text: str):
    with pytest.raises(RestoreError, match="No settings found"):
        restore.from_text(text)


def test_settings_found_are_shown_and_nothing_else_happens():
    def read(text: str | None) -> Updates:
        of_text = partial(restore._of_text, text, STYLES)
        return asyncio.run(restore._shown_in_turn(gr.Request(client=Address("a", 1)), of_text))

    shown = read("<b>\nSteps: 20, CFG scale: 7, Seed: 42")
    assert "&lt;b&gt;" in shown["restored"]
    assert shown["restore-use"].visible
    assert shown["settings"] is not None
    for nothing in ("", " ", None, "hello"):
        shown = read(nothing)
        assert not shown["restore-use"].visible
        assert shown["settings"] is None
        assert ("No settings" in shown["restored"]) == bool(nothing and nothing.strip())


def test_a_call_that_names_no_file(uploads: Path, upload: Path):
    for made_up in (Path(), uploads, upload.parent, upload, Path("\0"), Path("x" * 5000)):
        with pytest.raises(RestoreError, match=i18n.UNREADABLE_PICTURE):
            restore.from_picture(made_up)
    assert upload.parent.exists()


# --- deletion of uploads ---


def test_only_uploads_are_opened_and_deleted(
    tmp_path: Path, uploads: Path, upload: Path, monkeypatch: pytest.MonkeyPatch
):
    text = metadata.to_text(SMALL)
    (uploads / "hash" / "deeper").mkdir()
    (tmp_path / "uploads-2").mkdir()
    pictures = [
        picture(tmp_path / "x.png", text),
        picture(tmp_path / "uploads-2" / "x.png", text),
        picture(uploads / "x.png", text),
        picture(uploads / "hash" / "deeper" / "x.png", text),
    ]
    (upload.parent / "link.png").symlink_to(pictures[0])
    (upload.parent / "loop.png").symlink_to(upload.parent / "loop.png")
    (uploads / "linked").symlink_to(tmp_path)
    named = [
        *pictures,
        upload.parent / "link.png",
        upload.parent / "loop.png",
        uploads / "linked" / "x.png",
        upload.parent / ".." / ".." / "x.png",
    ]
    opened: list[Path] = []
    monkeypatch.setattr(metadata, "read", opened.append)
    for path in named:
        with pytest.raises(RestoreError, match=i18n.UNREADABLE_PICTURE):
            restore.from_picture(path)
    assert opened == []
    assert all(path.exists() for path in pictures)
    assert (upload.parent / "link.png").is_symlink()


def test_a_path_that_is_no_file_is_left_alone(upload: Path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(upload))
        with pytest.raises(RestoreError, match=i18n.UNREADABLE_PICTURE):
            restore.from_picture(upload)
        assert upload.exists()


def test_a_folder_goes_with_the_last_picture_in_it(upload: Path):
    other = upload.with_name("y.png")
    for path in (upload, other):
        picture(path, metadata.to_text(SMALL))
    assert restore.from_picture(upload) == SMALL
    assert [*upload.parent.iterdir()] == [other]
    assert restore.from_picture(other) == SMALL
    assert not upload.parent.exists()


def restored(client: TestClient, content: bytes, **headers: str) -> list[Any]:
    """Return the page's updates after a picture is dropped on it, sent as a browser would."""
    config = client.get("/config").json()
    place = next(
        each["id"]
        for each in config["components"]
        if each["props"].get("elem_id") == "restore-picture"
    )
    event = next(
        each["id"] for each in config["dependencies"] if [place, "upload"] in each["targets"]
    )
    sent = client.post("/gradio_api/upload", files={"files": ("made.png", content)})
    [path] = sent.json()
    dropped = {"path": path, "orig_name": "made.png", "meta": {"_type": "gradio.FileData"}}
    call = {"data": [dropped], "fn_index": event, "session_hash": "page"}
    assert client.post("/gradio_api/queue/join", json=call, headers=headers).status_code == 200
    answers = client.get("/gradio_api/queue/data?session_hash=page").text
    messages = [json.loads(line[6:]) for line in answers.splitlines() if line.startswith("data:")]
    done = next(each for each in messages if each["msg"] == "process_completed")
    assert done["success"], done
    return done["output"]["data"]


@pytest.mark.lasting
def test_a_restored_picture_is_deleted(uploads: Path):
    app = FastAPI()
    mount(app, StandIn(), "127.0.0.1", 0, keep_files_s=600)
    file, image = io.BytesIO(), Image.new("RGB", (8, 8))
    metadata.attach(image, replace(SMALL, prompt="a \ud800 star"))
    metadata.save_png(image, file)
    with TestClient(app) as client:
        before = [*uploads.rglob("*")]
        place, found, *_ = restored(client, file.getvalue())
        assert place is None
        assert '<dd dir="auto">a ? star</dd>' in found
        assert [*uploads.rglob("*")] == before
        _, found, *_ = restored(client, b"x", **{"Accept-Language": "fr"})
        with i18n.speaking("fr"):
            assert i18n.UNREADABLE_PICTURE in found
        assert [*uploads.rglob("*")] == before


# --- limits ---


def test_few_texts_are_read_at_a_time_and_addresses_have_a_share(monkeypatch: pytest.MonkeyPatch):
    began, may_end = [], threading.Event()

    def read_when_told(text: str) -> Settings:
        began.append(text)
        assert may_end.wait(60)
        return SMALL

    def read(address: str, text: str) -> asyncio.Task[Updates]:
        sender = gr.Request(client=Address(address, 1))
        of_text = partial(restore._of_text, text, STYLES)
        return asyncio.create_task(restore._shown_in_turn(sender, of_text))

    async def read_many() -> None:
        texts = [read("a", str(number)) for number in range(readers.MOST_READING_EACH)]
        async with asyncio.timeout(60):
            refused = await read("a", "one more")
            assert i18n.translate(Message(Code.TOO_MANY_CALLS)) in refused["restored"]
            texts.append(read("b", "of another address"))
            while not began:
                await asyncio.sleep(0)
            assert began == ["0"]
            may_end.set()
            for text in texts:
                assert (await text)["settings"] == SMALL

    monkeypatch.setattr(restore, "from_text", read_when_told)
    asyncio.run(read_many())
    assert "of another address" in began[:3]


@pytest.mark.parametrize("field", ["prompt", "negative_prompt", "model"])
def test_long_texts_are_cut_when_they_are_read(upload: Path, field: str):
    text = metadata.to_text(replace(SMALL, **{field: "x" * 900_000}))
    for found in (restore.from_picture(picture(upload, text)), restore.from_text(text)):
        assert len(getattr(found, field)) == MAX_CHARACTERS + 1
        fields, notes = settings.as_fields(found, MODEL)
        assert max(len(fields.prompt), len(fields.negative_prompt)) <= MAX_CHARACTERS
        assert (i18n.text("shortened", limit=MAX_CHARACTERS) in notes) == (field != "model")
    updates = restore._of_text(text, STYLES)
    shown = updates["restored"]
    assert updates["settings"] == found
    assert len(shown) < 3 * MAX_CHARACTERS
    assert (i18n.text("shortened", limit=MAX_CHARACTERS) in shown) == (field != "model")
