"""The bundled ControlNet: pictures keep the outlines of drawings that no training saw."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from pipeline import SDXLPipeline
from tests.checkpoints import BUNDLED
from tools.miniature.control import CONFIG, FOLDER, NAME, SIDE, random_map
from tools.miniature.drawing import draw
from tools.miniature.evaluate_control import Example, examples, f_score, follow, score
from tools.miniature.scenes import random_scene

COUNT = 12


def test_scores_of_edges() -> None:
    rng = np.random.default_rng(0)
    drawing, other = (draw(random_scene(rng), rng, SIDE) for _ in range(2))
    assert f_score(drawing, drawing) == 1
    assert f_score(np.zeros_like(drawing), drawing) == 0
    assert f_score(np.roll(drawing, 2, axis=1), drawing) > 0.95
    assert f_score(other, drawing) < 0.4


def test_what_the_training_shows() -> None:
    rng = np.random.default_rng(0)
    drawing = draw(random_scene(rng), rng, SIDE)
    maps = [random_map(drawing, rng) for _ in range(20)]
    assert {(x.shape, x.dtype) for x in maps} == {(drawing.shape, drawing.dtype)}
    lines = [x for x in maps if set(np.unique(x)) == {0, 255}]
    assert 5 < len(lines) < 20


def test_the_files() -> None:
    config = json.loads((FOLDER / NAME / "config.json").read_text("utf-8"))
    assert config.items() >= CONFIG.items()
    weights = FOLDER / NAME / "diffusion_pytorch_model.safetensors"
    assert weights.stat().st_size < 4_000_000
    with safe_open(weights, "numpy") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["edges", "areas"])
def test_pictures_follow_maps(kind: str) -> None:
    pipe = SDXLPipeline.from_pretrained(BUNDLED, controlnets={NAME: FOLDER / NAME})
    chosen: list[Example] = examples(COUNT, kind)
    without, scores = (score(chosen, follow(pipe, chosen, scale)) for scale in (0, 1))
    assert without["edges"] <= 0.4
    assert scores["edges"] >= (0.7 if kind == "edges" else 0.5)
    assert min(scores["shape"], scores["colour"]) >= 0.75
