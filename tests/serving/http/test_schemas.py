"""Parsing of events received over HTTP."""

import base64
import dataclasses
import json
from dataclasses import asdict
from typing import Any

import pydantic
import pytest

from pipeline.images.metadata import Settings
from pipeline.request import SETTINGS
from pipeline.setting_kinds import Number
from serving.generator import Error, ErrorKind, Step
from serving.generators import client
from serving.http import schemas
from serving.messages import Code, Message, untranslated
from serving.requests.inputs import ControlFiles
from tests.fake_pipeline import FakePipeline

NOT_FINISHED = Error(ErrorKind.DEADLINE, Message(Code.NOT_FINISHED, {"seconds": 4.5}))

MODEL = FakePipeline.facts


def test_reading_an_event_builds_no_type_adapter(monkeypatch: pytest.MonkeyPatch):
    built: list[Any] = []

    class Counted(pydantic.TypeAdapter[Any]):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            built.append(args)
            super().__init__(*args, **options)

    for module in (schemas, client):
        monkeypatch.setattr(module, "TypeAdapter", Counted)
    for _ in range(3):
        assert schemas.to_event("step", '{"done": 1, "total": 4}') == Step(1, 4)
    assert client._are_settings(
        asdict(
            Settings(
                "a",
                "",
                seed=7,
                num_inference_steps=25,
                guidance_scale=5.0,
                width=8,
                height=8,
                model="model",
            )
        )
    )
    assert not built


def test_an_error_keeps_its_code_and_parameters():
    name, fields = schemas.from_event(NOT_FINISHED)
    assert fields == {
        "kind": "deadline",
        "message": "The pictures were not finished within 4.5 seconds. Try again later.",
        "code": "not_finished",
        "params": {"seconds": 4.5},
    }
    assert schemas.to_event(name, json.dumps(fields)) == NOT_FINISHED


@pytest.mark.parametrize(
    "changes",
    [
        {"code": "of_a_newer_version"},
        {"code": 7},
        {"params": {}},
        {"params": {"seconds": "four"}},
        {"params": [4.5]},
        {"params": None},
        {"code": "out_of_range", "params": {"field": "a", "value": 1, "low": 1e999, "high": 1}},
    ],
)
def test_an_error_that_this_version_cannot_render_keeps_its_english_text(changes: dict[str, Any]):
    _, fields = schemas.from_event(NOT_FINISHED)
    event = schemas.to_event("error", json.dumps(fields | changes))
    assert event == Error(ErrorKind.DEADLINE, untranslated(str(NOT_FINISHED.message)))


def test_an_error_of_an_older_version_has_only_its_english_text():
    event = schemas.to_event("error", '{"kind": "failed", "message": "It broke."}')
    assert event == Error(ErrorKind.FAILED, untranslated("It broke."))


def test_an_error_without_a_text_is_not_an_event():
    with pytest.raises(ValueError, match="message"):
        schemas.to_event("error", '{"kind": "failed"}')


@pytest.mark.parametrize("loras", [None, {}, {"pixel": 0.8}, {"b": [0.5, -4], "a": 1}])
def test_loras_are_an_object(loras: Any):
    body = schemas.GenerateBody.model_validate({"prompt": "a star", "loras": loras})
    request = schemas.to_request(body, MODEL, visitor="", address="")
    assert request.loras == SETTINGS["loras"].checked(loras)
    passed_on = json.loads(json.dumps(schemas.from_request(request)))
    again = schemas.GenerateBody.model_validate(passed_on)
    assert schemas.to_request(again, MODEL, visitor="", address="").loras == request.loras


def test_the_settings_of_a_scheduler_are_passed_on():
    sent = {"scheduler": "TCD", "timesteps": [999, 749], "eta": 0.25}
    body = schemas.GenerateBody.model_validate({"prompt": "a star", **sent})
    request = schemas.to_request(body, MODEL, visitor="", address="")
    assert (request.scheduler, request.timesteps, request.eta) == ("tcd", "999,749", 0.25)
    passed_on = json.loads(json.dumps(schemas.from_request(request)))
    again = schemas.GenerateBody.model_validate(passed_on)
    assert schemas.to_request(again, MODEL, visitor="", address="", id=request.id) == request
    plain = schemas.GenerateBody.model_validate({"prompt": "a star"})
    assert schemas.to_request(plain, MODEL, visitor="", address="").scheduler == ""


def test_settings_without_effect_are_not_passed_on():
    """Instances of an older version refuse a request with a field that they do not know."""
    body = schemas.GenerateBody.model_validate({"prompt": "a star"})
    request = schemas.to_request(body, MODEL, visitor="", address="")
    passed_on = json.loads(json.dumps(schemas.from_request(request)))
    left_out = {name for name, setting in SETTINGS.items() if setting.optional}
    assert {"scheduler", "decoder", "recipe"} <= left_out
    assert SETTINGS.keys() - passed_on.keys() == left_out
    again = schemas.GenerateBody.model_validate(passed_on)
    assert schemas.to_request(again, MODEL, visitor="", address="", id=request.id) == request


@pytest.mark.parametrize(
    "loras",
    [
        "pixel:0.8",
        {"a": 5},
        {"a": "1"},
        {"a": [1]},
        {"a:b": 1},
        {"a\u200b": 1},
        {f"{i}": 1 for i in range(9)},
    ],
)
def test_wrong_loras(loras: Any):
    with pytest.raises(pydantic.ValidationError) as raised:
        schemas.GenerateBody.model_validate({"prompt": "a star", "loras": loras})
    assert raised.value.errors()[0]["loc"][0] == "loras"


def test_a_body_has_every_setting_with_its_limits_and_default():
    schema = schemas.GenerateBody.model_json_schema()["properties"]
    assert [*schema][: len(SETTINGS)] == [*SETTINGS]
    for setting in SETTINGS.values():
        if not isinstance(setting, Number):
            continue
        field = schema[setting.name]
        number = field["anyOf"][0] if setting.absent_note else field
        assert number["type"] == {float: "number", int: "integer"}[setting.kind]
        assert (number["minimum"], number["maximum"]) == (
            setting.low,
            setting.any_high or setting.high,
        )
        assert field["default"] == (None if setting.absent_note else setting.default)
        assert field["description"].startswith(setting.description)


def test_controls_are_objects_with_their_pictures():
    controls = [
        {"name": "canny", "image": base64.b64encode(b"file").decode(), "scale": 0.5, "end": 1},
        {"name": "depth", "type": "depth", "control_mode": "prompt"},
    ]
    body = schemas.GenerateBody.model_validate({"prompt": "a star", "controls": controls})
    files = body.take_input()
    assert [file and file.image for file in files.followed] == [b"file", None]
    assert "file" not in repr(body)
    request = schemas.to_request(body, MODEL, visitor="", address="")
    assert request.controls == "canny:scale=0.5,depth:type=depth:control_mode=prompt"
    request = dataclasses.replace(request, followed=(b"png", None))
    passed_on = json.loads(json.dumps(schemas.from_request(request)))
    again = schemas.GenerateBody.model_validate(passed_on)
    assert [file and file.image for file in again.take_input().followed] == [b"png", None]
    assert schemas.to_request(again, MODEL, visitor="", address="").controls == request.controls


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ({"name": "canny", "scale": 3}, "scale of 'canny' is 3.0; expected a number from 0 to 2"),
        ({"name": "canny", "start": 0.5, "end": 0.1}, "starts at 0.5, after its end"),
        ({"name": "a:b"}, "pattern"),
        ({"name": "canny", "weight": 1}, "Extra inputs"),
        ({"name": "canny", "type": "edges"}, "type of 'canny' is 'edges'; expected ''"),
    ],
)
def test_controls_that_cannot_be_used(control: dict[str, Any], message: str):
    with pytest.raises(pydantic.ValidationError, match=message):
        schemas.GenerateBody.model_validate({"prompt": "a star", "controls": [control]})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"image": ""}, [ControlFiles(b"")]),
        ({"image": None}, [None]),
        ({"scale": -0.0, "image": "QQ=="}, [ControlFiles(b"A")]),
    ],
)
def test_a_control_keeps_its_file(values: dict[str, Any], expected: list[ControlFiles | None]):
    body = schemas.GenerateBody.model_validate(
        {"prompt": "a", "controls": [{"name": "canny", **values}]}
    )
    assert [*body.take_input().followed] == expected
    scale = "" if "scale" not in values else ":scale=0"
    wanted = schemas.to_request(body, MODEL, visitor="", address="")
    assert wanted.controls == f"canny{scale}"


def test_a_control_with_a_number_of_any_length_is_refused():
    values = {"name": "canny", "resolution": 10**400}
    with pytest.raises(pydantic.ValidationError, match="expected a number from 0 to 2048"):
        schemas.GenerateBody.model_validate({"prompt": "a", "controls": [values]})
