"""Different visitors use the real program with the real model, each in a browser."""

import re
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from httpx import HTTPStatusError
from playwright.sync_api import Browser, expect

from serving.messages import Code, Message
from tests.browsing import (
    DRAWN_WITHIN_MS,
    STOPPED,
    ask,
    ask_after_a_refusal,
    choose_steps,
    opened,
    wait_for_pictures,
    width_needed,
)
from tools.page_states import PROMPT, open_picture
from ui import i18n

MOON = "a yellow moon"
DARKNESS = """() => {
    const colour = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
    return 1 - Math.max(...colour.slice(0, 3)) / 255;
}"""


@pytest.mark.slow
def test_two_at_once_each_get_their_own_pictures(browser: Browser, address: str):
    with opened(browser, address) as one, opened(browser, address) as other:
        ask(one, PROMPT)
        ask(other, MOON)
        for page, prompt in ((one, PROMPT), (other, MOON)):
            wait_for_pictures(page)
            captions = page.locator("#gallery .caption-label").all_inner_texts()
            assert [caption.endswith(f": {prompt}") for caption in captions] == [True] * 4


@pytest.mark.slow
def test_stop_has_the_next_in_the_queue_drawn(browser: Browser, slow_address: str):
    step = re.compile(r"Step \d+ of 50")
    with opened(browser, slow_address) as one, opened(browser, slow_address) as other:
        for page in (one, other):
            choose_steps(page, 50)
        ask(one, PROMPT)
        expect(one.locator("#status")).to_contain_text(step)
        ask(other, MOON)
        expect(other.locator("#status")).to_contain_text("Next in the queue")
        one.locator("#stop").click()
        expect(one.locator("#status")).to_have_text(STOPPED)
        expect(other.locator("#status")).to_contain_text(step)
        # The first request was stopped; it had not come to its end.
        unfinished = re.compile(r"Unfinished: step [1-4]?\d of 50")
        expect(one.locator("#gallery .caption-label").first).to_contain_text(unfinished)
        other.locator("#stop").click()
        expect(other.locator("#status")).to_have_text(STOPPED)


@pytest.mark.parametrize(
    ("width", "height", "touch", "scheme"),
    [
        (390, 844, True, "dark"),
        pytest.param(820, 1180, True, "light", marks=pytest.mark.slow),
        pytest.param(1920, 1080, False, "dark", marks=pytest.mark.slow),
    ],
)
def test_the_page_works_on_every_screen(
    browser: Browser, address: str, width: int, height: int, touch: bool, scheme: str
):
    options = {"color_scheme": scheme, "has_touch": touch, "is_mobile": touch}
    with opened(browser, address, width, height, **options) as page:
        assert (page.evaluate(DARKNESS) > 0.5) == (scheme == "dark")
        page.locator("#prompt textarea").fill(PROMPT)
        press = page.locator("#generate").tap if touch else page.locator("#generate").click
        press()
        wait_for_pictures(page)
        page.get_by_role("button", name=i18n.ADVANCED).click()
        open_picture(page)
        assert width_needed(page) == width


@pytest.mark.parametrize("language", ["es", pytest.param("fr", marks=pytest.mark.slow)])
def test_visitors_are_answered_in_their_own_language(browser: Browser, address: str, language: str):
    with opened(browser, address, locale=language) as page, i18n.speaking(language):
        expect(page.locator("html")).to_have_attribute("lang", language)
        expect(page.locator("#generate")).to_have_text(i18n.GENERATE)
        page.locator("#generate").click()
        blank = i18n.translate(Message(Code.BLANK_PROMPT))
        expect(page.get_by_role("alert")).to_have_text(blank)
        ask_after_a_refusal(page, "a gun")
        expect(page.get_by_role("alert")).to_have_text(re.compile(r"\Wgun\W"))
        ask_after_a_refusal(page, PROMPT)
        # Each language has its own word for pictures and its own decimal mark.
        drawn = re.compile(r"\b4 (imágenes|images)\D* \d+,\d s")
        expect(page.locator("#status")).to_have_text(drawn, timeout=DRAWN_WITHIN_MS)


@pytest.mark.slow
def test_a_blocked_word_is_reported_and_nothing_is_drawn(browser: Browser, address: str):
    with opened(browser, address) as page:
        ask(page, "a red star and a gun")
        said = "“gun” is not allowed here. Leave it out."
        expect(page.get_by_role("alert")).to_have_text(said)
        expect(page.locator("#prompt textarea")).to_have_value("a red star and a gun")
        assert page.locator("#gallery img").count() == 0
        ask_after_a_refusal(page, PROMPT)
        wait_for_pictures(page)


@pytest.mark.slow
def test_the_api_page_describes_the_call(browser: Browser, address: str):
    # Gradio's API page requests files that not every Gradio server has.
    with opened(browser, address, unless="Failed to load resource") as page:
        page.get_by_role("button", name="Use via API").click()
        described = page.locator(".api-docs")
        expect(described).to_contain_text("/generate")
        expect(described).to_contain_text("closely to follow the prompt, 0 to 50")
        expect(described).to_contain_text("Styles: (none), Flat")
        expect(described.get_by_text("API name:")).to_have_count(1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt": " "}, i18n.translate(Message(Code.BLANK_PROMPT))),
        ({"prompt": "x" * 2001}, "Prompt: 2001 characters are too many. The limit is 2000"),
        ({"negative_prompt": "x" * 2001}, "Negative prompt: 2001 .* The limit is 2000"),
        ({"prompt": "a gun"}, "gun. is not allowed here"),
        ({"style": "<b>"}, "Style: <b> is unknown"),
        ({"guidance_scale": 50.5}, "Guidance scale must be 0–50"),
        ({"guidance_scale": "much"}, "Guidance scale must be 0–50"),
        ({"steps": 0}, "Steps must be 1–50"),
        ({"steps": 51}, "Steps must be 1–50"),
        ({"seed": -1}, "Seed must be 0–4294967295"),
        ({"seed": 2**32}, "Seed must be 0–4294967295"),
        ({"guidance_until": 1.5}, "Stop guidance at must be 0–1"),
        ({"variation_strength": -0.1}, "Variation strength must be 0–1"),
        ({"variation_seed": 2**32}, "Variation seed must be 0–4294967295"),
        ({"size": "1x1"}, "1x1"),
    ],
    ids=lambda each: "".join(each) if isinstance(each, dict) else "",
)
def test_programs_get_an_error_that_names_the_wrong_value(
    address: str, values: dict[str, Any], said: str
):
    client: Any = Client(address, verbose=False)  # its own annotations are narrower
    with pytest.raises(AppError, match=said):
        client.predict(**{"prompt": PROMPT} | values, api_name="/generate")


def test_programs_get_an_error_for_a_call_that_is_too_large(address: str):
    client: Any = Client(address, verbose=False)
    with pytest.raises(HTTPStatusError, match="413"):
        client.predict("x" * 10_000_000, api_name="/generate")
