"""The choice of a model, which there is where the server has several."""

import asyncio
from dataclasses import replace
from typing import Any

import gradio as gr
import pytest

from pipeline.facts import Facts, ModelFacts
from pipeline.images.metadata import Settings
from pipeline.request import SETTINGS
from serving.generator import RequestError
from tests.models import MODEL
from tests.pages import StandIn, field_of
from ui import i18n, looks
from ui.form import components, requests, settings
from ui.form.fields import USUAL, Visitor
from ui.samples.model_kind import kind_of
from ui.samples.styles import styles_for
from ui.wiring import Wiring

PONY = ModelFacts(name="pony", title="Pony", scheduler="heun", schedulers=("heun",))
ODD = ModelFacts(name="odd", fault="another family")
SEVERAL = replace(MODEL, models=(ODD, PONY))


def choice_of(facts: Facts) -> gr.Dropdown:
    return field_of(facts, "model")


def test_a_single_model_is_no_choice() -> None:
    assert not choice_of(MODEL).visible
    assert not choice_of(replace(MODEL, models=(ODD,))).visible


def test_the_choice_has_titles() -> None:
    choice = choice_of(SEVERAL)
    assert choice.visible
    assert choice.choices == [(MODEL.name, ""), ("Pony", "pony")]
    assert choice.value == ""


def test_models_have_pictures_in_the_choice() -> None:
    pictured = replace(PONY, pictured=True)
    field = looks.field(replace(MODEL, models=(pictured, replace(ODD, pictured=True))))
    assert field.props["models"] == {"Pony": "look-pictures/models/pony"}


@pytest.mark.parametrize("language", ["en", "de", "fr", "es"])
def test_it_is_named_in_every_language(language: str) -> None:
    with i18n.speaking(language):
        assert str(choice_of(SEVERAL).label).startswith("Mod")


@pytest.mark.parametrize(
    ("model", "chosen", "noted"),
    [("pony", "pony", False), (MODEL.name, "", False), (None, "", False), ("odd", "", True)],
)
def test_a_picture_restores_its_model(model: str | None, chosen: str, noted: bool) -> None:
    found = Settings("a star", model=model)
    fields, notes = settings.as_fields(found, SEVERAL)
    assert fields.model == chosen
    assert any("odd" in note for note in notes) == noted


def test_a_models_own_scheduler_is_left_to_it() -> None:
    found = Settings("a star", model="pony", scheduler="heun")
    fields, notes = settings.as_fields(found, SEVERAL)
    assert (fields.scheduler, notes) == ("", [])


def test_the_setting_is_named_checkpoint_on_the_page() -> None:
    assert choice_of(SEVERAL).elem_id == SETTINGS["model"].flag == "checkpoint"


SMALL = replace(MODEL, name="small", width=64, height=48, more_sizes=())
BOTH = replace(MODEL, more_sizes=(), others=(SMALL,))


def test_a_model_with_programs_of_its_own_has_its_sizes() -> None:
    assert choice_of(BOTH).choices == [(MODEL.name, ""), ("small", "small")]
    fields, notes = settings.as_fields(Settings("a star", model="small", width=64, height=48), BOTH)
    assert (fields.model, fields.size, notes) == ("small", USUAL, [])
    request = requests.to_request(BOTH, styles_for(kind_of(BOTH)), fields, Visitor("", ""))
    assert (request.model, request.size) == ("small", None)
    other = fields._replace(size=BOTH.size_names[0])
    with pytest.raises(RequestError) as refused:
        requests.to_request(BOTH, styles_for(kind_of(BOTH)), other, Visitor("", ""))
    assert refused.value.message.params["choices"] == ["64x48"]


def opened(facts: Facts, **values: str) -> dict[str, Any]:
    """Return what a page gets that is opened with kept values, by the names of its components."""

    class Server(StandIn):
        facts = MODEL  # when the page was laid out

    server = Server()
    with gr.Blocks() as blocks:
        wiring = Wiring(blocks)
        components.create(wiring, server.facts, styles_for(kind_of(server.facts)))
        for name in ("chip-size", "status"):
            wiring.add(name, gr.HTML())
        components.connect(wiring, server)
    [event] = [each for each in blocks.fns.values() if each.name == "opened"]
    server.facts = facts  # type: ignore[misc]
    sent_values = [values.get(name, "") for name in ("model", "size")]
    call: Any = event.fn
    answer = asyncio.run(call(gr.Request(), gr.EventData(None, None), *sent_values))
    names = {component: name for name, component in wiring.components.items()}
    return {names[component]: value for component, value in answer.items()}


def test_a_model_that_came_later_is_kept_with_its_sizes() -> None:
    updates = opened(replace(MODEL, others=(SMALL,)), model="small")
    assert updates["model"].value == "small"
    assert updates["size"].choices == [(i18n.size((64, 48)), USUAL)]
    assert "status" not in updates


def test_a_model_that_is_gone_is_named() -> None:
    updates = opened(MODEL, model="pony")
    assert updates["model"].value == ""
    assert updates["status"]["kind"] == "warning"
    assert "pony" in updates["status"]["text"]
