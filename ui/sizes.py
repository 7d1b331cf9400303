"""The choice of the pictures' size, for a model that has more than one."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from serving.generator import Generator, Model
from ui import i18n
from ui.events import AT_ONCE

USUAL = ""  # the choice's value for the model's own size
# Time between two checks for sizes that are not available yet.
POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Sizes:
    """The choice, and a timer that runs while more sizes are to become available."""

    choice: gr.Radio
    timer: gr.Timer


def name(size: tuple[int, int]) -> str:
    """Return a size as programs and links write it, such as "1024x768"."""
    return "{}x{}".format(*size)


def parse(model: Model, value: str) -> tuple[int, int] | None:
    """Return the size of this name, or None for the model's own size.

    Raises:
        KeyError: if the model has no such size.
    """
    named = {name(size): size for size in model.sizes}
    return None if value == USUAL else named[value]


def layout(model: Model) -> Sizes:
    """Return the choice, which is hidden while there is only one size."""
    choice = gr.Radio(value=USUAL, label=i18n.SIZE, elem_id="size", **_choices(model))
    return Sizes(choice, gr.Timer(POLL_SECONDS, active=bool(model.coming_sizes)))


def connect(page: gr.Blocks, sizes: Sizes, generator: Generator) -> None:
    """Offer each size as soon as pictures of it can be drawn."""

    def look() -> tuple[gr.Radio, gr.Timer]:
        model = generator.model
        return gr.Radio(**_choices(model)), gr.Timer(active=bool(model.coming_sizes))

    gr.on([page.load, sizes.timer.tick], look, None, [sizes.choice, sizes.timer], **AT_ONCE)


def _choices(model: Model) -> dict[str, Any]:
    own, *more = model.sizes
    choices = [(i18n.size(own), USUAL), *((i18n.size(size), name(size)) for size in more)]
    return {"choices": choices, "visible": len(choices) > 1}
