"""The nodes of examples/comfyui, by ComfyUI's node interface, against a real server.

Neither ComfyUI nor torch is needed: small stand-ins have the few names that the nodes use.
"""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest

from tests.web import Site, raw_server, serve, wait_until

FOLDER = Path(__file__).parents[1] / "examples" / "comfyui"
# ComfyUI's own types of connections, and the options of widgets (comfy_types/node_typing.py).
TYPES = {"STRING", "INT", "FLOAT", "IMAGE", "MASK", "SDXL_SERVER_LORAS", "SDXL_SERVER_CONTROLS"}
OPTIONS = {"default", "min", "max", "step", "multiline", "control_after_generate"}


class Tensor:
    """Stand-in for a tensor."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray:
        return self.values


class ProgressBar:
    """Stand-in for ComfyUI's progress bar; `shown` are the previews."""

    made: list["ProgressBar"]

    def __init__(self, total: int) -> None:
        self.total, self.current = total, 0
        self.shown: list[Any] = []
        self.made.append(self)

    def update_absolute(self, value: int, total: int | None = None, preview: Any = None) -> None:
        self.current, self.total = value, total or self.total
        if preview is not None:
            self.shown.append(preview)


class Interrupted(Exception):
    """The exception with which ComfyUI stops a node."""


@pytest.fixture(scope="module")
def nodes() -> ModuleType:
    """Load the folder as ComfyUI does: its path is the name of the module."""
    name = str(FOLDER).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, FOLDER / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stand-in for ComfyUI's module that tells nodes to stop."""
    torch, utils = ModuleType("torch"), ModuleType("comfy.utils")
    management = ModuleType("comfy.model_management")
    monkeypatch.setattr(ProgressBar, "made", [], raising=False)
    for module, name, value in (
        (torch, "from_numpy", Tensor),
        (utils, "ProgressBar", ProgressBar),
        (management, "throw_exception_if_processing_interrupted", lambda: None),
    ):
        setattr(module, name, value)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "comfy", ModuleType("comfy"))
    return management


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


def draw(nodes: ModuleType, url: str, **others: Any) -> np.ndarray:
    """Run the node with the defaults of its widgets, as ComfyUI calls it."""
    kind = nodes.NODE_CLASS_MAPPINGS["DrawOnServer"]
    widgets = {name: each[1]["default"] for name, each in kind.INPUT_TYPES()["required"].items()}
    given = widgets | {"server": url, "prompt": "a red star", "seed": 7} | others
    (pictures,) = getattr(kind(), kind.FUNCTION)(**given)
    assert pictures.values.dtype == np.float32
    return pictures.values


def grey(level: float, side: int = 8) -> np.ndarray:
    return np.full((side, side, 3), level, np.float32)


def test_the_node_interface(nodes: ModuleType):
    assert nodes.NODE_CLASS_MAPPINGS.keys() == nodes.NODE_DISPLAY_NAME_MAPPINGS.keys()
    for kind in nodes.NODE_CLASS_MAPPINGS.values():
        groups = kind.INPUT_TYPES()
        assert set(groups) <= {"required", "optional", "hidden"}
        inputs = {name: each for group in groups.values() for name, each in group.items()}
        for of, options in inputs.values():
            assert of in TYPES
            assert set(options) <= OPTIONS
            assert ("default" in options) == (of in ("STRING", "INT", "FLOAT"))
            assert of not in ("INT", "FLOAT") or (
                options["min"] <= options["default"] <= options["max"]
            )
        parameters = inspect.signature(getattr(kind, kind.FUNCTION)).parameters
        assert [*parameters] == ["self", *inputs]
        assert all(parameters[name].default is not inspect._empty for name in groups["optional"])
        assert set(kind.RETURN_TYPES) <= TYPES
        assert len(kind.RETURN_TYPES) == len(kind.RETURN_NAMES)
        assert isinstance(kind.CATEGORY, str)


def test_pictures_from_words(nodes: ModuleType, comfy: ModuleType, site: Site):
    pictures = draw(nodes, f"{site.url}/", images=2, steps=3, guidance_scale=6.5)
    assert pictures.shape == (2, 8, 8, 3)
    assert np.round(255 * pictures[:, 0, 0, 0]).tolist() == [7, 8]
    call = site.pipe.calls[-1]
    assert (call["num_inference_steps"], call["guidance_scale"], call["seed"]) == (3, 6.5, 7)
    (bar,) = ProgressBar.made
    assert (bar.current, bar.total) == (3, 3)
    draw(nodes, site.url, width=8, height=8)
    assert site.pipe.calls[-1]["num_inference_steps"] == 4  # the server's own


def test_loras(nodes: ModuleType, comfy: ModuleType, site: Site):
    add = nodes.NODE_CLASS_MAPPINGS["AddServerLora"]().add
    (loras,) = add("pixel", 0.8)
    (loras,) = add("other", -0.5, loras)
    assert loras == {"pixel": 0.8, "other": -0.5}
    with pytest.raises(RuntimeError, match="loras names other, which is not in the server's"):
        draw(nodes, site.url, loras=loras)


def test_controls(nodes: ModuleType, comfy: ModuleType, site: Site):
    add = nodes.NODE_CLASS_MAPPINGS["AddServerControl"]().add
    image = Tensor(np.stack([grey(0.2), grey(0.4)]))
    (controls,) = add("canny", image, "canny", 0.5, 0.0, 1.0)
    (controls,) = add("union", image, "none", 1.0, 0.25, 0.5, "depth", controls)
    assert [control["name"] for control in controls] == ["canny", "union"]
    assert (controls[1]["type"], controls[1]["start"], controls[1]["end"]) == ("depth", 0.25, 0.5)
    with pytest.raises(RuntimeError, match="canny"):  # the server has none
        draw(nodes, site.url, controls=controls)


def test_a_model_that_is_not_there(nodes: ModuleType, comfy: ModuleType, site: Site):
    with pytest.raises(RuntimeError, match="model is pony"):
        draw(nodes, site.url, model="pony")


def test_pictures_from_pictures(nodes: ModuleType, comfy: ModuleType, site: Site):
    batch = Tensor(np.stack([grey(0.2), grey(0.4)]))
    pictures = draw(nodes, site.url, image=batch, strength=0.5, images=2)
    assert np.round(255 * pictures[:, 0, 0]).tolist() == [
        [7, 51, 0],
        [8, 51, 0],
        [9, 102, 0],
        [10, 102, 0],
    ]
    assert site.pipe.calls[-1]["strength"] == 0.5


def test_masks(nodes: ModuleType, comfy: ModuleType, site: Site):
    image = Tensor(grey(0.4)[None])
    mask = np.zeros((16, 16), np.float32)
    # ComfyUI's mask of a picture without transparency is empty, and of another size.
    for empty in (mask, mask[None]):
        draw(nodes, site.url, image=image, mask=Tensor(empty))
        assert site.pipe.calls[-1]["mask"] is None
    mask[8:] = 1
    pictures = draw(nodes, site.url, image=image, mask=Tensor(mask[None]))
    assert np.round(255 * pictures[0, 0, 0]).tolist() == [7, 102, 127]
    drawn = site.pipe.calls[-1]["mask"]
    assert drawn is not None
    assert drawn.size == (8, 8)


def test_previews_and_interruption(
    nodes: ModuleType, comfy: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    with serve(held=True) as site:

        def stop() -> None:
            site.pipe.let_step()
            if any(bar.shown for bar in ProgressBar.made):
                raise Interrupted

        monkeypatch.setattr(comfy, "throw_exception_if_processing_interrupted", stop)
        with pytest.raises(Interrupted):
            draw(nodes, site.url)
        wait_until(lambda: httpx.get(f"{site.url}/readyz").json()["running"] == 0)
        ((kind, shown, most),) = ProgressBar.made[0].shown
        assert (kind, shown.format, most) == ("JPEG", "JPEG", None)


def test_refusals(
    nodes: ModuleType, comfy: ModuleType, site: Site, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(RuntimeError, match="size is 16x16; here it can only be 8x8"):
        draw(nodes, site.url, width=16, height=16)
    with pytest.raises(RuntimeError, match="Something went wrong while drawing"):
        draw(nodes, site.url, prompt="break")
    for url in ("http://127.0.0.1:1", "no address"):
        with pytest.raises(RuntimeError, match=f"{url} cannot draw: "):
            draw(nodes, url)
    with serve(keys=["secret"]) as keyed:
        with pytest.raises(RuntimeError, match="A valid API key is needed"):
            draw(nodes, keyed.url)
        monkeypatch.setenv("SDXL_SERVER_KEY", "secret")
        assert draw(nodes, keyed.url).shape == (1, 8, 8, 3)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", "answered 502 Bad Gateway"),
        (b"HTTP/1.1 200 OK\r\n\r\nevent: queued\ndata: {}\n\n", "closed the connection before"),
        (b"HTTP/1.1 200 OK\r\n\r\nevent: queued\ndata: {\n\n", "cannot draw: "),
    ],
)
def test_other_servers(nodes: ModuleType, comfy: ModuleType, answer: bytes, said: str):
    with raw_server(lambda _: answer) as url, pytest.raises(RuntimeError, match=said):
        draw(nodes, url)
