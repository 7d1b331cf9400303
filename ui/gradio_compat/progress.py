"""Gradio's own signs of progress, which the page does without."""

import gradio as gr


def leave_out_progress(page: gr.Blocks) -> None:
    """Show Gradio's progress of a page's events on no component.

    Whenever an event begins, goes on or ends, the browser copies all properties of each component
    that has ever shown progress, and of its children, even if the progress is hidden.
    """
    for function in page.fns.values():
        function.show_progress_on = []
