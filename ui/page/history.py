"""The history: this browser's own requests, which are kept in the browser.

A filmstrip shows this visit's requests, and a grid shows all. Choosing one shows its pictures and
changes no field; its settings are taken by an event of their own. An entry holds them as the query
of a link, which is read like any other link.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from serving.generator import Generator
from serving.messages import Code, Message
from ui import i18n, scripts, status
from ui.form import link
from ui.form.fields import Fields
from ui.pictures import picture_panel
from ui.samples.styles import NONE, Style
from ui.wiring import Call, Updates, Wiring, text_of

_MARKUP = """
<div data-strip hidden>
  <div role="toolbar" aria-labelledby="history-open"></div>
  <button type="button" id="history-open" aria-expanded="false" aria-controls="history-list"
    >{HISTORY}</button>
</div>
<div id="history-list" data-list hidden><ol></ol></div>
<div data-detail hidden>
  <img alt="" hidden>
  <p data-prompt dir="auto"></p>
  <small></small>
  <p role="status"><span data-forgotten hidden>{NOT_KEPT}</span></p>
  <div>
    <button type="button" data-use>{USE_SETTINGS}</button>
    <button type="button" data-keep aria-pressed="false">{FAVOURITE}</button>
    <button type="button" data-delete>{DELETE}</button>
  </div>
</div>
<p data-foot hidden>
  <span>{HISTORY_INFO}</span>
  <button type="button" data-clear><span>{CLEAR_HISTORY}</span>
    <span data-stay hidden>{FAVOURITES_STAY}</span></button>
</p>
<p data-empty hidden>{HISTORY_EMPTY}</p>
<div data-note popover="manual"><p role="status">
    <span data-said="cleared" hidden>{HISTORY_CLEARED}</span>
    <span data-said="entry" hidden>{ENTRY_DELETED}</span>
    <span data-said="picture" hidden>{PICTURE_DELETED}</span>
    <span data-said="full" hidden>{FAVOURITES_FULL}</span>
  </p>
  <button type="button" data-undo>{UNDO}</button>
  <button type="button" data-close>{CLOSE}</button>
</div>
"""
_OF_GALLERY = ("gallery", "pictures", "texts")


def layout(wiring: Wiring) -> None:
    """Lay out the history, which is hidden until something was asked for."""
    wiring.add(
        "history",
        gr.HTML(
            _MARKUP.format_map(i18n.LANGUAGES[i18n.language()]),
            js_on_load=scripts.part("history", "use", "drop", "undrop"),
            apply_default_css=False,
            elem_id="history",
        ),
    )
    wiring.add("dropped", gr.State([]))  # the pictures before one was deleted, for Undo


def connect(wiring: Wiring, generator: Generator, styles: Mapping[str, Style]) -> None:
    """Take the settings of an entry, and delete single pictures, at the visitor's wish."""
    use = partial(used, generator=generator, styles=styles)
    wiring.on("history.use", use, updates=[*Fields._fields, "status"])
    drop, undrop = partial(without, generator=generator), partial(restored, generator=generator)
    # Another may follow before the last has ended.
    several: dict[str, Any] = {"trigger_mode": "multiple"}
    changed = [*_OF_GALLERY, "dropped", "status"]
    wiring.on("history.drop", drop, reads=["pictures"], updates=changed, **several)
    wiring.on("history.undrop", undrop, reads=["dropped"], updates=_OF_GALLERY, **several)


def asked(request_id: str, fields: Fields) -> dict[str, Any]:
    """Return the new entry of the history for a request that was sent."""
    return {"id": request_id, "link": link.to_query(fields), "said": _summary(fields)}


def _summary(fields: Fields) -> str:
    """Return a request's settings in one line."""
    guidance = float(f"{fields.guidance_scale:g}")
    of_steps = {
        "num_inference_steps": fields.steps,
        "guidance_scale": int(guidance) if guidance.is_integer() else guidance,
    }
    # A recipe sets the others.
    values = {"seed": fields.seed, **({"recipe": fields.recipe} if fields.recipe else of_steps)}
    parts = [f"{i18n.SETTINGS[name].label} {i18n.written(value)}" for name, value in values.items()]
    style = [] if fields.style == NONE else [i18n.STYLES[fields.style]]
    return " · ".join([*style, *parts])


def used(call: Call, generator: Generator, styles: Mapping[str, Style]) -> Updates:
    """Return the updates that put the settings of an entry, told by its link, into the fields."""
    query = str(call.details.get("link")).removeprefix("?")
    result = link.from_query(dict(parse_qsl(query)), generator.facts, styles)
    if result is None:
        return {}
    fields, notes = result
    return fields.shown() | {"status": status.taken_over(notes)}


def without(call: Call, generator: Generator) -> Updates:
    """Return the updates that take a picture, told by its key, out of the gallery.

    The browser also tells the indices of all that were deleted of the request, and the place of the
    picture to open then, if any. A session that was forgotten has no pictures.
    """
    pictures, key = call.values["pictures"], call.details.get("key")
    gone, place = text_of(call.details.get("gone")).split(","), call.details.get("open")
    left = [x for x in pictures if x.key != key and str(x.index) not in gone]
    if len(left) == len(pictures):
        return {"status": status.error(i18n.translate(Message(Code.PICTURE_GONE)))}
    shown = picture_panel.in_gallery(left, generator.facts)
    is_left = type(place) is int and 0 <= place < len(left)
    gallery = gr.Gallery(shown["gallery"], selected_index=place if is_left else None)
    return shown | {"gallery": gallery, "dropped": pictures}


def restored(call: Call, generator: Generator) -> Updates:
    """Return the updates that bring the picture back that was deleted last."""
    dropped = call.values["dropped"]
    return picture_panel.in_gallery(dropped, generator.facts) if dropped else {}
