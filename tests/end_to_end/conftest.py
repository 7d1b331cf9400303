"""A browser for each file of tests, and the pages that its tests open."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.browsing import Visitor
from tools.page_states import launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def visitor(browser: Browser) -> Iterator[Visitor]:
    """Yield a visitor whose browser keeps the page's scripts, which saves a second each time."""
    with Visitor.of(browser) as found:
        yield found


@pytest.fixture
def page(visitor: Visitor, address: str) -> Iterator[Page]:
    with visitor.at(address) as found:
        yield found


@pytest.fixture
def slow_page(visitor: Visitor, slow_address: str) -> Iterator[Page]:
    with visitor.at(slow_address) as found:
        yield found
