"""A function of the page for programs, which browsers do not lay out."""

from collections.abc import Callable
from typing import Any

import gradio as gr
from gradio.components.api_component import Api
from gradio.events import api


def offer(page: gr.Blocks, function: Callable[..., Any], name: str, description: str) -> None:
    """Let programs call a function by a name.

    Gradio makes a component of each parameter and result. Programs read these components in the
    page's configuration. Browsers would mount each of them, so they are taken out of the layout.
    """
    api(function, api_name=name, api_description=description)
    for part in [child for child in page.children if isinstance(child, Api)]:
        page.children.remove(part)
        _hide(part)


def _hide(part: Api) -> None:
    # The page is ready when all components that are not hidden are mounted.
    config = part.get_config
    part.get_config = lambda cls=None: {**config(cls), "visible": False}
