"""The note that the connection is lost, and the resuming of the page's request afterwards.

The browser's part of this is in `network.js`.
"""

from html import escape
from pathlib import Path

import gradio as gr

from ui import i18n
from ui.wiring import Wiring

SCRIPT = Path(__file__).parent / "gradio_compat" / "network.js"


def layout(wiring: Wiring) -> None:
    """Lay out the place of the note. It belongs beside the strip, whose place it takes."""
    note = gr.HTML(
        f'<p class="note" role="status" data-away="{escape(i18n.AWAY)}"></p>',
        js_on_load=SCRIPT.read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id="network",
        padding=False,
    )
    wiring.add("network", note)
