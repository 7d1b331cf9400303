"""The note that the connection is lost, and the resuming of the page's request afterwards.

The browser's part of this is in `network.js`.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from ui import i18n
from ui.events import IN_THE_STRIP

SCRIPT = Path(__file__).parent / "gradio_compat" / "network.js"


def layout() -> gr.HTML:
    """Return the place of the note. Lay it out beside the strip, whose place it takes."""
    return gr.HTML(
        f'<p class="note" role="status" data-away="{escape(i18n.AWAY)}"></p>',
        js_on_load=SCRIPT.read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id="network",
        padding=False,
    )


def connect(
    network: gr.HTML,
    resume: Callable[..., Any],
    inputs: Sequence[Component],
    outputs: Sequence[Component],
    js: str,
) -> Any:
    """Resume a request whose events broke off, with the `inputs` as `js` changes them.

    Return the event that resumes it.
    """
    # "multiple", because the network may go away again before the last event has ended.
    return network.select(resume, inputs, outputs, js=js, trigger_mode="multiple", **IN_THE_STRIP)
