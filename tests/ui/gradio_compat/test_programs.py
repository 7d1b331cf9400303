"""Functions for programs, whose parameters are no part of the page that browsers show."""

from typing import Any

import gradio as gr

from ui.gradio_compat.programs import offer


def twice(number: int) -> int:
    """Return a number's double."""
    return 2 * number


def test_browsers_mount_nothing_for_a_function_that_programs_can_call() -> None:
    with gr.Blocks() as page:
        seen = gr.Textbox()
        offer(page, twice, "twice", "Doubles.")
    config: Any = page.get_config_file()
    [laid_out] = config["layout"]["children"]
    assert laid_out["children"] == [{"id": seen._id}]
    hidden = {each["id"] for each in config["components"] if not each["props"].get("visible", True)}
    [function] = config["dependencies"]
    assert hidden == {*function["inputs"], *function["outputs"]}
    assert len(hidden) == 2
    assert function["api_description"] == "Doubles."
