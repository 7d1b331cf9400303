"""The chips under the prompt: buttons that show a choice and open the panel in which it is made.

The browser keeps their texts up to date, and opens and closes the panels (`static/page.js`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from serving.generator import Model
from ui import i18n, restore
from ui.events import AT_ONCE
from ui.form import Form
from ui.restore import Restorer
from ui.styles import NONE

# The fields in the panel of each chip.
_FIELDS = {
    "style": ("style",),
    "size": ("size",),
    "count": ("images",),
    "seed": ("seed", "randomise"),
}
FIELDS = frozenset(field for fields in _FIELDS.values() for field in fields)


@dataclass(frozen=True)
class Chips:
    """The buttons by the names of their panels, and the one that frees a fixed seed."""

    buttons: Mapping[str, gr.Button]
    free_seed: gr.Button


def layout(model: Model, form: Form) -> tuple[Chips, Restorer]:
    """Lay out the row of buttons, and below it the panels that they open."""
    texts = {
        "style": i18n.SETTINGS["style"].label,
        "size": i18n.size(model.sizes[0]),
        "count": i18n.pictures(model.images_per_request),
        "picture": f"+ {i18n.PICTURE}",
        "seed": i18n.RANDOM_SEED,
    }
    offered = {"size": len(model.sizes) > 1, "count": model.images_per_request > 1}
    with gr.Row(elem_id="chips"):
        buttons = {
            name: gr.Button(
                text,
                size="sm",
                min_width=0,
                visible=offered.get(name, True),
                elem_id=f"chip-{name}",
            )
            for name, text in texts.items()
        }
        free_seed = gr.Button("✕", size="sm", min_width=0, visible=False, elem_id="free-seed")
    for name, fields in _FIELDS.items():
        with _panel(name):
            for field in fields:
                form.parts[field].render()
    with _panel("picture"):
        restorer = restore.layout()
    return Chips(buttons, free_seed), restorer


def _panel(name: str) -> gr.Column:
    return gr.Column(elem_id=f"panel-{name}", elem_classes="chip-panel")


def connect(chips: Chips, form: Form, model: Model) -> None:
    """Show each choice on its chip."""
    counts = {str(i): i18n.pictures(i) for i in range(1, model.images_per_request)}
    own = {"": i18n.size(model.sizes[0]), "0": i18n.pictures(model.images_per_request)}
    styles = i18n.STYLES | {NONE: i18n.SETTINGS["style"].label}
    _show(chips.buttons["style"], form.parts["style"], styles)
    _show(chips.buttons["size"], form.parts["size"], own)
    _show(chips.buttons["count"], form.parts["images"], own | counts)
    words = json.dumps([i18n.RANDOM_SEED, i18n.SETTINGS["seed"].label])
    seed, randomise = form.parts["seed"], form.parts["randomise"]
    gr.on(
        [seed.change, randomise.change],
        None,
        [seed, randomise],
        [chips.buttons["seed"], chips.free_seed],
        js=f"""(seed, free) => {{
          const [random, word] = {words};
          const text = free ? random : `${{word}} ${{seed}}`;
          return [{{ __type__: "update", value: text }}, {{ __type__: "update", visible: !free }}];
        }}""",
        **AT_ONCE,
    )
    chips.free_seed.click(None, None, randomise, js="() => true", **AT_ONCE)


def _show(chip: gr.Button, field: Any, texts: Mapping[str, str]) -> None:
    """Show the choice made in a field; a size without a text is such as "1024x768"."""
    field.change(
        None,
        field,
        chip,
        js=f"""(value) => {{
          const text = {json.dumps(texts)}[value] ?? `${{value}}`.replace("x", " × ");
          return {{ __type__: "update", value: text }};
        }}""",
        **AT_ONCE,
    )
