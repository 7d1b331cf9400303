"""The name of a `<gradio-app>` element, by which the page's events find the parts of their own.

A document may have several elements, and Gradio tells an event's script nothing of its element.
"""

import gradio as gr

_NAME = """
props.value = Math.random().toString(36).slice(2);
element.closest(".gradio-container").dataset.app = props.value;
"""


def layout() -> gr.HTML:
    """Return a component out of sight whose value is the name; list it as an event's input."""
    return gr.HTML(html_template="<div></div>", js_on_load=_NAME, visible="hidden")


def part(selector: str) -> str:
    """Return the expression for a part of the element that the script's `app` names, or null."""
    return f'document.querySelector(`[data-app="${{app}}"] {selector}`)'
