"""LoRAs in the page's fields: tags in prompts, links, and names that are not there."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.facts import LoraFacts
from pipeline.images.metadata import Settings
from serving.generator import Request, RequestError
from serving.messages import Code
from tests.fleets import MODEL
from ui import i18n, looks
from ui.form import link, requests, settings
from ui.form.fields import Fields, Visitor
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for

LORAS = (
    LoraFacts("pixel", "Pixel art", pictured=True),
    LoraFacts("x", "x", doubled=("a/x", "b/x")),
)
HERE = replace(MODEL, loras=LORAS)
STYLES = styles_for(Kind.SDXL)


def request(prompt: str, loras: str = "", *, tags: bool = True, **others: Any) -> Request:
    values = {"style": "Anime", "negative_prompt": "<lora:other:1>", **others}
    fields = Fields(prompt=prompt, loras=loras, **values)
    return requests.to_request(HERE, STYLES, fields, Visitor("", ""), tags=tags)


@pytest.mark.parametrize(
    ("prompt", "chosen", "expected"),
    [
        ("a cat", "pixel:1", "pixel:1"),
        ("a cat <lora:pixel:0.8>", "", "pixel:0.8"),
        ("a cat <lora:pixel:0.8>", "pixel:0.3,other:1", "other:1,pixel:0.8"),
        ("<lora:pixel:0.3:0.5> a cat", "", "pixel:0.5:0.3"),
    ],
)
def test_tags_in_a_prompt_mean_the_same_as_a_choice(prompt: str, chosen: str, expected: str):
    found = request(prompt, chosen)
    assert found.loras == expected
    assert found.prompt == request("a cat").prompt
    assert "<lora:other:1>" in str(found.negative_prompt)


def test_programs_send_tags_as_text():
    found = request("a cat <lora:pixel:1>", tags=False)
    assert "<lora:pixel:1>" in found.prompt
    assert found.loras == ""


def test_too_many_loras():
    tags = " ".join(f"<lora:{i}:1>" for i in range(5))
    with pytest.raises(RequestError) as refused:
        request(f"a cat {tags}", ",".join(f"more {i}:1" for i in range(5)))
    assert refused.value.message.code is Code.TOO_MANY_LORAS
    assert refused.value.field == "prompt"


def test_a_link_and_a_picture_choose_the_loras_that_are_there():
    query = link.to_query(Fields(prompt="a cat", loras="pixel:0.8,gone:1"))
    found = link.from_query({"prompt": "a cat", "loras": "gone:1,pixel:0.8"}, HERE, STYLES)
    assert "loras=pixel%3A0.8%2Cgone%3A1" in query
    assert found is not None
    assert found[0].loras == "pixel:0.8"
    assert found[1] == [i18n.text("missing_loras", names=["gone"])]
    fields, notes = settings.as_fields(Settings("a cat", loras="gone:1,pixel:0.8"), HERE)
    assert (fields.loras, notes) == ("pixel:0.8", [i18n.text("missing_loras", names=["gone"])])


def test_a_link_whose_loras_cannot_be_read():
    found = link.from_query({"loras": "pixel"}, HERE, STYLES)
    assert found is not None
    assert found[0].loras == ""
    assert len(found[1]) == 1


def test_titles_of_chosen_loras():
    assert looks.titles("gone:1,pixel:0.8", HERE) == ["gone", "Pixel art"]
    assert looks.titles("???", HERE) == []
