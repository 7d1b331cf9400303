"""Pictures downloaded as files of other formats, by their addresses."""

import asyncio
import io
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image

from pipeline import metadata
from pipeline.images.metadata import Settings
from ui import i18n
from ui.pictures import downloads, files


def picture(prompt: str) -> bytes:
    image, file = Image.new("RGB", (8, 8)), io.BytesIO()
    metadata.attach(
        image,
        Settings(
            prompt,
            "",
            seed=7,
            num_inference_steps=25,
            guidance_scale=5.0,
            width=8,
            height=8,
            model="m",
        ),
    )
    metadata.save_png(image, file)
    return file.getvalue()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "secret.png").write_bytes(b"secret")
    return files.save({"a-star-7.png": picture("a star")})[0]


def get(*addresses: str) -> list[httpx.Response]:
    app = FastAPI()
    downloads.connect(app)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.get(address) for address in addresses]

    return asyncio.run(ask())


def test_every_format_is_served_under_its_name(path: Path):
    base = f"/pictures/{path.parent.name}/a-star-7"
    answers = get(*(f"{base}.{suffix}" for suffix in ("png", "jpg", "webp")))
    for kind, answer in zip(("png", "jpeg", "webp"), answers, strict=True):
        assert answer.headers["content-type"] == f"image/{kind}"
        assert 'attachment; filename="a-star-7.' in answer.headers["content-disposition"]
        with Image.open(io.BytesIO(answer.content)) as found:
            assert found.format == kind.upper()


def test_no_other_file_is_served(path: Path):
    folder = path.parent.name
    addresses = [
        f"/pictures/{folder}/a-star-8.png",
        f"/pictures/{folder}/a-star-7.gif",
        f"/pictures/{folder}/..%2fsecret.png",
        f"/pictures/{folder}/%2e%2e/secret.png",
        "/pictures/../secret.png",
        "/pictures/%2e%2e/secret.png",
        "/pictures/./secret.png",
        f"/pictures/{'x' * 22}/a-star-7.png",
        f"/pictures/{folder}/A%00.png",
    ]
    assert [answer.status_code for answer in get(*addresses)] == [404] * len(addresses)


def test_settings_too_long_for_a_jpeg_are_refused(path: Path):
    path.write_bytes(picture("x" * 40_000))
    base = f"/pictures/{path.parent.name}/a-star-7"
    jpeg, webp = get(f"{base}.jpg", f"{base}.webp")
    assert (jpeg.status_code, webp.status_code) == (422, 200)
    assert i18n.TOO_LONG_FOR_JPEG in jpeg.text


def test_one_address_has_few_files_made_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(downloads, "AT_A_TIME_EACH", 0)
    address = f"/pictures/{path.parent.name}/a-star-7.webp"
    assert get(address)[0].status_code == 429
