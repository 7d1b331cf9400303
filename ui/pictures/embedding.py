"""The choice whether the pictures' files contain their settings, kept in the visitor's browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from pipeline.facts import Facts
from serving.generator import Generator, RequestError
from ui import i18n
from ui.events import AT_ONCE
from ui.pictures import picture_panel, saved
from ui.pictures.saved import Picture

SCRIPT = Path(__file__).parents[1] / "static" / "embedding.js"


@dataclass(frozen=True)
class Embedding:
    """The components that show and that keep the choice."""

    checkbox: gr.Checkbox
    kept: gr.HTML


def layout() -> gr.Checkbox:
    """Return a checkbox that is ticked unless the visitor chose otherwise."""
    return gr.Checkbox(True, label=i18n.EMBED, info=i18n.EMBED_INFO, elem_id="embed")


def kept() -> gr.HTML:
    """Return the part that keeps the choice; do not lay it out in a part that may stay closed.

    Its value is None until the visitor chooses. Gradio would put another value in the place of the
    kept one.
    """
    # `gr.BrowserState` would do, but encrypts, and fetches a library for that.
    return gr.HTML(
        html_template="",
        js_on_load=SCRIPT.read_text(encoding="utf-8"),
        visible="hidden",
        elem_id="embedding",
        choices=[saved.WITH_SETTINGS, saved.BARE],
    )


def connect(
    page: gr.Blocks,
    embedding: Embedding,
    gallery: gr.Gallery,
    pictures: gr.State,
    texts: gr.HTML,
    generator: Generator,
) -> None:
    """Keep the choice in the browser, and apply changes of it to the pictures in the gallery."""

    def follow(embed: bool, pictures: list[Picture]) -> tuple[Any, ...]:
        return _follow(embed, pictures, generator.facts)

    show = f"(kept) => kept !== '{saved.BARE}'"
    keep = f"(inside) => inside ? '{saved.WITH_SETTINGS}' : '{saved.BARE}'"
    page.load(None, embedding.kept, embedding.checkbox, js=show, **AT_ONCE)
    embedding.checkbox.input(None, embedding.checkbox, embedding.kept, js=keep, **AT_ONCE)
    embedding.checkbox.input(
        follow, [embedding.checkbox, pictures], [gallery, pictures, texts], **AT_ONCE
    )


def _follow(embed: bool, pictures: list[Picture], facts: Facts) -> tuple[Any, ...]:
    finished = [picture for picture in pictures if not picture.unfinished]  # all, or none
    try:
        new_pictures = saved.again(finished, embed) if finished else []
    except (OSError, RequestError):  # files are gone, or there is no room for more
        new_pictures = []
    if not new_pictures:
        return (gr.skip(),) * 3
    gallery = gr.Gallery(saved.for_gallery(new_pictures), selected_index=None)
    return gallery, new_pictures, picture_panel.texts(new_pictures, facts)
