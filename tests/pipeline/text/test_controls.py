"""Controls as text: for links and requests, and as units in pictures' settings."""

from typing import Any

import pytest

from pipeline.images import metadata
from pipeline.text.controls import (
    Control,
    checked,
    format_controls,
    from_unit,
    parse_controls,
    to_unit,
)

CONTROLS = (
    Control("canny"),
    Control("canny", scale=0.1 + 0.2, start=0.25, end=0.75),
    Control("a union", type="hard", preprocessor="canny", control_mode="prompt"),
    Control("x", resolution=512, threshold_a=0.0, threshold_b=200.5, resize_mode="fill"),
    Control("x", control_mode="guess"),
)
WEBUI = (
    "Module: canny, Model: control_v11p_sd15_canny [d14c016b], Weight: 0.75, Resize Mode: Just"
    " Resize, Low Vram: False, Processor Res: 512, Threshold A: 100, Threshold B: 200, Guidance"
    " Start: 0, Guidance End: 0.5, Pixel Perfect: False, Control Mode: ControlNet is more"
    " important, Hr Option: Both, Save Detected Map: True"
)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_text_has_all_values(control: Control):
    text = format_controls([control, Control("other")])
    assert parse_controls(text) == (checked(control), Control("other"))


def test_defaults_are_left_out():
    assert format_controls(CONTROLS[:2]) == (
        "canny,canny:scale=0.30000000000000004:start=0.25:end=0.75"
    )
    assert parse_controls("") == ()


@pytest.mark.parametrize(
    "text",
    [
        *("canny:scale=3", "canny:scale=x", "canny:scale=-1", "canny:scale=nan", "canny:scale"),
        *("canny:size=1", "canny:scale=1:scale=1", ":", ",", "canny,", "a,b,c,d", "<canny>"),
        *("canny:resize_mode=zoom", "canny:type=canny", "canny:preprocessor=A B"),
        *("canny:start=0.6:end=0.5", "canny:image=x", "canny:name=x", "canny" + ":scale=1" * 9999),
    ],
)
def test_what_is_no_list_of_controls(text: str):
    with pytest.raises(ValueError, match=r"."):
        parse_controls(text)


@pytest.mark.parametrize("control", CONTROLS[:-1])
def test_a_unit_has_all_values(control: Control):
    assert from_unit(to_unit(control)) == checked(control)


def test_a_unit_of_another_program():
    assert from_unit(WEBUI) == Control(
        "control_v11p_sd15_canny",
        scale=0.75,
        end=0.5,
        preprocessor="canny",
        resolution=512,
        threshold_a=100.0,
        threshold_b=200.0,
        resize_mode="stretch",
        control_mode="control",
    )


def settings(controls: str) -> metadata.Settings:
    values: dict[str, Any] = {"num_inference_steps": 5, "seed": 1, "guidance_scale": 5.0}
    return metadata.Settings("a star", **values, controls=controls)


@pytest.mark.parametrize("control", CONTROLS)
def test_pictures_texts_have_controls(control: Control):
    before = settings(format_controls([control, Control("other")]))
    text = metadata.to_text(before)
    assert metadata.from_text(text) == before
    assert ('Controls: "' in text) == (control.control_mode == "guess")


def test_a_picture_of_another_program_is_read():
    text = f'a star\nSteps: 5, Sampler: Euler, Seed: 1, ControlNet 0: "{WEBUI}"'
    assert metadata.from_text(text).controls == format_controls([from_unit(WEBUI)])


@pytest.mark.parametrize("unit", ["Model: a, Weight: x", "Module: canny", "Model: <b>", "Weight"])
def test_a_unit_that_cannot_be_read(unit: str):
    with pytest.raises(metadata.MetadataError, match="ControlNet: "):
        metadata.from_text(f'a star\nSteps: 5, Sampler: Euler, Seed: 1, ControlNet 0: "{unit}"')
