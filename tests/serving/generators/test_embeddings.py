"""A folder of textual inversions that changes while a pipeline runs."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline import SDXLPipeline
from serving.generator import Image, Request
from serving.generators.local import Folders
from serving.generators.watched import EmbeddingFolder
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.checkpoints import shared_pipeline
from tests.embeddings import save_embedding
from tests.generators import local_generator


@pytest.fixture
def pipe() -> Iterator[SDXLPipeline]:
    pipe = shared_pipeline(1)
    yield pipe
    for name in list(pipe.embeddings):
        pipe.unload_embedding(name)


class Watched:
    """A folder whose clock advances with every look."""

    def __init__(self, pipe: SDXLPipeline, path: Path) -> None:
        self._now = 10.0**12
        self._folder = EmbeddingFolder(pipe, path, clock=lambda: self._now)

    def refresh(self) -> None:
        self._now += 10
        self._folder.refresh()


def test_embeddings_come_change_and_go(pipe: SDXLPipeline, tmp_path: Path) -> None:
    folder = Watched(pipe, tmp_path)
    folder.refresh()
    assert not pipe.embeddings
    plain = pipe.measure("style").tokens
    save_embedding(pipe, tmp_path / "style.safetensors", count=20)
    folder.refresh()
    assert pipe.embeddings["style"].file == tmp_path / "style.safetensors"
    assert pipe.measure("style").tokens == 22 != plain
    before = pipe.embeddings["style"].digest
    save_embedding(pipe, tmp_path / "style.safetensors", count=21)
    folder.refresh()
    assert pipe.measure("style").tokens == 23
    assert pipe.embeddings["style"].digest != before
    (tmp_path / "style.safetensors").unlink()
    folder.refresh()
    assert not pipe.embeddings
    assert pipe.measure("style").tokens == plain


def test_bad_files_are_logged_and_left_out(
    pipe: SDXLPipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for each in (inside, inside / "more", outside):
        each.mkdir()
    save_embedding(pipe, inside / "good.safetensors")
    save_file({"emb_params": np.ones((1, 3), np.float32)}, inside / "wrong.safetensors")
    for path in (outside / "linked", inside / "twice", inside / "more/twice", inside / "a,b"):
        save_embedding(pipe, path.with_name(f"{path.name}.safetensors"))
    (inside / "linked.safetensors").symlink_to(outside / "linked.safetensors")
    folder = Watched(pipe, inside)
    with caplog.at_level(logging.WARNING):
        folder.refresh()
    assert list(pipe.embeddings) == ["good"]
    for said in (
        r"wrong.safetensors: this model's textual inversions have the tensors clip_l and clip_g",
        "has a link that leads out of it, which is not followed: 'linked.safetensors'",
        "has several files named 'twice', none of which is used: more/twice.safetensors, twice",
        "has a file whose name cannot be used; rename it: 'a,b.safetensors'",
    ):
        assert said in caplog.text


def test_a_bad_file_is_read_and_logged_once(
    pipe: SDXLPipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_file({"emb_params": np.ones((1, 3), np.float32)}, tmp_path / "wrong.safetensors")
    folder = Watched(pipe, tmp_path)
    for name in ("one", "two"):
        save_embedding(pipe, tmp_path / f"{name}.safetensors")
        folder.refresh()
        assert name in pipe.embeddings
    assert caplog.text.count("An embedding is left out") == 1
    save_embedding(pipe, tmp_path / "wrong.safetensors")
    folder.refresh()
    assert "wrong" in pipe.embeddings


def test_a_file_that_is_damaged_later_is_forgotten(pipe: SDXLPipeline, tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    save_embedding(pipe, file)
    folder = Watched(pipe, tmp_path)
    folder.refresh()
    assert list(pipe.embeddings) == ["style"]
    save_file({"emb_params": np.ones((1, 3), np.float32)}, file)
    folder.refresh()
    assert not pipe.embeddings


def test_a_generator_looks_at_the_folder(pipe: SDXLPipeline, tmp_path: Path) -> None:
    """Prompts are measured and drawn with the embeddings that are there by then."""
    now = [10.0**12]
    folder = EmbeddingFolder(pipe, tmp_path, clock=lambda: now[0])

    async def use() -> list[Image]:
        generator = local_generator(pipe, Limits(), Observer(), folders=Folders(embeddings=folder))
        try:
            save_embedding(pipe, tmp_path / "style.safetensors", count=20)
            now[0] += 10
            length = await generator.measure("style")
            assert length is not None
            assert length.tokens == 22
            save_embedding(
                pipe, tmp_path / "style.safetensors", count=90
            )  # more than a prompt takes
            save_embedding(pipe, tmp_path / "other.safetensors")
            now[0] += 10
            request = Request("style, other", None, 5.0, 1, 7)
            await generator.submit(request)
            return [each async for each in generator.events(request.id) if isinstance(each, Image)]
        finally:
            await generator.close(60)

    images = asyncio.run(use())
    assert len(images) == 4
    assert list(pipe.embeddings) == ["other"]
    hashes = f"other: {pipe.embeddings['other'].short_hash}"
    assert {image.settings["ti_hashes"] for image in images} == {hashes}
