"""The choice whether the pictures' files contain their settings, kept in the visitor's browser."""

import gradio as gr

from serving.generator import Generator, RequestError
from ui import i18n
from ui.pictures import picture_panel, saved
from ui.wiring import Call, Updates, Wiring

_SHOW = "({ relay }) => ({ embed: !relay.bare })"
_KEEP = '({ embed }) => ({ relay: { __type__: "update", props: { bare: !embed } } })'


def layout(wiring: Wiring) -> None:
    """Lay out a checkbox that is ticked unless the visitor chose otherwise."""
    wiring.add("embed", gr.Checkbox(True, label=i18n.EMBED, info=i18n.EMBED_INFO, elem_id="embed"))


def connect(wiring: Wiring, generator: Generator) -> None:
    """Keep the choice in the browser, and apply changes of it to the pictures in the gallery."""

    def follow(call: Call) -> Updates:
        pictures = call.values["pictures"]
        finished = [picture for picture in pictures if not picture.unfinished]  # all, or none
        try:
            new_pictures = saved.again(finished, call.values["embed"]) if finished else []
        except (OSError, RequestError):  # files are gone, or there is no room for more
            new_pictures = []
        if not new_pictures:
            return {}
        shown = picture_panel.in_gallery(new_pictures, generator.facts)
        return shown | {"gallery": gr.Gallery(shown["gallery"], selected_index=None)}

    wiring.on("page.load", reads=["relay"], updates=["embed"], js=_SHOW)
    wiring.on("embed.input", reads=["embed"], updates=["relay"], js=_KEEP)
    wiring.on(
        "embed.input", follow, reads=["embed", "pictures"], updates=["gallery", "pictures", "texts"]
    )
