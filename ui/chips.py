"""The chips under the prompt: buttons that show a choice and open the panel in which it is made.

The browser opens and closes the panels (`static/page.js`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from pipeline.facts import Facts
from serving.generator import Generator
from ui import i18n, looks, restore, start
from ui.app_name import part
from ui.events import AT_ONCE
from ui.form import Form
from ui.restore import Restorer
from ui.styles import NONE

# The fields in the panel of each chip.
_FIELDS = {
    "style": ("style", "loras"),
    "size": ("size",),
    "count": ("images",),
    "seed": ("seed", "randomise"),
}
_MOUNT = '() => ({ __type__: "update", visible: true })'
# The same for a picture that the tab kept, which the panel restores when it is mounted, or now.
_MOUNT_KEPT = f"""(app) => {{
  {part("#start [data-start]")}?.dispatchEvent(new CustomEvent("kept", {{ bubbles: true }}));
  return {{ __type__: "update", visible: true }};
}}"""
FIELDS = frozenset((*(field for fields in _FIELDS.values() for field in fields), *start.FIELDS))


@dataclass(frozen=True)
class Chips:
    """The buttons by the names of their panels, and the one that frees a fixed seed.

    The panel of pictures is mounted when its chip is first pressed, so that the page opens sooner;
    or at once, and open, if the model draws only from pictures.
    """

    buttons: Mapping[str, gr.Button]
    free_seed: gr.Button
    picture: gr.Column


def layout(facts: Facts, form: Form) -> tuple[Chips, Restorer]:
    """Lay out the row of buttons, and below it the panels that they open."""
    texts = {
        "style": i18n.SETTINGS["style"].label,
        "size": i18n.size(facts.sizes[0]),
        "count": i18n.pictures(facts.images_per_request),
    }
    visibility = {"size": len(facts.sizes) > 1, "count": facts.images_per_request > 1}
    with gr.Row(elem_id="chips"):
        buttons = {
            name: _chip(text, f"chip-{name}", visibility.get(name, True))
            for name, text in texts.items()
        }
        with gr.Row(elem_id="picture-chips"):
            buttons["picture"] = _chip(i18n.PICTURE, "chip-picture")
            _chip("✕", "free-picture")  # the tools of `ui.start` name and show it
        with gr.Row(elem_id="seed-chips"):
            buttons["seed"] = _chip(i18n.SETTINGS["seed"].label, "chip-seed")
            free_seed = _chip("✕", "free-seed", visible=False)
    for name, fields in _FIELDS.items():
        with _panel(name):
            for field in fields:
                form.parts[field].render()
    with _panel("picture", visible=facts.needs_mask) as picture:
        start.note(facts)
        restorer = restore.layout(facts)
        start.layout(facts)
        for field in start.FIELDS:
            form.parts[field].render()
    return Chips(buttons, free_seed, picture), restorer


def _chip(text: str, elem_id: str, visible: bool = True) -> gr.Button:
    return gr.Button(text, size="sm", min_width=0, visible=visible, elem_id=elem_id)


def _panel(name: str, visible: bool = True) -> gr.Column:
    return gr.Column(elem_id=f"panel-{name}", elem_classes="chip-panel", visible=visible)


def connect(
    chips: Chips, form: Form, start_part: gr.HTML, app: gr.HTML, generator: Generator
) -> None:
    """Show each choice on its chip, and the button beside the seed while the seed is fixed.

    The panel of pictures is also mounted if `start_part` tells that the tab kept a picture.
    """

    def show(
        style: object,
        loras: object,
        size: object,
        images: object,
        seed: object,
        randomise: object,
        model_name: object,
    ) -> tuple[Any, ...]:
        model = generator.facts.for_known(str(model_name))
        size_labels = dict(zip(model.size_names, map(i18n.size, model.sizes), strict=True))
        labels = [] if style == NONE else [i18n.STYLES.get(str(style), "")]
        labels += looks.titles(str(loras or ""), model)
        texts = (
            " + ".join(labels) or i18n.SETTINGS["style"].label,
            size_labels.get(str(size), i18n.size(model.sizes[0])),
            i18n.pictures(images or model.images_per_request) if isinstance(images, int) else None,
            i18n.SETTINGS["seed"].label + ("" if randomise else f" {seed}"),
        )
        return *texts, gr.Button(visible=not randomise)

    names = "style", "loras", "size", "images", "seed", "randomise", "model"
    fields = [form.parts[name] for name in names]
    buttons = [chips.buttons[name] for name in ("style", "size", "count", "seed")]
    gr.on(
        [field.change for field in fields],
        show,
        fields,
        [*buttons, chips.free_seed],
        trigger_mode="always_last",
        **AT_ONCE,
    )
    chips.buttons["picture"].click(None, None, chips.picture, js=_MOUNT, **AT_ONCE)
    start_part.select(None, app, chips.picture, js=_MOUNT_KEPT, **AT_ONCE)
    chips.free_seed.click(None, None, form.parts["randomise"], js="() => true", **AT_ONCE)
    # A seed that is typed is meant to be used; without one it stays random.
    seed = form.parts["seed"]
    seed.input(None, seed, form.parts["randomise"], js="(seed) => seed === null", **AT_ONCE)
