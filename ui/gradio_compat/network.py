"""While the network is away the page says so; afterwards it goes on with what it was about.

What the browser does for that is in `network.js`.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from ui import i18n
from ui.events import IN_THE_STRIP

SCRIPT = Path(__file__).with_name("network.js")


def layout() -> gr.HTML:
    """Where that is said: in the place of the strip, which it is to be laid out beside."""
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
    shown: Sequence[Component],
) -> Any:
    """Has a request go on whose events broke off; returns the event."""
    # However soon the network goes away again.
    return network.select(resume, inputs, shown, trigger_mode="multiple", **IN_THE_STRIP)
