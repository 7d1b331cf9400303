"""A browser for each file of tests, the pages that its tests open, and a server of a tiny model."""

from collections.abc import Iterator

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests import compiling
from tests.browsing import Visitor
from tests.checkpoints import SMALLEST, copy_checkpoint
from tests.web import served
from tools.adapter_files import draw_adapter, is_projection, read_inventory, write_adapter
from tools.page_states import launched

# The LoRAs of the tiny model, with their titles.
TITLES = {"pixel": "Pixel art", "ink": "Ink <b>wash</b>"}


@pytest.fixture(scope="session")
def tiny_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the real program with two tiny models, two LoRAs and a second size.

    The second size, 24x16, is compiled after the start.
    """
    folder, inventory = tmp_path_factory.mktemp("loras"), read_inventory(SMALLEST)
    for seed, (name, title) in enumerate(TITLES.items()):
        drawn = draw_adapter(inventory, "lora", seed, is_projection)
        told = {"modelspec.title": title, "modelspec.trigger_phrase": f"{name} style"}
        file = folder / f"{name}.safetensors"
        write_adapter(file, drawn, "kohya sdxl", inventory, metadata=told)
    Image.new("RGB", (300, 200), "teal").save(folder / "pixel.preview.png")
    models = tmp_path_factory.mktemp("models")
    copy_checkpoint(models).rename(models / "pony")
    Image.new("RGB", (300, 200), "teal").save(models / "pony.png")
    flags = ["--sizes", "16x16,24x16", "--lora-dir", str(folder), "--model-dir", str(models)]
    program = ["app.py", "--model", str(SMALLEST), *flags]
    with compiling.quickly(), served(program, tmp_path_factory.mktemp("app") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def visitor(browser: Browser) -> Iterator[Visitor]:
    """Yield a visitor whose browser keeps the page's scripts, which saves a second each time."""
    with Visitor.of(browser) as found:
        yield found


@pytest.fixture
def page(visitor: Visitor, address: str) -> Iterator[Page]:
    with visitor.at(address) as found:
        yield found


@pytest.fixture
def slow_page(visitor: Visitor, slow_address: str) -> Iterator[Page]:
    with visitor.at(slow_address) as found:
        yield found
