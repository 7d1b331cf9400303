"""The strip, which shows the progress of the request that the page follows, and what follows it.

The browser's part is in `network.js`: it follows the request that the strip names, and follows it
again when the connection was lost. A note says that it is lost meanwhile.
"""

from html import escape

import gradio as gr

from ui import i18n, scripts, status
from ui.wiring import Wiring


def layout(wiring: Wiring) -> None:
    """Lay out the strip, and the place of the note beside it, which takes its place."""
    script = scripts.part("strip")
    strip = gr.HTML(status.EMPTY, js_on_load=script, elem_id="status", padding=False)
    wiring.add("strip", strip)
    gr.HTML(
        f'<p class="note" role="status" data-away="{escape(i18n.AWAY)}"></p>',
        apply_default_css=False,
        elem_id="network",
        padding=False,
    )
