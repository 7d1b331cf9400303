"""The prompt that is entered while pictures are drawn: it waits until they are finished.

The browser's part of this is in `waiting.js`.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from ui import i18n
from ui.events import IN_THE_STRIP

SCRIPT = Path(__file__).parent / "static" / "waiting.js"


def layout() -> gr.HTML:
    """Return the place that shows the waiting prompt. Lay it out beside the strip."""
    return gr.HTML(
        f'<p class="note" role="status" data-next="{escape(i18n.NEXT_PROMPT)}"></p>',
        js_on_load=SCRIPT.read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id="waiting",
        padding=False,
    )


def connect(
    waiting: gr.HTML,
    draw: Callable[..., Any],
    inputs: Sequence[Component],
    outputs: Sequence[Component],
    js: str,
) -> Any:
    """Draw the waiting prompt when its turn comes, with the `inputs` as `js` changes them.

    Return the event that draws it.
    """
    return waiting.select(draw, inputs, outputs, js=js, trigger_mode="multiple", **IN_THE_STRIP)
