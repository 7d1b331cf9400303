"""The page before the first pictures: examples that are drawn with one press.

Every element with `data-example` is such an example: `static/page.js` puts its text into the prompt
and presses Generate. While something is drawn, it only fills in the prompt.
"""

from html import escape
from random import Random

import gradio as gr

from ui import i18n
from ui.samples import sample_pictures
from ui.samples.examples import examples_for, surprise
from ui.samples.model_kind import Kind
from ui.wiring import Call, Updates, Wiring

# Tells `static/page.js` which prompt was made for the press of Surprise.
_DRAW = """({ prompt }) => {
  document.dispatchEvent(new CustomEvent("sdxl-surprise", { detail: prompt }));
}"""


def cards(kind: Kind) -> gr.HTML:
    """Return the cards in the place of the pictures, which CSS hides once there are some."""
    pictures = sample_pictures.EXAMPLES.addresses(kind)
    buttons = "".join(_card(prompt, pictures.get(prompt)) for prompt in examples_for(kind))
    # The label stands in the text, which is in the visitor's language as a whole.
    value = f'<div role="group" aria-label="{escape(i18n.EXAMPLES)}">{buttons}</div>'
    return gr.HTML(value, js_on_load=None, apply_default_css=False, elem_id="cards", padding=False)


def _card(prompt: str, picture: str | None) -> str:
    # The page adds the server's address to that of the picture.
    image = "" if picture is None else f'<img data-src="{escape(picture)}" alt="">'
    words = escape(prompt)
    content = f"{image}<span>{words}</span>"
    return f'<button type="button" lang="en" data-example="{words}">{content}</button>'


def die(wiring: Wiring) -> None:
    """Lay out the die in the prompt, which draws a random prompt."""
    wiring.add("surprise", gr.Button(i18n.SURPRISE, size="sm", elem_id="surprise"))


def connect(wiring: Wiring, kind: Kind) -> None:
    """Let Surprise fill in a random prompt, and draw it."""

    def surprised(_: Call) -> Updates:
        return {"prompt": surprise(kind, Random())}

    event = wiring.on("surprise.click", surprised, updates=["prompt"])
    wiring.on(event, reads=["prompt"], js=_DRAW)
