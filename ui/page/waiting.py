"""The prompt that is entered while pictures are drawn: it waits until they are finished.

The browser's part of this is in `static/parts.js`.
"""

from html import escape

import gradio as gr

from ui import i18n, scripts
from ui.wiring import Wiring


def layout(wiring: Wiring) -> None:
    """Lay out the place that shows the waiting prompt. It belongs beside the strip."""
    note = gr.HTML(
        f'<p class="note" role="status" data-next="{escape(i18n.NEXT_PROMPT)}"></p>',
        js_on_load=scripts.part("waiting"),
        apply_default_css=False,
        elem_id="waiting",
        padding=False,
    )
    wiring.add("waiting", note)
