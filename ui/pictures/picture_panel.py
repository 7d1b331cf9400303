"""The panel under an opened picture: its settings, and buttons that use them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from pipeline.images.metadata import Settings
from serving.generator import Generator, Model, RequestError
from ui import form, i18n, link, settings, status
from ui.events import AT_ONCE
from ui.pictures import downloads, reveal, saved
from ui.pictures.saved import Picture


@dataclass(frozen=True)
class Panel:
    """The components of the panel under the opened picture."""

    column: gr.Column
    text: gr.HTML
    use: gr.Button
    new_seed: gr.Button
    varying: gr.Row
    variations: gr.Button
    strength: gr.Slider
    reveal: gr.Button
    picture: gr.State  # the `Settings` of the picture
    index: gr.State  # its place in the gallery

    @property
    def updated(self) -> list[Block]:
        """Return the components that change with the opened picture."""
        return [self.column, self.text, self.varying, self.reveal, self.picture, self.index]


def layout() -> Panel:
    """Return the panel, which is hidden until a picture is opened."""
    with gr.Column(visible=False, elem_id="picked") as column:
        revealing = reveal.layout()
        text = gr.HTML(elem_id="picked-settings", padding=False)
        with gr.Row():
            use = gr.Button(i18n.USE_SETTINGS, size="md")
            new_seed = gr.Button(i18n.NEW_SEED, size="md", elem_id="new-seed")
        with gr.Row(elem_id="varying") as varying:
            variations = gr.Button(i18n.VARIATIONS, size="md", elem_id="variations")
            label = i18n.SETTINGS["variation_strength"].label
            strength = gr.Slider(0.05, 1, 0.25, step=0.05, label=label, elem_id="strength")
    return Panel(
        column=column,
        text=text,
        use=use,
        new_seed=new_seed,
        varying=varying,
        variations=variations,
        strength=strength,
        reveal=revealing,
        picture=gr.State(None),
        index=gr.State(0),
    )


def connect(
    panel: Panel,
    gallery: gr.Gallery,
    pictures: gr.State,
    fields: Sequence[Component],
    files: gr.BrowserState,
    strip: gr.HTML,
    generator: Generator,
) -> Any:
    """Connect the panel to the gallery; return the event after which to draw with a new seed."""

    def follow(pictures: list[Picture], event: gr.SelectData) -> tuple[Any, ...]:
        return _open(pictures, event.index, generator.model)

    def exchange(pictures: list[Picture], index: int, files: str | None) -> tuple[Any, ...]:
        return _exchange(pictures, index, files, generator.model)

    gallery.select(follow, pictures, panel.updated, **AT_ONCE)
    gallery.preview_close(_close, None, panel.updated, **AT_ONCE)
    panel.reveal.click(
        exchange,
        [pictures, panel.index, files],
        [strip, gallery, pictures, *panel.updated],
        **AT_ONCE,
    )
    panel.use.click(
        lambda chosen: apply(chosen, generator.model),
        panel.picture,
        [*fields, strip],
        **AT_ONCE,
    )
    return panel.new_seed.click(
        lambda chosen: apply(_without_seed(chosen), generator.model),
        panel.picture,
        [*fields, strip],
        **AT_ONCE,
    )


def apply(chosen: Settings | None, model: Model) -> tuple[Any, ...]:
    """Return new values for the page's fields and its strip."""
    if chosen is None:
        return (gr.skip(),) * (len(form.Fields._fields) + 1)
    values, notes = form.as_fields(chosen, model)
    return (*values.shown(), status.taken_over(notes))


def _open(pictures: list[Picture], index: int, model: Model) -> tuple[Any, ...]:
    if not 0 <= index < len(pictures):  # unfinished pictures have no settings
        return _close()
    chosen = pictures[index].settings
    fields, _ = form.as_fields(chosen, model)
    text = settings.as_html(chosen, link.to_query(fields)) + downloads.links(pictures[index].path)
    # A variation cannot be varied again: settings can describe only one variation of a seed.
    varying = gr.Row(visible=chosen.variation_seed is None)
    return gr.Column(visible=True), text, varying, reveal.offered(pictures[index]), chosen, index


def _close() -> tuple[Any, ...]:
    return gr.Column(visible=False), "", gr.skip(), gr.skip(), None, gr.skip()


def _exchange(
    pictures: list[Picture], index: int, files: str | None, model: Model
) -> tuple[Any, ...]:
    try:
        pictures = reveal.exchange(pictures, index, files)
    except RequestError as error:
        return status.error(i18n.translate(error.message)), *(gr.skip(),) * 8
    gallery = gr.Gallery(saved.for_gallery(pictures), selected_index=index)
    return gr.skip(), gallery, pictures, *_open(pictures, index, model)


def _without_seed(chosen: Settings | None) -> Settings | None:
    return chosen and replace(chosen, seed=None, variation_seed=None, variation_strength=None)
