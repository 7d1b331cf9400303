"""The choice whether the pictures' files contain their settings, kept in the visitor's browser."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from serving.generator import Generator, Model, RequestError
from ui import i18n
from ui.events import AT_ONCE
from ui.pictures import picture_panel, saved
from ui.pictures.saved import Picture

STORAGE_KEY = "sdxl-embed"


@dataclass(frozen=True)
class Embedding:
    """The components that show and that keep the choice."""

    checkbox: gr.Checkbox
    kept: gr.BrowserState


def layout() -> gr.Checkbox:
    """Return a checkbox that is ticked unless the visitor chose otherwise."""
    return gr.Checkbox(True, label=i18n.EMBED, info=i18n.EMBED_INFO, elem_id="embed")


def kept() -> gr.BrowserState:
    """Return the state that keeps the choice; do not lay it out in a part that may stay closed."""
    # The secret is a constant, so that the choice outlives this process.
    return gr.BrowserState(saved.WITH_SETTINGS, storage_key=STORAGE_KEY, secret=STORAGE_KEY)


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
        return _follow(embed, pictures, generator.model)

    show = f"(kept) => kept !== '{saved.BARE}'"
    keep = f"(inside) => inside ? '{saved.WITH_SETTINGS}' : '{saved.BARE}'"
    page.load(None, embedding.kept, embedding.checkbox, js=show, **AT_ONCE)
    embedding.checkbox.input(None, embedding.checkbox, embedding.kept, js=keep, **AT_ONCE)
    embedding.checkbox.input(
        follow, [embedding.checkbox, pictures], [gallery, pictures, texts], **AT_ONCE
    )


def _follow(embed: bool, pictures: list[Picture], model: Model) -> tuple[Any, ...]:
    finished = [each for each in pictures if not each.unfinished]  # all, or none
    try:
        changed = saved.again(finished, embed) if finished else []
    except (OSError, RequestError):  # files are gone, or there is no room for more
        changed = []
    if not changed:
        return (gr.skip(),) * 3
    gallery = gr.Gallery(saved.for_gallery(changed), selected_index=None)
    return gallery, changed, picture_panel.texts(changed, model)
