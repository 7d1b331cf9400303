"""The chips under the prompt: buttons that show a choice and open the panel in which it is made.

The browser opens and closes the panels (`static/page.js`).
"""

from contextlib import suppress

import gradio as gr

from pipeline.facts import Facts
from pipeline.setting_kinds import parse_size
from serving.generator import Generator
from ui import i18n, looks, start
from ui.page import restore
from ui.samples.styles import NONE
from ui.wiring import Call, Updates, Wiring

# The fields in the panel of each chip.
_FIELDS = {
    "style": ("style", "loras"),
    "size": ("size",),
    "count": ("images",),
    "seed": ("seed", "randomise"),
}
FIELDS = frozenset((*(field for fields in _FIELDS.values() for field in fields), *start.FIELDS))


def layout(wiring: Wiring, facts: Facts) -> None:
    """Lay out the row of buttons, and below it the panels that they open."""
    texts = {
        "style": i18n.SETTINGS["style"].label,
        "size": i18n.size(facts.sizes[0]),
        "count": i18n.text("pictures", count=facts.images_per_request),
    }
    visibility = {"size": len(facts.sizes) > 1, "count": facts.images_per_request > 1}
    with gr.Row(elem_id="chips"):
        for name, text in texts.items():
            _chip(wiring, text, f"chip-{name}", visibility.get(name, True))
        with gr.Row(elem_id="picture-chips"):
            _chip(wiring, i18n.PICTURE, "chip-picture")
            _chip(wiring, "✕", "free-picture")  # the tools of `ui.start` name and show it
        with gr.Row(elem_id="seed-chips"):
            _chip(wiring, i18n.SETTINGS["seed"].label, "chip-seed")
            _chip(wiring, "✕", "free-seed", visible=False)
    for name, fields in _FIELDS.items():
        with _panel(name):
            for field in fields:
                wiring[field].render()
    # Mounted when its chip is first pressed, so that the page opens sooner; or at once, and open,
    # if the model draws only from pictures.
    with wiring.add("picture-panel", _panel("picture", visible=facts.needs_mask)):
        start.note(facts)
        restore.layout(wiring)
        start.layout(facts)
        for field in start.FIELDS:
            wiring[field].render()


def _chip(wiring: Wiring, text: str, name: str, visible: bool = True) -> None:
    wiring.add(name, gr.Button(text, size="sm", min_width=0, visible=visible, elem_id=name))


def _panel(name: str, visible: bool = True) -> gr.Column:
    return gr.Column(elem_id=f"panel-{name}", elem_classes="chip-panel", visible=visible)


def connect(wiring: Wiring, generator: Generator) -> None:
    """Show each choice on its chip, and the button beside the seed while the seed is fixed.

    The panel of pictures is also mounted for a picture that comes in another way.
    """

    def show(call: Call) -> Updates:
        values = call.values
        model = generator.facts.for_known(str(values["model"]))
        size_labels = dict(zip(model.size_names, map(i18n.size, model.sizes), strict=True))
        style, images = values["style"], values["images"]
        labels = [] if style == NONE else [i18n.STYLES.get(str(style), "")]
        labels += looks.titles(str(values["loras"] or ""), model)
        is_random = values["randomise"]
        seed = "" if is_random else f" {values['seed']}"
        size = size_labels.get(str(values["size"]), i18n.size(model.sizes[0]))
        with suppress(ValueError):
            # A second run, which a link or a picture can ask for.
            if larger_size := parse_size(values["enlarge"]):
                size += f" → {i18n.size(larger_size)}"
        return {
            "chip-style": " + ".join(labels) or i18n.SETTINGS["style"].label,
            "chip-size": size,
            "chip-count": i18n.text("pictures", count=images or model.images_per_request)
            if isinstance(images, int)
            else None,
            "chip-seed": i18n.SETTINGS["seed"].label + seed,
            "free-seed": gr.Button(visible=not is_random),
        }

    names = "style", "loras", "size", "images", "seed", "randomise", "model", "enlarge"
    wiring.on(
        " ".join(f"{name}.change" for name in names),
        show,
        reads=names,
        updates=["chip-style", "chip-size", "chip-count", "chip-seed", "free-seed"],
        trigger_mode="always_last",
    )
    mount = '() => ({ "picture-panel": { __type__: "update", visible: true } })'
    for trigger in ("chip-picture.click", "relay.picture_given"):
        wiring.on(trigger, updates=["picture-panel"], js=mount)
    wiring.on("free-seed.click", updates=["randomise"], js="() => ({ randomise: true })")
    # A seed that is typed is meant to be used; without one it stays random.
    typed = "({ seed }) => ({ randomise: seed === null })"
    wiring.on("seed.input", reads=["seed"], updates=["randomise"], js=typed)
