"""The panel under an opened picture: its actions, and its settings.

The browser gets the texts of all pictures in the gallery at once. `pictures.js` shows those of the
picture that is open, found by its file, and actions name that file: whatever order answers arrive
in, the panel belongs to the open picture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from serving.generator import Generator, RequestError
from ui import i18n, status
from ui.form import link, settings
from ui.form.fields import Fields
from ui.pictures import downloads, saved
from ui.pictures.saved import Picture
from ui.samples.styles import Style, typed
from ui.wiring import Call, Updates, Wiring

_PLACE = '<div data-place role="group"></div>'


def layout(wiring: Wiring, facts: Facts) -> None:
    """Lay out the panel, which is mounted with the first pictures and seen while one is open."""
    texts = gr.HTML(status.EMPTY, elem_id="picture-texts", padding=False)
    wiring.add("texts", texts)  # of all pictures in the gallery, never in view
    with wiring.add("panel", gr.Column(elem_id="picked", visible=False)):
        with gr.Row(elem_id="actions"):
            for name, label in (
                ("finish", i18n.FINISH),
                ("reveal", i18n.SHOW_ANYWAY),
                ("blur", i18n.HIDE_AGAIN),
                ("variations", i18n.VARIATIONS),
                ("larger", i18n.LARGER),
                ("new-seed", i18n.NEW_SEED),
                ("reuse", i18n.REUSE),
                ("use-picture", i18n.USE_PICTURE),  # `drop.js` gives it to the tools of `ui.start`
            ):
                variant = "primary" if name == "finish" else "secondary"
                wiring.add(name, gr.Button(label, variant=variant, size="md", elem_id=name))
        gr.HTML(_PLACE, elem_id="picked-settings", padding=False)
        label = i18n.SETTINGS["variation_strength"].label
        strength = gr.Slider(0.05, 1, 0.25, step=0.05, label=label, elem_id="strength")
        wiring.add("picked-strength", strength)


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


def connect(wiring: Wiring, generator: Generator) -> Any:
    """Connect the panel to the gallery; return the event after which to draw with a new seed."""

    def exchange(call: Call) -> Updates:
        return exchanged(call, generator.facts)

    def use(call: Call) -> Updates:
        return used(call, generator.facts)

    def use_anew(call: Call) -> Updates:
        return used(call, generator.facts, anew=True)

    updates = ["strip", "gallery", "pictures", "texts"]
    asked: dict[str, Any] = {"reads": ["pictures"], "tells": ["key"]}
    wiring.on("reveal.click blur.click", exchange, updates=updates, **asked)
    fields = [*Fields._fields, "strip"]
    wiring.on("reuse.click", use, updates=fields, **asked)
    return wiring.on("new-seed.click", use_anew, updates=fields, **asked)


def in_gallery(pictures: Sequence[Picture], facts: Facts) -> dict[str, Any]:
    """Return the updates that show pictures in the gallery."""
    return {
        "gallery": saved.for_gallery(pictures),
        "pictures": [*pictures],
        "texts": texts(pictures, facts),
    }


def texts(pictures: Sequence[Picture], facts: Facts) -> str:
    """Return HTML with the kind, the links and the settings of each picture, by its key."""
    return "".join(_text(picture, facts) for picture in pictures)


def _text(picture: Picture, facts: Facts) -> str:
    fields, _ = picture.fields(facts)
    note = status.note(i18n.FINISH_INFO) if picture.unfinished else status.EMPTY
    links = status.EMPTY if picture.unfinished else downloads.links(picture.path)
    width, height = picture.drawn_size
    query = link.to_query(fields._replace(images=1))
    began = "" if fields.strength is None else "1"
    return (
        f'<article data-key="{escape(picture.key)}" data-kind="{_kind(picture, facts)}"'
        f' data-began="{began}" data-start="{escape(picture.start)}"'
        f' data-ratio="{(width or 1) / (height or 1):.3f}">{note}'
        f'<p class="files">{links}{settings.link_button(query)}</p>'
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
    """Return new values for the page's fields and its strip, of settings from elsewhere."""
    if new_settings is None:
        return {}
    words = typed(styles.values(), new_settings.prompt, new_settings.negative_prompt)
    values, notes = settings.as_fields(new_settings, facts, words)
    return values.shown() | {"strip": status.taken_over(notes)}


def opened(call: Call) -> Picture:
    """Return the picture that the panel shows.

    Raises:
        RequestError: if it is gone.
    """
    pictures = call.values["pictures"]
    return pictures[saved.find(pictures, call.told.get("key"))]


def used(call: Call, facts: Facts, *, anew: bool = False) -> Updates:
    """Return the updates that put the opened picture's settings into the fields.

    With `anew`, its seed and what varied it are left out.
    """
    try:
        picture = opened(call)
    except RequestError as error:
        return {"strip": status.error(i18n.translate(error.message))}
    if anew:
        names = ("seed", "variation_seed", "variation_strength", "variation_of")
        new_settings = replace(picture.settings, **dict.fromkeys(names))
        picture = replace(picture, settings=new_settings)
    values, notes = picture.fields(facts)
    return values.shown() | {"strip": status.taken_over(notes)}


def exchanged(call: Call, facts: Facts) -> Updates:
    """Return the updates that show the opened picture's original, or blur it again."""
    pictures, embed = call.values["pictures"], not call.told.get("bare")
    try:
        index = saved.find(pictures, call.told.get("key"))
        changed_picture = saved.exchanged(pictures[index], embed)
    except RequestError as error:
        return {"strip": status.error(i18n.translate(error.message))}
    shown = in_gallery([*pictures[:index], changed_picture, *pictures[index + 1 :]], facts)
    return shown | {"gallery": gr.Gallery(shown["gallery"], selected_index=index)}
