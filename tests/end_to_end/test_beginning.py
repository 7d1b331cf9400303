"""The page before the first pictures: examples, and what is pasted or dropped."""

from io import BytesIO

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from pipeline import metadata
from pipeline.images.metadata import Settings
from serving.generator import MAX_CHARACTERS
from tests.browsing import DRAWN_WITHIN_MS, STOPPED, choose_steps, opened, settle, wait_for_pictures
from tools.page_states import open_advanced
from ui import i18n
from ui.samples.examples import examples_for
from ui.samples.model_kind import Kind

CARDS = examples_for(Kind.MINIATURE)
SETTINGS_TEXT = (
    "a yellow moon\nNegative prompt: blurry\nSteps: 20, CFG scale: 7, Seed: 41, Size: 8x8"
)
BOXES = """(parts) => parts.map((part) => {
  const { x, y, width, height } = part.getBoundingClientRect();
  return [x, y + scrollY, width, height].map(Math.round);
})"""

MOVED = """() => new Promise((resolve) => {
  const moves = (list) => list.getEntries().reduce((sum, entry) => sum + entry.value, 0);
  new PerformanceObserver((list) => resolve(moves(list)))
    .observe({ type: "layout-shift", buffered: true });
  setTimeout(() => resolve(0), 1000);
})"""


def drawn(page: Page, prompt: str) -> None:
    """Wait for pictures of the prompt."""
    captions = page.locator("#gallery .caption-label")
    expect(captions.first).to_contain_text(f": {prompt}", timeout=DRAWN_WITHIN_MS)
    wait_for_pictures(page)


@pytest.mark.slow
def test_examples_are_drawn_with_one_press(page: Page):
    prompt, cards = page.locator("#prompt textarea"), page.locator("#cards button")
    assert cards.all_inner_texts() == list(CARDS)
    page.wait_for_function("[...document.querySelectorAll('#cards img')].every((i) => i.width)")
    # Chromium's layout shift: up to 0.1 is called good. Nothing moves while components are mounted.
    assert page.evaluate(MOVED) < 0.02
    places = cards.evaluate_all(BOXES)
    cards.nth(1).focus()
    page.keyboard.press("Enter")
    drawn(page, CARDS[1])
    expect(prompt).to_have_value(CARDS[1])
    pictures = page.locator("#gallery .thumbnail-lg")
    assert pictures.evaluate_all(BOXES) == places
    expect(pictures.nth(1)).to_be_focused()  # in place of the card
    expect(cards.first).to_be_hidden()

    page.get_by_role("button", name=i18n.SURPRISE).dblclick()
    expect(page.locator("#history li")).to_have_count(2)
    drawn(page, prompt.input_value())
    expect(page.locator("#history li")).to_have_count(2)


@pytest.mark.slow
def test_a_surprise_only_fills_in_the_prompt_while_something_is_drawn(slow_page: Page):
    cards = slow_page.locator("#cards button")
    choose_steps(slow_page, 50)
    places = cards.evaluate_all(BOXES)
    cards.first.click()
    previews = slow_page.locator("#previews img")
    expect(previews).to_have_count(4)
    settle(slow_page)
    assert previews.evaluate_all(BOXES) == places  # they lie over the cards
    slow_page.locator("#surprise").click()
    expect(slow_page.locator("#prompt textarea")).not_to_have_value(CARDS[0])
    slow_page.locator("#stop").click()
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#history li")).to_have_count(1)
    expect(slow_page.locator("#history li")).to_contain_text(CARDS[0])


@pytest.mark.slow
@pytest.mark.parametrize("touch", [False, True])
def test_examples_are_easy_to_hit_and_their_focus_is_seen(
    browser: Browser, address: str, touch: bool
):
    width = 360 if touch else 1280
    with opened(browser, address, width, is_mobile=touch, has_touch=touch) as page:
        examples = page.locator("#cards button, #surprise")
        heights = [height for *_, height in examples.evaluate_all(BOXES)]
        assert min(heights) >= (44 if touch else 24)
        assert examples.evaluate_all(OUTLINE_IS_CUT) == []


# Elements whose outline an ancestor would cut off at its left.
OUTLINE_IS_CUT = """(parts) => parts.filter((part) => {
  const left = part.getBoundingClientRect().left - 5;
  for (let around = part.parentElement; around; around = around.parentElement) {
    const clips = getComputedStyle(around).overflowX !== "visible";
    if (clips && around.getBoundingClientRect().left > left) return true;
  }
}).map((part) => part.textContent)"""


def test_settings_in_the_prompt_are_offered_and_used(page: Page):
    prompt, offer = page.locator("#prompt textarea"), page.locator("#use-pasted")
    for ordinary in ("a red star", "Steps: 3", "Steps: many, Seed: none"):
        prompt.fill(ordinary)
        settle(page)
        expect(offer).to_be_hidden()
    prompt.fill("")
    paste(prompt, SETTINGS_TEXT)
    expect(page.locator("#pasted")).to_contain_text(i18n.LOOKS_LIKE_SETTINGS)
    offer.focus()
    page.keyboard.press("Enter")
    expect(prompt).to_have_value("a yellow moon")
    expect(offer).to_be_hidden()
    expect(prompt).to_be_focused()
    expect(page.locator("#status")).to_contain_text(i18n.TAKEN_OVER)
    expect(page.locator("#seed input")).to_have_value("41")
    open_advanced(page)
    expect(page.locator("#negative textarea")).to_have_value("blurry")
    expect(page.locator("#steps input[type=number]")).to_have_value("20")


@pytest.mark.slow
def test_pasted_settings_that_the_prompt_would_cut_off_are_read_in_the_panel(page: Page):
    paste(page.locator("#prompt textarea"), "red " * (MAX_CHARACTERS // 4) + SETTINGS_TEXT)
    expect(page.locator("#restored dd").nth(1)).to_have_text("blurry")
    expect(page.locator("#restore-use")).to_be_in_viewport()
    expect(page.locator("#prompt textarea")).to_have_value("")


def paste(where: Locator, text: str | None = None, png: bytes | None = None) -> None:
    """Paste into an element, like a browser: a text field gets the text unless a script does."""
    where.evaluate(
        """(part, [text, png]) => {
          const clipboardData = new DataTransfer();
          if (text !== null) clipboardData.setData("text/plain", text);
          if (png) {
            const file = new File([new Uint8Array(png)], "image.png", { type: "image/png" });
            clipboardData.items.add(file);
          }
          const pasted = new ClipboardEvent(
            "paste", { clipboardData, bubbles: true, cancelable: true });
          part.focus();
          if (part.dispatchEvent(pasted) && text !== null) {
            document.execCommand("insertText", false, text);
          }
        }""",
        [text, None if png is None else list(png)],
    )


@pytest.mark.slow
def test_a_picture_can_be_pasted_anywhere(browser: Browser, address: str):
    picture, file = Image.new("RGB", (8, 8)), BytesIO()
    metadata.attach(picture, Settings("a yellow moon", "", seed=41, num_inference_steps=12))
    metadata.save_png(picture, file)
    png = file.getvalue()
    with opened(browser, address, 360) as page:
        found, prompt = page.locator("#restored"), page.locator("#prompt textarea")
        restore = page.locator("#edit [data-do=restore]")
        paste(prompt, "a red star", png)  # as programs for tables do: the text counts
        expect(prompt).to_have_value("a red star")
        expect(page.locator("#panel-picture")).to_be_hidden()
        for where in (page.locator("body"), prompt):
            paste(where, png=png)
            expect(found.locator("dd").first).to_have_text("a yellow moon")
            expect(restore).to_have_text(i18n.RESTORE_ITS_SETTINGS)
            expect(restore).to_be_in_viewport()
            expect(prompt).to_have_value("a red star")
            paste(where, png=b"no picture")
            expect(found).to_have_text(i18n.UNREADABLE_PICTURE)
            expect(found).to_be_in_viewport()
        paste(prompt, png=png)
        restore.click()
        expect(prompt).to_have_value("a yellow moon")
