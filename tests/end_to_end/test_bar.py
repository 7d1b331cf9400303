"""The bar of a picture's actions, and the status line."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browsing import (
    DRAWN_WITHIN_MS,
    ask,
    draw_pictures,
    fix_seed,
    opened,
    settle,
    wait_for_pictures,
)
from tests.gated import Gate
from tools.page_states import PROMPT, act, open_picture, walk
from ui import i18n

TILE, BAR = "#gallery .thumbnail-lg", "#tile-bar"
LINE = "#status [data-line]"
TOUCH = "Input.dispatchTouchEvent"


@pytest.mark.slow
def test_a_tile_has_the_bar_while_the_mouse_is_over_it(page: Page):
    draw_pictures(page, PROMPT)
    expect(page.locator(BAR)).to_be_hidden()
    page.locator(TILE).nth(1).hover()
    expect(page.locator(BAR)).to_be_visible()
    tile, bar = page.locator(TILE).nth(1).bounding_box(), page.locator(BAR).bounding_box()
    assert tile
    assert bar
    assert (bar["x"], bar["y"] + bar["height"]) == (tile["x"], tile["y"] + tile["height"])
    for button in page.locator(f"{BAR} > button").all():
        box = button.bounding_box()
        assert box
        assert min(box["width"], box["height"]) >= 44
        assert box["y"] > tile["y"] + 0.8 * tile["height"]  # the subject stays in sight
    page.locator(f"{BAR} [data-act=download]").click()
    with page.expect_download() as download:
        page.locator(BAR).get_by_role("menuitem", name="WebP").click()
    assert download.value.suggested_filename.endswith(".webp")
    expect(page.locator("#gallery .preview")).to_have_count(0)
    page.locator("#prompt").hover()
    expect(page.locator(BAR)).to_be_hidden()


@pytest.mark.slow
def test_a_long_press_lists_what_can_be_done(browser: Browser, address: str):
    with opened(browser, address, 390, 844, has_touch=True, is_mobile=True) as page:
        draw_pictures(page, PROMPT)
        seed = re.search(
            r"Seed (\d+)", page.locator(f"{TILE} img").nth(2).get_attribute("alt") or ""
        )
        assert seed
        box = page.locator(TILE).nth(2).bounding_box()
        assert box
        finger = {"x": box["x"] + 50, "y": box["y"] + 50}
        chromium = page.context.new_cdp_session(page)
        chromium.send(TOUCH, {"type": "touchStart", "touchPoints": [finger]})
        expect(page.locator("#stage > .menu")).to_be_visible()
        chromium.send(TOUCH, {"type": "touchEnd", "touchPoints": []})
        settle(page)
        menu = page.locator("#stage > .menu")
        expect(menu).to_be_visible()
        for name in ("png", "edit", "subtle", "use", "new_seed", "link"):
            expect(menu.locator("[role=menuitem]", has_text=i18n.ACTIONS[name])).to_have_count(1)
        menu.locator("[data-act=strong]").tap()
        expect(menu).to_be_hidden()
        variation = re.compile(f"^Seed {seed[1]}, variation ")
        first = page.locator(f"{TILE} img").first
        expect(first).to_have_attribute("alt", variation, timeout=DRAWN_WITHIN_MS)


@pytest.mark.slow
def test_the_menu_key_lists_them_and_escape_returns_to_the_tile(page: Page):
    draw_pictures(page, PROMPT)
    page.locator(TILE).first.focus()
    page.keyboard.press("ContextMenu")
    menu = page.locator("#stage > .menu")
    expect(menu.locator("[role=menuitem]").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(menu.locator("[role=menuitem]").last).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(page.locator(TILE).first).to_be_focused()


@pytest.mark.slow
def test_a_picture_is_copied(page: Page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    draw_pictures(page, PROMPT)
    open_picture(page)
    act(page, "download", "copy")
    expect(page.locator("#bar [data-act=copy]")).to_have_text(i18n.ACTIONS["copied"])
    kinds = page.evaluate("navigator.clipboard.read().then(([item]) => item.types)")
    assert kinds == ["image/png"]


@pytest.mark.slow
def test_settings_that_were_taken_are_given_back(page: Page):
    draw_pictures(page, PROMPT)
    open_picture(page)
    page.locator("#prompt textarea").fill("a blue ring")
    page.locator("#chip-style").click()
    page.get_by_label(i18n.STYLES["Night"]).check()
    page.keyboard.press("Escape")
    act(page, "use")
    expect(page.locator("#prompt textarea")).to_have_value(PROMPT)
    expect(page.locator(LINE)).to_contain_text(i18n.TAKEN_OVER)
    page.locator("#status [data-do=undo]").click()
    expect(page.locator("#prompt textarea")).to_have_value("a blue ring")
    expect(page.locator("#chip-style")).to_have_text(i18n.STYLES["Night"])
    expect(page.locator("#free-seed")).to_be_hidden()
    expect(page.locator(LINE)).to_be_empty()


@pytest.mark.slow
def test_a_live_picture_is_kept(page: Page):
    fix_seed(page, "7")
    page.locator("#live").click()
    page.locator("#prompt textarea").fill(PROMPT)
    expect(page.locator("#live-picture img")).to_be_visible()
    expect(page.locator(LINE)).to_contain_text(i18n.STATUS["live"])
    page.locator("#status [data-do=keep]").click()
    wait_for_pictures(page)
    expect(page.locator("#live-picture img")).to_have_count(0)
    expect(page.locator(f"{TILE} img").first).to_have_attribute("alt", f"Seed 7: {PROMPT}")


HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { get: () => isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.slow
def test_the_title_has_the_progress_while_the_tab_is_hidden(slow_page: Page, gate: Gate):
    title = slow_page.title()
    ask(slow_page, PROMPT)
    slow_page.wait_for_function("document.querySelector('#status progress')?.value > 0")
    assert slow_page.title() == title
    slow_page.evaluate(HIDE, True)
    expect(slow_page).to_have_title(re.compile(rf"^\d+/\d+ · {re.escape(title)}$"))
    with gate.open():
        expect(slow_page).to_have_title(f"✓ {title}")
    slow_page.evaluate(HIDE, False)
    expect(slow_page).to_have_title(title)


# Shifts that are more than 0.5 s later than a press, as Chromium counts them, and how much later. A
# start picture that appears counts as a press: a slow machine takes seconds to read its file.
SHIFTS = """() => {
  window.shifts = [];
  let pressed = 0;
  for (const press of ["pointerdown", "keydown", "change"]) {
    addEventListener(press, () => { pressed = performance.now(); }, true);
  }
  const ask = document.querySelector("#ask");
  new MutationObserver(() => { pressed = performance.now(); })
    .observe(ask, { attributeFilter: ["data-start"] });
  new PerformanceObserver((list) => {
    for (const { value, sources, hadRecentInput, startTime } of list.getEntries()) {
      const names = sources.map(({ node }) => node?.id || node?.className || node?.nodeName);
      if (!hadRecentInput) shifts.push([value, startTime - pressed, names]);
    }
  }).observe({ type: "layout-shift" });
}"""


@pytest.mark.slow
@pytest.mark.parametrize("phone", [False, True])
def test_no_action_moves_the_page(browser: Browser, slow_address: str, phone: bool):
    width, height = (390, 844) if phone else (1280, 800)
    with opened(browser, slow_address, width, height, has_touch=phone, is_mobile=phone) as page:
        page.evaluate(SHIFTS)
        for state in walk(page, 2):
            settle(page)
            # A busy machine takes more than 0.5 s to show what was pressed, or a file.
            late_ms = 3000 if state in ("start", "compared") else 0
            shifts = page.evaluate("shifts.splice(0)")
            moved = sum(value for value, later_ms, _ in shifts if later_ms > late_ms)
            assert moved < 0.05, (state, shifts)
