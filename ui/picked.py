"""The picture that is open: its settings, and what can be done with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from gradio.components import Component

from pipeline.metadata import Settings
from serving.generator import Generator, Model
from ui import link, settings, status, words
from ui.events import AT_ONCE


@dataclass(frozen=True)
class Panel:
    """What lies under the picture that is open."""

    column: gr.Column
    text: gr.HTML
    use: gr.Button
    new_seed: gr.Button
    varying: gr.Row
    variations: gr.Button
    strength: gr.Slider
    picture: gr.State  # the `Settings` of the picture


def layout() -> Panel:
    """The panel, which shows itself once a picture is open."""
    with gr.Column(visible=False, elem_id="picked") as column:
        text = gr.HTML(elem_id="picked-settings", padding=False)
        with gr.Row():
            use = gr.Button(words.USE_SETTINGS, size="md")
            new_seed = gr.Button(words.NEW_SEED, size="md", elem_id="new-seed")
        with gr.Row(elem_id="varying") as varying:
            variations = gr.Button(words.VARIATIONS, size="md", elem_id="variations")
            strength = gr.Slider(
                0.05, 1, 0.25, step=0.05, label=words.VARIATION_STRENGTH, elem_id="strength"
            )
    return Panel(column, text, use, new_seed, varying, variations, strength, gr.State(None))


def connect(
    panel: Panel,
    gallery: gr.Gallery,
    pictures: gr.State,
    fields: Sequence[Component],
    strip: gr.HTML,
    generator: Generator,
) -> Any:
    """Has the panel follow the gallery; returns the event after which to draw with a new seed."""

    def follow(pictures: list[Settings], event: gr.SelectData) -> tuple[Any, ...]:
        return _open(pictures, event.index, generator.model)

    shows = [panel.column, panel.text, panel.varying, panel.picture]
    gallery.select(follow, pictures, shows, **AT_ONCE)
    gallery.preview_close(_close, None, shows, **AT_ONCE)
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
    """New values of the page's fields and of its strip."""
    if chosen is None:
        return (gr.skip(),) * (len(settings.Fields._fields) + 1)
    values, notes = settings.as_fields(chosen, model)
    strip = status.note(words.TAKEN_OVER) + (status.warning(" ".join(notes)) if notes else "")
    return (*values, strip)


def _open(pictures: list[Settings], index: int, model: Model) -> tuple[Any, ...]:
    if not 0 <= index < len(pictures):  # what was stopped has no settings
        return _close()
    chosen = pictures[index]
    fields, _ = settings.as_fields(chosen, model)
    text = settings.as_html(chosen, link.to_query(fields))
    # Of a variation there can be no further ones: its settings have room for one step.
    varying = gr.Row(visible=chosen.variation_seed is None)
    return gr.Column(visible=True), text, varying, chosen


def _close() -> tuple[Any, ...]:
    return gr.Column(visible=False), "", gr.skip(), None


def _without_seed(chosen: Settings | None) -> Settings | None:
    return chosen and replace(chosen, seed=None, variation_seed=None, variation_strength=None)
