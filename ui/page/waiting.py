"""The prompt that is entered while pictures are drawn: it waits until they are finished.

The browser's part of this is in `waiting.js`.
"""

from html import escape
from pathlib import Path

import gradio as gr

from ui import i18n
from ui.wiring import Wiring

SCRIPT = Path(__file__).parents[1] / "static" / "waiting.js"


def layout(wiring: Wiring) -> None:
    """Lay out the place that shows the waiting prompt. It belongs beside the strip."""
    note = gr.HTML(
        f'<p class="note" role="status" data-next="{escape(i18n.NEXT_PROMPT)}"></p>',
        js_on_load=SCRIPT.read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id="waiting",
        padding=False,
    )
    wiring.add("waiting", note)
