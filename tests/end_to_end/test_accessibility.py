"""The page has no axe-core violation of any severity in any of its states."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.browsing import AXE, SHOWN_WITHIN_MS, VIOLATIONS, opening
from tools import page_states

STATES = (
    "empty",
    "read",
    "looks",
    "advanced",
    "picture",
    "start",
    "marked",
    "error",
    "waiting",
    "running",
    "stopped",
    "finished",
    "history",
    "compared",
)


@pytest.fixture
def page(slow_address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    with page_states.launched() as browser:
        page = browser.new_page(color_scheme=request.param, reduced_motion="reduce")
        page.set_default_timeout(SHOWN_WITHIN_MS)
        with opening(page):
            page.goto(slow_address)
        yield page


@pytest.mark.parametrize(
    "page", ["light", pytest.param("dark", marks=pytest.mark.slow)], indirect=True
)
def test_no_violation_in_any_state(page: Page):
    if not AXE.exists():
        pytest.fail("axe-core is missing; make test installs it")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = {state: page.evaluate(VIOLATIONS) for state in page_states.walk(page, steps=1)}
    assert {state: each for state, each in found.items() if each} == {}
    assert set(found) >= set(STATES)
