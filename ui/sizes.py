"""Which size the pictures are to have, where there is more than one."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from serving.generator import Generator, Model
from ui import i18n
from ui.events import AT_ONCE

USUAL = ""  # what the choice holds for the model's own size
# Between two looks for sizes that are still to come.
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Sizes:
    """The choice, and what looks for further ones while there are any to come."""

    choice: gr.Radio
    timer: gr.Timer


def name(size: tuple[int, int]) -> str:
    """As programs and links write it."""
    return "{}x{}".format(*size)


def parse(model: Model, value: str) -> tuple[int, int] | None:
    """The size that a name stands for; None for the model's own.

    Raises:
        KeyError: the model has no such size.
    """
    named = {name(size): size for size in model.sizes}
    return None if value == USUAL else named[value]


def layout(model: Model) -> Sizes:
    """The choice, which shows itself once there is one."""
    choice = gr.Radio(value=USUAL, label=i18n.SIZE, elem_id="size", **_choices(model))
    return Sizes(choice, gr.Timer(LOOK_SECONDS, active=bool(model.coming_sizes)))


def connect(page: gr.Blocks, sizes: Sizes, generator: Generator) -> None:
    """Offers every size from the moment on in which it can be drawn."""

    def look() -> tuple[gr.Radio, gr.Timer]:
        model = generator.model
        return gr.Radio(**_choices(model)), gr.Timer(active=bool(model.coming_sizes))

    gr.on([page.load, sizes.timer.tick], look, None, [sizes.choice, sizes.timer], **AT_ONCE)


def _choices(model: Model) -> dict[str, Any]:
    own, *more = model.sizes
    choices = [(i18n.size(own), USUAL), *((i18n.size(size), name(size)) for size in more)]
    return {"choices": choices, "visible": len(choices) > 1}
