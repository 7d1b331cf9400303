"""Looks: the model's LoRAs, chosen beside the styles, and all of them in Advanced.

The browser's part of this is in `static/looks.js`. The field's value is the setting's text, such as
"pixel:0.8", so links, the history and the kept draft hold it like any other field's.
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import gradio as gr
from fastapi import FastAPI, HTTPException, Response

from pipeline.facts import Facts
from pipeline.text.loras import LORA_NAME, MAX_LORAS, MAX_WEIGHT, parse_loras
from serving.generator import Generator, Pictured
from ui import i18n, scripts

MOST = 3  # chosen beside the styles; Advanced offers as many as a request can have
FEW = 8  # with more there is a search
_PICTURES = "look-pictures"  # begins the pictures' addresses


def field(facts: Facts) -> gr.HTML:
    """Return the field whose value is the text of the chosen LoRAs; not laid out yet."""
    return gr.HTML(
        "",
        html_template="<div data-looks hidden></div>",
        js_on_load=scripts.part("looks"),
        apply_default_css=False,
        padding=False,
        elem_id="loras",
        render=False,
        loras=_catalogue(facts),
        models=_pictures_of_models(facts),
        limits={
            "most": MOST,
            "few": FEW,
            "all": MAX_LORAS,
            "weight": MAX_WEIGHT,
            "name": f"^{LORA_NAME}$",
        },
    )


def layout_all() -> gr.HTML:
    """Return the place of the list with all LoRAs."""
    return gr.HTML(
        "<div data-all-looks hidden></div>",
        js_on_load=None,
        apply_default_css=False,
        padding=False,
        elem_id="all-loras",
    )


def texts() -> dict[str, Any]:
    """Return the texts that the browser shows, in the language in use."""
    words = i18n.SETTINGS["loras"]
    return {
        "looks": i18n.LOOKS,
        "all": words.label,
        "info": words.info,
        "search": i18n.SEARCH,
        "none": i18n.NOT_FOUND,
        "full": i18n.text("looks_full", limit=MOST),
        "all_full": i18n.text("looks_full", limit=MAX_LORAS),
        "strength": i18n.STRENGTH,
        "strengths": i18n.STRENGTHS,
        "words": i18n.TRIGGER_WORDS,
    }


def offered(facts: Facts) -> gr.HTML:
    """Return an update of the field with the LoRAs and the models that there are."""
    return gr.HTML(loras=_catalogue(facts), models=_pictures_of_models(facts))


def connect_pictures(app: FastAPI, generator: Generator) -> None:
    """Add the route that serves small pictures of the LoRAs and the models."""

    @app.get(f"/{_PICTURES}/{{kind}}/{{name}}", include_in_schema=False)
    async def picture(kind: Pictured, name: str) -> Response:
        content = await generator.thumbnail(kind, name)
        if content is None:
            raise HTTPException(404)
        headers = {"Cache-Control": "max-age=3600"}
        return Response(content, media_type="image/webp", headers=headers)


def titles(loras: str, facts: Facts) -> list[str]:
    """Return the titles of the LoRAs in a text; a LoRA that is not there keeps its name."""
    usable_loras = facts.usable_loras
    try:
        names = parse_loras(loras)
    except ValueError:
        return []
    return [usable_loras[name].title if name in usable_loras else name for name in names]


def unknown(names: Iterable[str], facts: Facts) -> list[str]:
    """Return the names that no LoRA of the model has."""
    return [name for name in names if name not in facts.usable_loras]


def _catalogue(facts: Facts) -> list[dict[str, Any]]:
    """Return the LoRAs as the browser needs them; it shows every text as text.

    The LoRAs of recipes are no looks: "Quality" chooses them.
    """
    quick = {recipe.lora for recipe in facts.recipes}
    return [
        {
            "name": lora.name,
            "title": lora.title,
            "words": lora.words,
            "picture": _address("loras", lora.name) if lora.pictured else "",
            "quick": lora.name in quick,
        }
        for lora in facts.usable_loras.values()
    ]


def _pictures_of_models(facts: Facts) -> dict[str, str]:
    """Return the addresses of the models' pictures, by the models' titles in the choice."""
    return {
        model.title or model.name: _address("models", model.name)
        for model in facts.models
        if model.pictured and not model.fault
    }


def _address(kind: Pictured, name: str) -> str:
    return f"{_PICTURES}/{kind}/{quote(name, safe='')}"
