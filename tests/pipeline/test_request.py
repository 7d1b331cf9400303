"""The declarations of settings, and everything that is made from them."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.__main__ import _parser
from pipeline.images.metadata import Settings
from pipeline.request import (
    SETTINGS,
    VALUES,
    GenerateRequest,
    check_request,
    effective,
    misfits,
)
from pipeline.resolve import resolve
from pipeline.setting_kinds import (
    Choice,
    Fault,
    Number,
    Seed,
    Timesteps,
    Whole,
    add_variation,
    parse_variations,
)
from tests.models import MODEL

LIMITED = replace(
    MODEL,
    num_inference_steps=4,
    max_inference_steps=8,
    schedulers=("euler", "heun"),
    num_train_timesteps=100,
    guidance_scale=2.0,
)


def test_the_command_line_has_every_setting_with_its_default():
    options = vars(_parser().parse_args(["a star"]))
    assert options.pop("prompt") == ["a star"]
    for name, setting in SETTINGS.items():
        assert name == "prompt" or options[name] == setting.default


def test_a_pictures_settings_have_a_field_for_every_number():
    values: dict[str, Any] = {setting.name: setting.default for setting in VALUES}
    settings = Settings("a star", **values)
    assert [getattr(settings, name) for name in values] == list(values.values())


@pytest.mark.parametrize("names", ["flag", "link", "key"])
def test_no_two_settings_have_the_same_name(names: str):
    found = [getattr(setting, names) for setting in SETTINGS.values()]
    assert len({*found}) == len(found)


def test_generate_documents_every_setting():
    documented = re.findall(r"^ {12}(\w+):", SDXLPipeline.generate.__doc__ or "", re.MULTILINE)
    assert SETTINGS.keys() <= {*documented}


def test_settings_refer_to_settings():
    referred = {each.part_of for each in SETTINGS.values()}
    assert referred - {""} <= SETTINGS.keys()


def test_limits_of_a_model():
    steps = SETTINGS["num_inference_steps"].for_model(LIMITED)
    assert isinstance(steps, Whole)
    assert (steps.high, steps.default) == (8, 4)
    assert SETTINGS["guidance_scale"].for_model(LIMITED).default == 2.0
    assert SETTINGS["guidance_until"].for_model(LIMITED) == SETTINGS["guidance_until"]


NUMBER = Number(name="eta", default=0.5, high=1, description="")
WHOLE = Whole(name="count", default=1, low=1, high=9, description="")


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        *((NUMBER, value, None) for value in (0, 1, 0.25, np.float32(1), np.int64(0))),
        *((NUMBER, value, "out_of_range") for value in (-0.1, 2, 10**400)),
        *((NUMBER, value, "not_a_number") for value in (float("nan"), float("inf"), "1", None)),
        *((NUMBER, value, "not_a_number") for value in (True, [1.0], 5j, np.float32("nan"))),
        *((WHOLE, value, None) for value in (1, 9, np.int32(5))),
        *((WHOLE, value, "out_of_range") for value in (0, 10, 10**400, 1e22, -1.0)),
        *((WHOLE, value, "not_whole") for value in (2.5, 2.0, 99.5, "2", None, True, float("inf"))),
    ],
)
def test_what_can_be_used(setting: Number, value: Any, code: str | None):
    fault = setting.fault(value)
    assert (fault and fault.code) == code


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("4294967295:1", [(2**32 - 1, 1.0)]),
        ("12:0.25,34:0.5", [(12, 0.25), (34, 0.5)]),
        *((wrong, None) for wrong in (None, 3, "12", "12:", ":0.5", "12:0.5,", "a:0.5", "-1:0.5")),
        *(
            (wrong, None)
            for wrong in ("4294967296:1", "١:٠", "1:1.01", "1:nan", ",".join(["1:0.1"] * 9))
        ),
    ],
)
def test_lists_of_variations(text: Any, found: list[tuple[int, float]] | None):
    fault = SETTINGS["variation_of"].fault(text)
    if found is None:
        assert fault is not None
        assert str(fault) == (
            f"variation_of is {text!r}; expected a list, such as '12:0.25,34:0.5'"
        )
    else:
        assert fault is None
        assert parse_variations(text) == found


@pytest.mark.parametrize(
    ("loras", "text"),
    [
        (None, ""),
        ("", ""),
        ({}, ""),
        ({"pixel": 0}, ""),
        ({"pixel": 0.80}, "pixel:0.8"),
        ({"b": (0.5, -4), "a": 1}, "a:1,b:0.5:-4"),
        ("b:0.5:-4.0,a:1:1,c:0", "a:1,b:0.5:-4"),
        (
            {"pixel": np.float32(0.5), "with space": [0, 1 / 3]},
            "pixel:0.5,with space:0:0.3333333333333333",
        ),
        *((wrong, None) for wrong in (3, [], "pixel", "pixel:", ":1", "a:1,", "a:1,a:2", "a:nan")),
        *((wrong, None) for wrong in ("a:4.1", "a:1:2:3", "a:-5", {"a": "1"}, {"a": None}, {1: 1})),
        *((wrong, None) for wrong in ({"a": True}, {"a": (1, 2, 3)}, {"a": float("nan")})),
        *(({name: 1}, None) for name in ("", " a", "a:b", "a,b", "a>b", "a\nb", "x" * 101)),
        ({f"{i}": 1 for i in range(9)}, None),
        (",".join(f"{i}:1" for i in range(9)), None),
    ],
)
def test_loras(loras: Any, text: str | None):
    setting = SETTINGS["loras"]
    fault = setting.fault(loras)
    assert (fault is None) == (text is not None)
    if fault:
        assert str(fault) == (
            f"loras is {loras!r}; expected up to 8 LoRAs with weights from -4 to 4, such as"
            " 'pixel:0.8,other:0.5:0.3'"
        )
    else:
        request = check_request(GenerateRequest("a star", loras=loras), 1)
        assert request.loras == text == setting.checked(text)
        hash(request.loras)
        assert ("loras" in effective(request.of_picture(0))) == bool(text)


SPACED = Choice(name="spacing", choices=("leading", "trailing"), description="")
TIMES = Timesteps(name="timesteps", description="")


@pytest.mark.parametrize("value", [None, "", "leading"])
def test_choices(value: Any):
    assert SPACED.fault(value) is None
    assert SPACED.checked(value) == (value or "")


@pytest.mark.parametrize("value", ["Leading", "x", 3, ["leading"], True])
def test_unknown_choices(value: Any):
    fault = SPACED.fault(value)
    assert str(fault) == f"spacing is {value!r}; expected one of 'leading', 'trailing'"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(((), ""), (None, ""), ("", ""), ([999], "999"), ("999, 749,5", "999,749,5")),
        (np.array([999, 0]), "999,0"),
        (range(50, 0, -1), ",".join(map(str, range(50, 0, -1)))),
        *((wrong, None) for wrong in ([1000], [5, 5], [5, 9], [-1], [1.5], ["x"], "5,", "a", 7)),
        *((wrong, None) for wrong in (range(51, 0, -1), [True], [999, None])),
    ],
    ids=str,
)
def test_timesteps(value: Any, text: str | None):
    fault = TIMES.fault(value)
    if text is None:
        right = "up to 50 falling whole numbers from 0 to 999, such as '999,749,499,249'"
        assert str(fault) == f"timesteps is {value!r}; expected {right}"
    else:
        assert fault is None
        assert TIMES.checked(value) == text


def test_choices_of_a_model():
    scheduler, timesteps = (
        SETTINGS[name].for_model(LIMITED) for name in ("scheduler", "timesteps")
    )
    assert scheduler.fault("heun") is None
    assert scheduler.fault("ddim") is not None
    assert timesteps.fault("99,5") is None
    assert timesteps.fault("100,5") is not None


def test_a_request_without_a_picture_has_no_strength():
    padding = SETTINGS["padding"]
    assert SETTINGS["strength"].fault(None) is None
    assert SETTINGS["strength"].fault(0) is not None
    assert (padding.checked(None), padding.checked(32)) == (None, 32)
    assert isinstance(padding.fault(2.5), Fault)


def test_the_work_of_a_request_counts_its_strength():
    whole = GenerateRequest("a star", num_inference_steps=20)
    half = GenerateRequest("a star", num_inference_steps=20, strength=0.5)
    assert [each.evaluations("euler") for each in (whole, half)] == [20, 10]
    assert [each.evaluations("heun") for each in (whole, half)] == [39, 19]
    assert [each.drawn_steps for each in (whole, half)] == [20, 10]


def test_the_scheduler_decides_eta():
    eta = SETTINGS["eta"]
    assert eta.fault(None) is None
    assert (eta.checked(None), eta.checked(1)) == (None, 1.0)
    assert eta.fault(1.5) is not None


def test_names_of_other_programs_become_this_programs():
    def named(**values: Any) -> tuple[str, str]:
        request = check_request(GenerateRequest("a star", **values), 1)
        return request.scheduler, request.sigma_schedule

    assert named(scheduler="DPM++ 2M Karras") == ("dpmsolver++", "karras")
    assert named(scheduler="Euler Karras", sigma_schedule="Beta") == ("euler", "beta")
    assert named(sigma_schedule="Automatic") == ("", "default")
    assert named() == ("", "")


def test_settings_that_do_not_fit_together():
    def found(own: str = "euler", **values: Any) -> list[tuple[str, str]]:
        request = GenerateRequest("a star", **values)
        return [(each.setting.name, each.other.name) for each in misfits(request, own)]

    assert found() == found("a newer one", eta=0.5) == found(sigma_schedule="karras") == []
    assert found("ddim", sigma_schedule="default") == found(eta=0.0, scheduler="tcd") == []
    assert found("ddim", sigma_schedule="karras") == [("sigma_schedule", "scheduler")]
    assert found(timesteps="9", sigma_schedule="beta") == [("timesteps", "sigma_schedule")]
    assert found(scheduler="lcm", timestep_spacing="trailing", eta=0.0) == [
        ("timestep_spacing", "scheduler"),
        ("eta", "scheduler"),
    ]


def test_the_work_of_a_request_is_counted_in_evaluations():
    def work(**values: Any) -> tuple[int, int]:
        request = GenerateRequest("a star", num_inference_steps=10, **values)
        return request.steps, request.evaluations("heun")

    assert work() == (10, 19)
    assert work(scheduler="euler") == (10, 10)
    assert work(scheduler="lcm", timesteps="999,749,499") == (3, 3)
    assert work(enlarge="8x8", enlarge_strength=0.5, enlarge_steps=4) == (10, 19 + 3)
    ask = GenerateRequest("a star", scheduler="lcm", timesteps="999,5")
    resolved = resolve(ask, MODEL, has_image=False)
    assert (resolved.num_inference_steps, resolved.guided_steps(2)) == (2, 2)


def test_weights_of_loras():
    request = GenerateRequest("a star", loras="b:0.5:-4,a:1")
    assert [*request.lora_weights.items()] == [("a", (1.0, 1.0)), ("b", (0.5, -4.0))]


def test_a_variation_is_added_to_those_before():
    assert add_variation("", 2**32 - 1, 1e-7) == "4294967295:0.0000001"
    assert add_variation("1:0.5", 2, 1 / 3) == "1:0.5,2:0.3333333333333333"


def test_a_fault_says_what_would_be_right():
    assert str(Fault("out_of_range", NUMBER, 2)) == "eta is 2; expected a number from 0 to 1"
    assert str(Fault("out_of_range", WHOLE, 0)) == "count is 0; expected 1 to 9"
    assert (
        str(Fault("not_whole", WHOLE, "2")) == "count is '2'; expected a whole number from 1 to 9"
    )


def test_what_changes_nothing_is_left_out():
    plain = GenerateRequest("a star", seed=7, variation_seed=9)
    found = effective(plain.of_picture(1))
    assert not found.keys() & {"guidance_until", "variation_strength", "variation_seed"}
    assert (
        found.items()
        >= {
            "prompt": "a star",
            "negative_prompt": "",
            "guidance_scale": None,
            "num_inference_steps": None,
            "seed": 8,
        }.items()
    )
    varied = GenerateRequest(
        ["a", "b"], seed=7, guidance_until=0.5, variation_strength=0.25, variation_seed=2**32 - 1
    )
    assert (
        effective(varied.of_picture(1)).items()
        >= {
            "prompt": "b",
            "seed": 7,  # that of all variations
            "guidance_until": 0.5,
            "variation_strength": 0.25,
            "variation_seed": 0,  # after the last one
        }.items()
    )


def test_a_seed_that_is_absent_is_random():
    seed = SETTINGS["seed"]
    assert isinstance(seed, Seed)
    seeds = {seed.absent_value() for _ in range(20)}
    assert len(seeds) > 15
    assert not any(map(seed.fault, seeds))


def test_the_syntax_of_prompts():
    syntax = SETTINGS["prompt_syntax"]
    assert syntax.checked(None) == "plain"
    assert str(syntax.fault("compel")) == (
        "prompt_syntax is 'compel'; expected one of 'plain', 'a1111'"
    )
