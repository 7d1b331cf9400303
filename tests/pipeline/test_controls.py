"""Pictures that follow others through ControlNets, beside all that a request can ask for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import InputError, SDXLPipeline
from pipeline.drawing.following import scales_of
from pipeline.drawing.origins import Inputs
from pipeline.request import GenerateRequest
from pipeline.text.controls import Control, format_controls, from_unit, parse_controls
from tests.checkpoints import EXECUTABLES, SMALLEST, nothing_compiles, shared_pipeline
from tests.controlnets import save_controlnet
from tools.adapter_files import draw_adapter, write_adapter

KINDS = "full", "bgr", "union"
STEPS = 4
CLOSE = 1e-5  # of the largest number
PICTURES = np.random.default_rng(2).uniform(size=(3, 16, 16, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("controls")
    return {kind: save_controlnet(folder / kind, SMALLEST, kind, i) for i, kind in enumerate(KINDS)}


def start(nets: Mapping[str, Path], devices: int = 1, **options: Any) -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        num_inference_steps=STEPS,
        devices=jax.devices()[:devices],
        cache_dir=EXECUTABLES,
        controlnets=nets,
        **options,
    )


@pytest.fixture(scope="module")
def pipe(nets: Mapping[str, Path]) -> SDXLPipeline:
    pipe = start(nets, step_cache=True, prompt_chunks=2)
    pipe.add_size(24, 16)
    pipe.warm_up(24, 16)
    return pipe


def control(name: str = "full", picture: int = 0, **options: Any) -> Control:
    return Control(name, PICTURES[picture], type="depth" if name == "union" else "", **options)


def drawn(pipe: SDXLPipeline, *controls: Control, **options: Any) -> np.ndarray:
    given: dict[str, Any] = {"images": 1, "seed": 5, "output_type": "latent", **options}
    with nothing_compiles():
        return pipe.generate("a star", "a ring", controls=controls, **given).images


def together(pipe: SDXLPipeline, requests: Sequence[Sequence[Control]]) -> list[np.ndarray]:
    """Return the latents of a picture of each request; they share all steps."""
    drawings = []
    for controls in requests:
        request = GenerateRequest("a star", "a ring", seed=5, controls=format_controls(controls))
        inputs = Inputs(controls=[each.image for each in controls])
        drawings.append(pipe.prepare(request, 1, inputs=inputs, output_type="latent"))
        pipe.begin(drawings[-1])
    with nothing_compiles():
        while not all(drawing.is_over for drawing in drawings):
            pipe.advance()
    return [drawing.result().images for drawing in drawings]


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


@pytest.mark.slow
def test_pictures_have_the_same_bits_beside_others_that_follow_anything(pipe: SDXLPipeline):
    requests = [
        [],
        [control()],
        [control("bgr", 1, start=0.3), control("union", 2, end=0.6)],
        [control("full", 1, control_mode="guess"), control("full", 2), control("bgr")],
    ]
    alone = [drawn(pipe, *controls) for controls in requests]
    for one, beside in zip(alone, together(pipe, requests), strict=True):
        np.testing.assert_array_equal(one, beside)
    for i, one in enumerate(alone):
        assert all(difference(one, other) > 0.01 for other in alone[:i])


def test_nothing_is_left_in_a_slot(pipe: SDXLPipeline):
    before = drawn(pipe)
    drawn(pipe, control(), images=4)
    np.testing.assert_array_equal(drawn(pipe, images=4)[:1], before)


def test_a_pipeline_that_has_controls_draws_what_others_draw(pipe: SDXLPipeline):
    without = shared_pipeline(1)
    options = {"num_inference_steps": STEPS}
    assert difference(drawn(pipe), drawn(without, **options)) < CLOSE


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"start": 0.3, "end": 0.4}])
def test_a_control_that_is_never_on_changes_nothing(pipe: SDXLPipeline, options: dict[str, Any]):
    np.testing.assert_array_equal(drawn(pipe, control(**options)), drawn(pipe))


def test_controls_of_a_union_share_an_evaluation_of_the_network(pipe: SDXLPipeline):
    two = [Control("union", PICTURES[i], type=name) for i, name in enumerate(("depth", "hard"))]
    request = GenerateRequest("a star", controls=format_controls(two))
    drawing = pipe.prepare(request, inputs=Inputs(controls=[each.image for each in two]))
    [only] = drawing.first.start.controls
    np.testing.assert_array_equal(only.types, [0, 1, 0, 1, 0, 0, 0, 0])
    assert difference(drawn(pipe, *two), drawn(pipe, two[0])) > 0.01


def test_cached_steps_take_the_residuals_of_the_step_before(pipe: SDXLPipeline):
    whole, cached = (drawn(pipe, control(), cache_interval=n) for n in (1, 2))
    assert difference(cached, whole) > 0.001
    assert difference(cached, drawn(pipe, cache_interval=2)) > 0.01


def test_prompts_may_change_and_be_long(pipe: SDXLPipeline):
    options = {"prompt_syntax": "a1111", "images": 1, "seed": 5, "output_type": "latent"}
    prompts = "[a star:a ring:2]", "a star " * 60, "a star"
    with nothing_compiles():
        images = [
            pipe.generate(prompt, controls=[control()], **options).images for prompt in prompts
        ]
    for i, one in enumerate(images):
        assert all(difference(one, other) > 1e-7 for other in images[:i])


def test_a_second_run_follows_the_same_picture(pipe: SDXLPipeline):
    options = {"enlarge": (24, 16), "output_type": "np", "enlarge_strength": 1.0}
    followed, free = drawn(pipe, control(), **options), drawn(pipe, **options)
    assert followed.shape == (1, 24, 16, 3)
    assert difference(followed, free) > 0.01


def test_a_masked_part_follows_its_part_of_the_picture(pipe: SDXLPipeline):
    mask = np.zeros((32, 32), np.float32)
    mask[4:12, 4:12] = 1
    large = np.repeat(np.repeat(PICTURES[0], 2, 0), 2, 1)
    options: dict[str, Any] = {"image": large, "mask": mask, "padding": 4, "output_type": "np"}
    other = large.copy()
    other[20:] = 0  # far from the part
    same = [drawn(pipe, Control("full", picture), **options) for picture in (large, other)]
    np.testing.assert_array_equal(same[0], same[1])
    assert difference(drawn(pipe, Control("full", 1 - large), **options), same[0]) > 0.001


def test_loras_change_what_follows(pipe: SDXLPipeline, tmp_path: Path):
    inventory = pipe._adapters.inventory
    write_adapter(
        tmp_path / "one.safetensors",
        draw_adapter(inventory, "lora", 0),
        "kohya sdxl",
        inventory,
    )
    before = drawn(pipe, control())
    pipe.load_lora(tmp_path / "one.safetensors")
    assert difference(drawn(pipe, control(), loras={"one": 1.0}), before) > 0.01
    pipe.unload_lora("one")
    np.testing.assert_array_equal(drawn(pipe, control()), before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (8, {}),  # two for each picture, which have a half of guidance each
        (4, {"images_per_request": 1, "devices_per_picture": 4}),
    ],
)
def test_devices_that_share_a_picture(
    pipe: SDXLPipeline, nets: Mapping[str, Path], devices: int, options: dict[str, int]
):
    shared = start({"full": nets["full"], "union": nets["union"]}, devices, **options)
    for controls in ([], [control()], [control("union"), control(control_mode="guess")]):
        assert difference(drawn(shared, *controls), drawn(pipe, *controls)) < 10 * CLOSE


def test_a_network_of_a_known_kind_is_added_without_compiling(
    pipe: SDXLPipeline, nets: Mapping[str, Path], tmp_path: Path
):
    folder = save_controlnet(tmp_path / "other", SMALLEST, "full", 9)
    with nothing_compiles():
        assert pipe.add_control(folder) == "other"
        first = drawn(pipe, control("other"))
    assert {each.name for each in pipe.facts.controls} == {*KINDS, "other"}
    with pytest.raises(InputError, match="'other' is loaded"):
        pipe.add_control(nets["full"], "other")
    pipe.remove_control("other")
    assert difference(first, drawn(pipe, control("full"))) > 0.01


def leave_devices(pipe: SDXLPipeline) -> None:
    assert pipe._controls is not None
    pipe._controls._resident.clear()
    for network in pipe.controls.values():
        network.leaves = None


def leave_room_for_one(pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    room, size = pipe._compiled.room, max(network.bytes for network in pipe.controls.values())
    monkeypatch.setattr(room, "memory", room.needs().total + size)
    leave_devices(pipe)


def test_networks_are_read_for_pictures_that_enter_together(pipe: SDXLPipeline):
    requests = [[], [control("bgr")], [control("full"), control("union")]]
    alone = [drawn(pipe, *controls) for controls in requests]
    leave_devices(pipe)
    for one, beside in zip(alone, together(pipe, requests), strict=True):
        np.testing.assert_array_equal(one, beside)


def test_a_network_that_is_read_for_a_cancelled_picture_makes_room(
    pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch
):
    full, bgr = pipe.controls["full"], pipe.controls["bgr"]
    leave_room_for_one(pipe, monkeypatch)
    controls = pipe._controls
    assert controls is not None
    controls.acquire([full], (), wait=False)
    assert controls.acquire([bgr], (), wait=True)
    assert full.leaves is None


def test_networks_make_room_for_each_other(pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch):
    before = [drawn(pipe, control(name)) for name in KINDS]
    leave_room_for_one(pipe, monkeypatch)
    for name, picture in zip(KINDS, before, strict=True):
        np.testing.assert_array_equal(drawn(pipe, control(name)), picture)
        assert [x.name for x in pipe.controls.values() if x.leaves is not None] == [name]
    with pytest.raises(Exception, match="too little memory for 'full', 'bgr'"):
        drawn(pipe, control("full"), control("bgr"))
    np.testing.assert_array_equal(drawn(pipe, control("bgr")), before[1])


@pytest.mark.parametrize("value", [-0.0, 0.0, 1e-300, 1 / 30, 1.2345678901234567e-05, 1.0])
def test_numbers_keep_their_values_as_text(value: float):
    [control] = parse_controls(format_controls([Control("full", scale=value)]))
    assert control.scale == pytest.approx(value, abs=1e-20)


@pytest.mark.parametrize("value", ["inf", "1e999", "nan", "1e300"])
def test_a_unit_of_a_file_has_usable_numbers(value: str):
    with pytest.raises(ValueError, match=r"resolution of 'full' is .*; expected a number"):
        from_unit(f"Model: full, Processor Res: {value}")


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ([Control("gone", PICTURES[0])], "no control named 'gone' is loaded; loaded are: 'bgr'"),
        ([Control("full")], "the control 'full' has no picture"),
        ([Control("union", PICTURES[0])], "the type of the control 'union' is missing; expected"),
        ([Control("union", PICTURES[0], type="tile")], "is 'tile'; expected one of 'openpose'"),
        ([Control("full", PICTURES[0], scale=3)], "scale of 'full' is 3; expected a number from"),
        ([Control("full", PICTURES[0], resolution=10**400)], "expected a number from 0 to 2048"),
        ([Control("full", PICTURES[0])] * 4, "4 controls are too many; expected up to 3"),
        ([Control("full", [*PICTURES])], "has 3 pictures; expected one, or 1"),
        ([Control("full", PICTURES[0], preprocessor="magic")], "magic"),
    ],
)
def test_what_cannot_be_followed(pipe: SDXLPipeline, controls: list[Control], message: str):
    with pytest.raises(InputError, match=message):
        drawn(pipe, *controls)


def test_a_pipeline_without_controls_says_how_to_have_them():
    with pytest.raises(InputError, match="no control named 'full' is loaded; loaded are: none"):
        drawn(shared_pipeline(1), control())
    with pytest.raises(InputError, match="pass controlnets to from_pretrained"):
        shared_pipeline(1).add_control("any")


@pytest.mark.parametrize(
    ("options", "halves", "weights"),
    [
        ({}, [1, 1], [1.0, 1.0, 1.0]),
        ({"scale": 0.5}, [1, 1], [0.5, 0.5, 0.5]),
        ({"control_mode": "guess"}, [0, 1], [0.1, 10**-0.5, 1.0]),
        ({"control_mode": "prompt"}, [1, 1], [0.825**12, 0.825**11, 0.825**10]),
        ({"control_mode": "control"}, [0, 1], [0.825**12, 0.825**11, 0.825**10]),
    ],
)
def test_modes_are_weights_of_residuals(
    options: dict[str, Any], halves: list[int], weights: list[float]
):
    expected = np.multiply.outer(halves, weights)
    np.testing.assert_allclose(scales_of(Control("x", **options), 1, 3)[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("start_at", "end", "on"),
    [(0, 1, [1, 1, 1, 1]), (0.25, 1, [0, 1, 1, 1]), (0, 0.5, [1, 1, 0, 0]), (0.3, 0.4, [0] * 4)],
)
def test_a_control_is_on_from_its_start_to_its_end(start_at: float, end: float, on: list[int]):
    scales = scales_of(Control("x", start=start_at, end=end), 4, 1)
    assert scales[:, 1, 0].tolist() == on
