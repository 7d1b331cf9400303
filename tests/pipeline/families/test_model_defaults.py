"""The defaults in a text file beside a model."""

from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline import CheckpointError, SDXLPipeline
from pipeline.families import read_config
from pipeline.families.model_defaults import ModelDefaults, read_defaults
from pipeline.families.reader import FamilyReader
from pipeline.request import GenerateRequest
from pipeline.resolve import resolve
from pipeline.schedulers.config import Flow
from tests.checkpoints import SD_1, SMALLEST, make_model, nothing_compiles, shared_pipeline
from tests.documents import ROOT, fences, read

WHOLE = """
guidance_scale = 4
steps = 9
scheduler = "DPM++ 2M Karras"
guidance_rescale = 0.7
clip_skip = 2
prediction = "v"
zero_terminal_snr = true
"""


def beside(folder: Path, text: str, source: Path = SMALLEST) -> Path:
    """Return a model with a text file beside it."""
    model = make_model(folder / "pony", source=source)
    model.with_name(f"{model.name}.toml").write_text(text)
    return model


def test_the_file_is_read(tmp_path: Path):
    model = tmp_path / "pony.safetensors"
    (tmp_path / "pony.toml").write_text(WHOLE, "utf-8-sig")  # as Windows' Notepad writes it
    assert read_defaults(str(model)) == ModelDefaults()  # of a model on the Hub
    model.touch()
    assert read_defaults(str(model)) == ModelDefaults(
        {
            "guidance_scale": 4.0,
            "num_inference_steps": 9,
            "scheduler": "dpmsolver++",
            "guidance_rescale": 0.7,
            "clip_skip": 2,
        },
        {
            "prediction_type": "v_prediction",
            "rescale_betas_zero_snr": True,
            "use_karras_sigmas": True,
        },
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps = 0", "steps = 0 is not possible; expected 1 to 50"),
        ("steps = 'many'", "steps = 'many' is not possible; expected a whole number"),
        ("scheduler = 'best'", "scheduler = 'best' is not possible; expected one of"),
        ("prediction = 'x0'", "prediction = 'x0' is not possible; expected 'epsilon' or 'v' or"),
        ("prediction = [1]", "prediction = [1] is not possible"),
        ("zero_terminal_snr = 1", "zero_terminal_snr = 1 is not possible; expected true or false"),
        ("shift = -1", "shift = -1 is not possible; expected a number above 0"),
        ("seed = 3", "seed = 3 is not possible; expected one of the keys guidance_scale, steps,"),
        ("steps: 3", "cannot be read as TOML"),
        ("shift = 3", "shift = 3 is not possible; expected a number above 0, at most 100, beside"),
        ("shift = inf", "shift = inf is not possible; expected a number above 0, at most 100"),
        ("# " + 4096 * "x", "cannot be read as TOML: it has more than 4096 bytes"),
        ("steps = " + 2000 * "[" + 2000 * "]", "cannot be read as TOML"),
        ("steps." + ".".join(1000 * "a") + " = 1", "steps = {'a': {'a': "),
        ("\x00", "cannot be read as TOML"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, said: str):
    model = beside(tmp_path, text)
    with pytest.raises(CheckpointError) as caught:
        read_defaults(str(model))
    assert str(caught.value).startswith(f"{model}.toml: {said}")


def test_a_model_that_is_added_brings_its_defaults(tmp_path: Path):
    pipe = shared_pipeline(1)
    name = pipe.add_model(beside(tmp_path, WHOLE), "pony")
    try:
        [facts] = pipe.facts.models
        assert (facts.guidance_scale, facts.clip_skip) == (4, 0)  # only SD 1 has a clip skip
        assert facts.num_inference_steps == pipe.facts.num_inference_steps  # the operator's choice
        assert (facts.scheduler, facts.sigma_schedule) == ("dpmsolver++", "karras")
        assert (facts.guidance_rescale, facts.prediction_type) == (0.7, "v_prediction")
        request = resolve(GenerateRequest("a star", model=name), pipe.facts, has_image=False)
        assert request.guidance_rescale == 0.7
        assert resolve(request, pipe.facts, has_image=False) == request
        with nothing_compiles():
            picture = pipe.generate("a star", model=name).images[0]
        explicit = pipe.generate("a star", model=name, guidance_rescale=0.7)
        np.testing.assert_array_equal(np.asarray(picture), np.asarray(explicit.images[0]))
    finally:
        pipe.remove_model(name)


def test_the_file_in_the_documents_can_be_used(tmp_path: Path):
    [block] = [block for kind, block in fences(read(ROOT / "docs/own-models.md")) if kind == "toml"]
    model = beside(tmp_path, block)
    assert len(read_defaults(str(model)).settings) == 5
    assert (
        FamilyReader().for_model(str(model)).read(model).scheduler.prediction_type == "v_prediction"
    )


@pytest.mark.slow
def test_clip_skip_is_the_models_own(tmp_path: Path):
    pipe = SDXLPipeline.from_pretrained(
        beside(tmp_path, "clip_skip = 2", SD_1), images_per_request=1, devices=jax.devices()[:1]
    )
    own, one, two = (
        np.asarray(pipe.generate("a star", num_inference_steps=2, clip_skip=skip).images[0])
        for skip in (0, 1, 2)
    )
    assert (own == two).all()
    assert (own != one).any()


@pytest.mark.parametrize("shift", [None, 5])
def test_rectified_flow(tmp_path: Path, shift: float | None):
    line = "" if shift is None else f"\nshift = {shift}"
    model = beside(tmp_path, f"prediction = 'flow'{line}")
    config = FamilyReader().for_model(str(model)).read(model)
    assert config.scheduler.training == Flow(shift or 1.0)
    assert config.scheduler.prediction_type == "flow_prediction"
    assert [*config.schedulers.configs] == ["euler"]
    assert not isinstance(read_config(SMALLEST).scheduler.training, Flow)
