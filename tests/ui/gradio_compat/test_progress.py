"""Gradio shows the progress of no event, so browsers keep no progress of components."""

from tests.pages import StandIn
from ui.page.page import build_page


def test_no_component_shows_the_progress_of_an_event() -> None:
    functions = build_page(StandIn()).get_config_file().get("dependencies", [])
    assert len(functions) > 20
    assert all(function["show_progress_on"] == [] for function in functions)
