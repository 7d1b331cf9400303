"""The one part of the page that hands values between its browser and its server.

The browser sends the relay's value with an event. The server sends the relay's properties: an id
and an entry of the history for each request. `static/relay.js` is the browser's part of this.
"""

import json
from collections.abc import Sequence

import gradio as gr

from ui import scripts

RELAY = "relay"  # the part's name among the page's components
# Values that the tab keeps, and the one that the browser keeps for all tabs. Gradio's own
# `gr.BrowserState` would keep values too, but encrypts, and fetches a library for that.
_EVENTS = "request_kept", "picture_given", "linked"
_OF_TAB, _OF_BROWSER = ("draft", "request", "started"), "bare"
_KEPT = (*_OF_TAB, _OF_BROWSER)


def layout(settings: Sequence[str]) -> gr.HTML:
    """Return the relay. Do not lay it out in a part that may stay closed.

    Its events tell which of the kept values concern the server when the page is opened: most visits
    need nothing of it then, and every call makes Gradio render all components that it could change.
    `picture_given` and `request_kept` follow if the tab kept a picture or a request, and `linked`
    if it kept no fields and a link with `settings` opened the page. `picture_given` also tells of a
    picture that is dropped or pasted anywhere.
    """
    return gr.HTML(
        html_template="<div></div>",
        js_on_load=scripts.part("relay", *_EVENTS),
        visible="hidden",
        settings=settings,
        kept=_KEPT,
        of_browser=_OF_BROWSER,
        received=(*_KEPT, "entry", "opened"),
    )


def of_app(member: str) -> str:
    """Return the expression for a member of the relay whose value a script has as `relay`.

    A document may have several elements, and Gradio tells an event's script nothing of its element.
    """
    return f'document.querySelector(`[data-app="${{relay.app}}"]`).relay.{member}'


def tell(questions: Sequence[str]) -> str:
    """Return the browser's function that adds the answers to questions to the relay's value."""
    answer = of_app(f"tell({json.dumps([*questions])})")
    return f"async ({{ relay }}) => ({{ relay: await {answer} }})"
