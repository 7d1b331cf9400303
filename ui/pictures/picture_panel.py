"""The panel of an opened picture: the bar of its actions, and its settings.

The browser gets the texts of all pictures in the gallery at once. `pictures.js` shows those of the
picture that is open, found by its file, and actions name that file: whatever order answers arrive
in, the panel belongs to the open picture.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from serving.generator import Generator, RequestError
from ui import i18n, scripts, status
from ui.form import link, settings
from ui.form.fields import Fields
from ui.pictures import saved
from ui.pictures.saved import Picture
from ui.samples.styles import Style, typed
from ui.wiring import Call, Updates, Wiring

_PLACE = '<div data-place role="group"></div>'
# Events of a picture's bar (`static/bar.js`).
_EVENTS = "use", "exchange", "new_seed", "vary", "larger", "finish"


def layout(wiring: Wiring) -> None:
    """Lay out the panel, which is mounted with the first pictures and seen while one is open."""
    texts = gr.HTML(status.EMPTY, elem_id="picture-texts", padding=False)
    wiring.add("texts", texts)  # of all pictures in the gallery, never in view
    with wiring.add("panel", gr.Column(elem_id="picked", visible=False)):
        bar = gr.HTML(
            html_template='<div data-bar class="bar"></div>',
            js_on_load=scripts.part("bar", *_EVENTS),
            apply_default_css=False,
            padding=False,
            elem_id="bar",
        )
        wiring.add("bar", bar)
        gr.HTML(_PLACE, elem_id="picked-settings", padding=False)


def arrows() -> str:
    """Return HTML with buttons over the open picture: the one before, the next, the full screen."""
    buttons = {
        'data-walk="-1"': i18n.PREVIOUS,
        'data-walk="1"': i18n.NEXT,
        'data-full aria-pressed="false"': i18n.FULL_SCREEN,
    }
    return "".join(
        f'<button type="button" {kind} aria-label="{escape(name)}"></button>'
        for kind, name in buttons.items()
    )


def connect(wiring: Wiring, generator: Generator) -> None:
    """Connect what the bar does to a picture without drawing."""

    def exchange(call: Call) -> Updates:
        return exchanged(call, generator.facts)

    def use(call: Call) -> Updates:
        return used(call, generator.facts)

    updates = ["status", "gallery", "pictures", "texts"]
    asked: dict[str, Any] = {"reads": ["pictures"], "tells": []}
    wiring.on("bar.exchange", exchange, updates=updates, **asked)
    wiring.on("bar.use", use, updates=[*Fields._fields, "status"], **asked)


def in_gallery(pictures: Sequence[Picture], facts: Facts) -> dict[str, Any]:
    """Return the updates that show pictures in the gallery."""
    return {
        "gallery": saved.for_gallery(pictures),
        "pictures": [*pictures],
        "texts": texts(pictures, facts),
    }


def texts(pictures: Sequence[Picture], facts: Facts) -> str:
    """Return HTML with the kind, the link and the settings of each picture, by its key."""
    return "".join(_text(picture, facts) for picture in pictures)


def _text(picture: Picture, facts: Facts) -> str:
    fields, _ = picture.fields(facts)
    note = status.as_note(i18n.FINISH_INFO) if picture.unfinished else status.EMPTY
    width, height = picture.drawn_size
    began = "" if fields.strength is None else "1"
    return (
        f'<article data-key="{escape(picture.key)}" data-index="{picture.index}"'
        f' data-kind="{_kind(picture, facts)}"'
        f' data-began="{began}" data-start="{escape(picture.start)}"'
        f' data-link="{escape(link.to_query(fields._replace(images=1)))}"'
        f' data-ratio="{(width or 1) / (height or 1):.3f}">{note}'
        f"<details><summary>{escape(i18n.DETAILS)}</summary>"
        f"{settings.as_html(picture.settings, picture.typed, picture.size)}</details></article>"
    )


def _kind(picture: Picture, facts: Facts) -> str:
    """Return words that tell the page's style sheet which actions to offer."""
    kinds = {
        "unfinished": picture.unfinished is not None,
        "blurred": picture.other is not None and picture.blurred,
        "original": picture.other is not None and not picture.blurred,
        "enlargeable": picture.larger_size(facts) is not None,
    }
    return " ".join(kind for kind, applies in kinds.items() if applies)


def apply(new_settings: Settings | None, facts: Facts, styles: Mapping[str, Style]) -> Updates:
    """Return new values for the page's fields and its status line, of settings from elsewhere."""
    if new_settings is None:
        return {}
    words = typed(styles.values(), new_settings.prompt, new_settings.negative_prompt)
    values, notes = settings.as_fields(new_settings, facts, words)
    return values.shown() | {"status": status.taken_over(notes)}


def chosen(call: Call) -> Picture:
    """Return the picture that an event names by its key.

    Raises:
        RequestError: if it is gone.
    """
    pictures = call.values["pictures"]
    return pictures[saved.find(pictures, call.details.get("key"))]


def used(call: Call, facts: Facts) -> Updates:
    """Return the updates that put a picture's settings into the fields."""
    try:
        values, notes = chosen(call).fields(facts)
    except RequestError as error:
        return {"status": status.error(i18n.translate(error.message))}
    return values.shown() | {"status": status.taken_over(notes)}


def exchanged(call: Call, facts: Facts) -> Updates:
    """Return the updates that show a picture's original, or blur it again."""
    pictures, embed = call.values["pictures"], not call.told.get("bare")
    try:
        index = saved.find(pictures, call.details.get("key"))
        changed_picture = saved.exchanged(pictures[index], embed)
    except RequestError as error:
        return {"status": status.error(i18n.translate(error.message))}
    shown = in_gallery([*pictures[:index], changed_picture, *pictures[index + 1 :]], facts)
    return shown | {"gallery": gr.Gallery(shown["gallery"], selected_index=index)}
