"""Settings, links and history that the page keeps, in a real browser with the real model."""

import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, expect

from pipeline import metadata
from pipeline.images.metadata import Settings
from tests.browsing import (
    DRAWN_WITHIN_MS,
    ask_after_a_refusal,
    await_answer,
    await_focus_on_picture,
    fix_seed,
    keep_history,
    opened,
    opening,
    press_to_copy,
    wait_for_pictures,
    width_needed,
)
from tools.page_states import open_advanced, open_picture
from ui import i18n

PROMPT = "a red star"
# Types the prompt as soon as its field is there.
TYPE_AT_ONCE = f"""new MutationObserver((_, observer) => {{
  const field = document.querySelector("#prompt textarea");
  if (!field) return;
  observer.disconnect();
  field.value = "{PROMPT}";
  field.dispatchEvent(new Event("input", {{ bubbles: true }}));
}}).observe(document, {{ subtree: true, childList: true }});"""


def draw(page: Page, prompt: str = PROMPT) -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.keyboard.press("ControlOrMeta+Enter")
    caption = page.locator("#gallery .caption-label").first
    expect(caption).to_contain_text(f": {prompt}", timeout=DRAWN_WITHIN_MS)
    wait_for_pictures(page)


# --- links ---


@pytest.mark.slow
def test_a_link_is_copied_and_fills_a_page(page: Page, browser: Browser):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    draw(page, "a <b>red</b> star & more")
    open_picture(page, 1)
    seed = page.locator("#picked-settings dd").nth(1)
    expect(seed).not_to_be_empty()
    page.locator("#bar [data-act=more]").click()
    press_to_copy(page.locator("#bar [data-act=link]"))
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{page.url}?prompt=a%20%3Cb%3E")

    with opened(browser, link, 390, 844, color_scheme="dark") as other:
        expect(other.locator("#prompt textarea")).to_have_value("a <b>red</b> star & more")
        expect(other.locator("#status")).to_contain_text(i18n.TAKEN_OVER)
        assert other.locator("#gallery img").count() == 0  # a link alone draws nothing
        assert width_needed(other) == 390
        open_advanced(other)
        expect(other.locator("#seed input")).to_have_value(seed.inner_text())
        expect(other.locator("#randomise input")).not_to_be_checked()
        other.locator("#generate").click()
        wait_for_pictures(other, 1)
        caption = other.locator("#gallery .caption-label").first
        expect(caption).to_contain_text(f"Seed {seed.inner_text()}")


@pytest.mark.slow
def test_a_broken_link_says_so_and_the_rest_of_it_is_used(browser: Browser, address: str):
    query = "?prompt=a+moon&style=%3Cimg+src%3Dx%3E&steps=7&seed=many&guidance_scale=99"
    with opened(browser, address + query) as page:
        expect(page.locator("#prompt textarea")).to_have_value("a moon")
        said = page.locator("#status .warning")
        expect(said).to_contain_text("Style: <img src=x> is unknown")
        expect(said).to_contain_text("Seed: many is not a valid number")
        expect(said).to_contain_text("Guidance scale: 99.0 isn’t possible here, using 20.")
        open_advanced(page)
        expect(page.locator("#steps input[type=number]")).to_have_value("7")
        expect(page.locator("#randomise input")).to_be_checked()


@pytest.mark.slow
def test_words_typed_before_a_link_is_read_stay(page: Page, address: str):
    page.add_init_script(TYPE_AT_ONCE)
    page.goto(f"{address}/?steps=2")
    expect(page.locator("#status")).to_contain_text(i18n.TAKEN_OVER)
    expect(page.locator("#prompt textarea")).to_have_value(PROMPT)
    open_advanced(page)
    expect(page.locator("#steps input[type=number]")).to_have_value("2")


# --- a picture for each line ---


@pytest.mark.slow
def test_enter_begins_a_line_from_the_very_next_key_on(page: Page):
    open_advanced(page)
    held: list[Route] = []  # holds back the server's answers
    page.route("**/gradio_api/**", lambda route: held.append(route))
    page.get_by_label(i18n.SETTINGS["several"].label).check()
    page.locator("#prompt textarea").focus()
    expect(page.locator("#prompt textarea")).to_have_attribute("rows", "4")
    page.keyboard.type("a moon\na star")
    expect(page.locator("#prompt textarea")).to_have_value("a moon\na star")
    for request in held:
        request.continue_()


# --- the tab ---


def opens(page: Page, how: Callable[[], object]) -> None:
    """Open the page in some way, and wait until its first requests are answered."""
    with opening(page):
        how()


@pytest.mark.slow
def test_what_is_typed_and_chosen_survives_in_its_tab(page: Page, address: str):
    prompt, steps = page.locator("#prompt textarea"), page.locator("#steps input[type=number]")
    prompt.fill("a moon\na star")
    page.locator("#chip-style").click()
    page.locator("#style input").nth(1).check()
    page.keyboard.press("Escape")
    open_advanced(page)
    fix_seed(page, "41")
    steps.fill("3")
    page.get_by_label(i18n.SETTINGS["several"].label).check()

    def expect_kept() -> None:
        expect(prompt).to_have_value("a moon\na star")
        expect(prompt).to_have_attribute("rows", "4")
        expect(page.locator("#style input").nth(1)).to_be_checked()
        open_advanced(page)
        expect(page.locator("#seed input")).to_have_value("41")
        expect(steps).to_have_value("3")
        expect(page.get_by_label(i18n.SETTINGS["several"].label)).to_be_checked()
        expect(page.locator("#randomise input")).not_to_be_checked()

    page.route("**/gradio_api/**", lambda route: None)  # holds back the server's answers
    page.reload()
    expect(prompt).to_have_value("a moon\na star")
    expect(prompt).to_be_focused()
    page.unroute("**/gradio_api/**")
    opens(page, page.reload)
    expect_kept()
    page.goto(f"{address}/healthz")
    opens(page, page.go_back)
    expect_kept()
    opens(page, lambda: page.goto(f"{address}/"))
    expect_kept()


@pytest.mark.slow
def test_a_link_comes_first_only_when_it_is_opened(page: Page, address: str):
    prompt = page.locator("#prompt textarea")
    link = f"{address}/?prompt=a%20yellow%20moon&steps=2"
    draw(page)
    opens(page, lambda: page.goto(link))
    expect(prompt).to_have_value("a yellow moon")
    expect(page.locator("#status")).to_contain_text(i18n.TAKEN_OVER)
    await_answer(page)
    assert page.locator("#gallery img").count() == 0  # the tab's pictures are not the link's
    prompt.fill("a yellow moon and a star")
    opens(page, page.reload)
    expect(prompt).to_have_value("a yellow moon and a star")
    opens(page, page.go_back)
    expect(prompt).to_have_value(PROMPT)
    expect(page.locator("#gallery .caption-label").first).to_contain_text(PROMPT)
    opens(page, page.go_forward)
    expect(prompt).to_have_value("a yellow moon and a star")
    opens(page, lambda: page.goto(link))
    expect(prompt).to_have_value("a yellow moon")


@pytest.mark.slow
def test_values_that_the_page_no_longer_offers_are_not_restored(page: Page):
    kept = {"prompt": 7, "style": "gone", "images": 99, "guidance_scale": 1e9, "steps": 3}
    page.evaluate("kept => sessionStorage.setItem('sdxl-draft /?', JSON.stringify(kept))", kept)
    opens(page, page.reload)
    draw(page)
    open_advanced(page)
    expect(page.locator("#steps input[type=number]")).to_have_value("3")
    expect(page.locator("#guidance input[type=number]")).to_have_value("5")
    page.evaluate("sessionStorage.setItem('sdxl-draft /?', '[{')")
    opens(page, page.reload)
    expect(page.locator("#prompt textarea")).to_have_value("")


@pytest.mark.slow
def test_each_tab_shows_its_own_pictures_again(page: Page):
    draw(page, "a red star")
    other = page.context.new_page()
    opens(other, lambda: other.goto(page.url))
    expect(other.locator("#history-open")).to_be_visible()  # the history is the browser's
    expect(other.locator("#history [role=toolbar] button")).to_have_count(0)
    await_answer(other)
    assert other.locator("#gallery img").count() == 0
    draw(other, "a yellow moon")
    for tab, prompt in ((page, "a red star"), (other, "a yellow moon")):
        opens(tab, tab.reload)
        expect(tab.locator("#gallery .caption-label").first).to_contain_text(prompt)
        expect(tab.locator("#history [role=toolbar] button")).to_have_count(1)


# --- Back ---


@pytest.mark.slow
def test_back_closes_an_open_picture(page: Page):
    draw(page)
    preview, large = page.locator("#gallery .preview"), page.locator("#gallery .thumbnail-lg")
    large.nth(2).click()
    page.wait_for_function("history.state")
    await_focus_on_picture(page)
    page.keyboard.press("ArrowRight")
    page.go_back()
    expect(preview).to_have_count(0)
    expect(page.locator("#picked")).to_be_hidden()
    expect(page.locator("#prompt textarea")).to_have_value(PROMPT)
    page.go_forward()
    expect(preview).to_have_count(1)
    expect(page.locator("#gallery .thumbnail-small").nth(2)).to_contain_class("selected")
    page.keyboard.press("Escape")  # leaves no entry behind that Back would have to pass
    page.wait_for_function("!history.state")
    expect(preview).to_have_count(0)
    before = page.evaluate("history.length")
    large.first.click()
    page.wait_for_function("history.state")
    assert page.evaluate("history.length") == before


@pytest.mark.slow
def test_a_reload_with_an_open_picture_leaves_no_dead_entry(page: Page):
    draw(page)
    page.locator("#gallery .thumbnail-lg").first.click()
    page.wait_for_function("history.state")
    opens(page, page.reload)
    page.wait_for_function("!history.state")
    expect(page.locator("#gallery .caption-label").first).to_contain_text(PROMPT)


# --- history ---


def note(page: Page) -> Locator:
    return page.locator("#history [data-note]")


@pytest.mark.slow
def test_a_filmstrip_leads_back_to_earlier_requests_of_the_visit(page: Page):
    film, current = page.locator("#history [role=toolbar] button"), ("aria-current", "true")
    draw(page, "a red star")
    drawn = page.locator("#gallery .caption-label").all_inner_texts()
    expect(film).to_have_count(1)
    draw(page, "a yellow moon")
    expect(film).to_have_count(2)
    expect(film.first).to_have_accessible_name("a yellow moon")
    expect(film.first).to_have_attribute("title", "a yellow moon")
    expect(film.first).to_have_attribute(*current)
    expect(film.first.locator("img")).to_have_js_property("naturalWidth", 4 * 96)
    page.locator("#prompt textarea").fill("my own words")
    film.nth(1).scroll_into_view_if_needed()
    film.nth(1).click()
    expect(page.locator("#gallery .caption-label").first).to_have_text(drawn[0])
    expect(page.locator("#gallery .thumbnail-lg").first).to_be_in_viewport(ratio=0.9)
    expect(page.locator("#prompt textarea")).to_have_value("my own words")
    expect(film.nth(1)).to_have_attribute(*current)
    expect(film.nth(1)).to_be_focused()
    expect(page.locator("#history [data-detail] img")).to_be_hidden()
    opens(page, page.reload)
    expect(film).to_have_count(2)


@pytest.mark.slow
def test_history_shows_pictures_and_gives_settings_until_it_is_cleared(page: Page):
    history, detail = page.locator("#history"), page.locator("#history [data-detail]")
    expect(page.locator("#history-open")).to_be_hidden()
    draw(page, "<img src=x onerror=alert(1)> a moon")
    drawn = page.locator("#gallery .caption-label").all_inner_texts()
    entries = history.locator("li button")
    expect(entries.first).to_be_hidden()  # the grid is closed
    expect(entries.locator("img")).to_have_count(1)
    draw(page, "a star")

    page.reload()
    expect(page.locator("#gallery .caption-label").first).to_contain_text("a star")
    expect(page.locator("#prompt textarea")).to_have_value("a star")
    history.get_by_role("button", name=i18n.HISTORY, exact=True).focus()
    page.keyboard.press("Enter")
    expect(entries.locator("img")).to_have_count(2)
    expect(entries.first).to_have_attribute("data-count", "4")
    expect(entries.nth(1)).to_have_attribute("title", "<img src=x onerror=alert(1)> a moon")
    expect(detail).to_be_hidden()
    entries.nth(1).focus()
    page.keyboard.press("Enter")
    expect(detail.locator("[data-prompt]")).to_have_text("<img src=x onerror=alert(1)> a moon")
    expect(detail.locator("small")).to_contain_text("Steps ")
    expect(page.locator("#gallery .caption-label").first).to_have_text(drawn[0])
    assert page.locator("#gallery .caption-label").all_inner_texts() == drawn
    expect(page.locator("#prompt textarea")).to_have_value("a star")
    expect(page.locator("#status")).not_to_contain_text(i18n.TAKEN_OVER)

    detail.get_by_role("button", name=i18n.USE_SETTINGS).click()
    expect(page.locator("#prompt textarea")).to_have_value("<img src=x onerror=alert(1)> a moon")
    expect(page.locator("#status")).to_contain_text(i18n.TAKEN_OVER)
    open_advanced(page)
    expect(page.locator("#seed input")).to_have_value(drawn[0].split()[1].rstrip(":"))
    expect(page.locator("#randomise input")).not_to_be_checked()

    history.get_by_role("button", name=i18n.CLEAR_HISTORY).click()
    expect(entries).to_have_count(0)
    undo = note(page).get_by_role("button", name=i18n.UNDO)
    expect(undo).to_be_focused()
    expect(note(page)).to_contain_text(i18n.HISTORY_CLEARED, use_inner_text=True)
    page.keyboard.press("Enter")
    expect(entries.locator("img")).to_have_count(2)
    expect(history.locator("[role=toolbar] button")).to_have_count(2)
    expect(undo).to_be_hidden()

    page.locator("#history-open").click()
    history.get_by_role("button", name=i18n.CLEAR_HISTORY).click()
    page.reload()
    expect(page.locator("#gallery .caption-label").first).to_be_visible()
    expect(page.locator("#history-open")).to_be_hidden()
    assert page.evaluate("Object.keys(localStorage).filter((key) => /history/.test(key))") == []


ENTRY = {"link": "?prompt=a%20moon&steps=3", "said": "Seed 7"}


@pytest.mark.slow
def test_favourites_are_bounded_and_stay(page: Page):
    favourites = {f"f{i}": ENTRY | {"id": f"f{i}", "at": i, "favourite": True} for i in range(100)}
    others = {f"i{i}": ENTRY | {"id": f"i{i}", "at": 1000 + i} for i in range(30)}
    keep_history(page, favourites | others)
    opens(page, page.reload)
    entries, keep = page.locator("#history li button"), page.locator("#history [data-keep]")
    draw(page)  # takes the place of the oldest that is no favourite
    expect(entries).to_have_count(130)
    page.locator("#history-open").click()
    entries.nth(1).click()
    keep.click()
    expect(note(page)).to_contain_text(i18n.FAVOURITES_FULL)
    expect(note(page).get_by_role("button", name=i18n.UNDO)).to_be_hidden()
    expect(keep).to_have_attribute("aria-pressed", "false")
    entries.last.click()
    keep.click()
    expect(keep).to_have_attribute("aria-pressed", "false")
    clear = page.get_by_role("button", name=i18n.CLEAR_HISTORY)
    expect(clear).to_contain_text(i18n.FAVOURITES_STAY)
    clear.click()
    expect(entries).to_have_count(99)
    expect(entries.first).to_have_accessible_name(f"a moon, {i18n.FAVOURITE}")


@pytest.mark.slow
def test_an_entry_is_deleted_and_brought_back(page: Page):
    keep_history(page, {f"i{i}": ENTRY | {"id": f"i{i}", "at": i} for i in range(3)})
    opens(page, page.reload)
    page.locator("#history-open").click()
    entries = page.locator("#history li button")
    entries.nth(1).click()
    page.locator("#history [data-delete]").click()
    expect(entries).to_have_count(2)
    expect(page.locator("#history [data-detail]")).to_be_hidden()
    expect(note(page)).to_contain_text(i18n.ENTRY_DELETED)
    page.get_by_role("button", name=i18n.UNDO).click()
    expect(entries).to_have_count(3)
    page.locator("#history [data-delete]").click()
    page.get_by_role("button", name=i18n.CLOSE, exact=True).click()
    expect(note(page)).to_be_hidden()
    opens(page, page.reload)
    expect(entries).to_have_count(2)


# Calls the history of the page by the name of a function.
OF_HISTORY = """async ([name, ...values]) => {
  const links = [...document.querySelectorAll("link[rel=modulepreload]")].map(({ href }) => href);
  const { appOf } = await import(links.find((href) => href.endsWith("static/app.js")));
  return appOf(document.querySelector("#prompt")).history[name](...values);
}"""


def delete_picture(page: Page, index: int) -> None:
    key = page.locator("#picture-texts article").nth(index).get_attribute("data-key")
    page.evaluate(OF_HISTORY, ["remove", key])


@pytest.mark.slow
def test_one_picture_is_deleted_and_stays_away_until_undo(page: Page):
    draw(page, "a yellow moon")
    pictures, captions = page.locator("#gallery .thumbnail-lg"), page.locator(".caption-label")
    film = page.locator("#history [role=toolbar] img")
    expect(film).to_have_count(1)
    drawn = captions.all_inner_texts()
    pictures.nth(1).click()
    delete_picture(page, 1)
    expect(pictures).to_have_count(3)
    expect(page.locator("#gallery .preview .caption")).to_have_text(drawn[2])  # the next one
    expect(film).to_have_js_property("naturalWidth", 3 * 96)
    expect(note(page)).to_contain_text(i18n.PICTURE_DELETED)
    page.get_by_role("button", name=i18n.UNDO).click()
    expect(pictures).to_have_count(4)
    expect(film).to_have_js_property("naturalWidth", 4 * 96)

    for left in (3, 2):
        delete_picture(page, 1)
        expect(page.locator("#picture-texts article")).to_have_count(left)
    expect(film).to_have_js_property("naturalWidth", 2 * 96)
    opens(page, page.reload)
    expect(captions).to_have_text([drawn[0], drawn[3]], use_inner_text=True)
    draw(page, "a red star")
    page.locator("#history [role=toolbar] button").nth(1).click()
    expect(captions).to_have_text([drawn[0], drawn[3]], use_inner_text=True)

    page.evaluate(OF_HISTORY, ["toggleKept"])
    assert page.evaluate(OF_HISTORY, ["isKept"])
    for left in (1, 0):
        delete_picture(page, 0)
        expect(page.locator("#picture-texts article")).to_have_count(left)
    expect(page.locator("#history li")).to_have_count(1)
    expect(page.locator("#cards")).to_be_visible()
    page.get_by_role("button", name=i18n.UNDO).click()
    expect(page.locator("#history li")).to_have_count(2)
    expect(captions).to_have_text([drawn[3]], use_inner_text=True)


@pytest.mark.slow
def test_a_deleted_picture_is_the_one_that_was_chosen_in_every_tab(page: Page):
    draw(page, "a yellow moon")
    captions, texts = page.locator(".caption-label"), page.locator("#picture-texts article")
    drawn = captions.all_inner_texts()
    with page.context.new_page() as other:
        other.goto(page.url)
        other.locator("#history-open").click()
        other.locator("#history li button").first.click()
        expect(other.locator("#picture-texts article")).to_have_count(4)
        delete_picture(page, 0)
        expect(texts).to_have_count(3)
        delete_picture(other, 1)
        expect(other.locator("#picture-texts article")).to_have_count(2)
    opens(page, page.reload)
    expect(captions).to_have_text(drawn[2:], use_inner_text=True)


@pytest.mark.slow
def test_undo_brings_back_a_picture_alone(page: Page):
    draw(page, "a yellow moon")
    texts = page.locator("#picture-texts article")
    undo = page.get_by_role("button", name=i18n.UNDO)
    expect(page.locator("#history [role=toolbar] img")).to_have_count(1)
    delete_picture(page, 0)
    expect(texts).to_have_count(3)
    page.evaluate(OF_HISTORY, ["toggleKept"])
    undo.click()
    expect(texts).to_have_count(4)
    assert page.evaluate(OF_HISTORY, ["isKept"])
    page.locator("#history [role=toolbar] button").click()
    page.locator("#history [data-delete]").click()
    page.get_by_role("button", name=i18n.CLOSE, exact=True).click()
    delete_picture(page, 0)
    expect(texts).to_have_count(3)
    undo.click()
    expect(texts).to_have_count(4)
    delete_picture(page, 0)
    expect(texts).to_have_count(3)
    opens(page, page.reload)
    expect(page.locator("#cards")).to_be_visible()  # rather than what was deleted


@pytest.mark.slow
def test_the_next_request_ends_the_chance_to_undo(page: Page):
    keep_history(page, {"i": {"id": "i", "link": "?prompt=a%20moon", "said": "Seed 7", "at": 1}})
    opens(page, page.reload)
    page.locator("#history-open").click()
    page.get_by_role("button", name=i18n.CLEAR_HISTORY).click()
    undo = page.get_by_role("button", name=i18n.UNDO)
    expect(undo).to_be_visible()
    draw(page)
    expect(undo).to_be_hidden()
    expect(page.locator("#history li")).to_have_count(1)


@pytest.mark.slow
def test_history_is_one_browsers_own_bounded_and_no_wider_than_a_phone(
    browser: Browser, address: str
):
    link = "?prompt=" + "w" * 300
    entries = {f"i{i}": {"id": f"i{i}", "link": link, "said": "Seed 7", "at": i} for i in range(40)}
    with opened(browser, address, 390, 844, color_scheme="dark") as page:
        keep_history(page, entries)
        draw(page)
        page.locator("#history-open").click()
        expect(page.locator("#history li")).to_have_count(30)
        assert width_needed(page) == 390
        page.locator("#history li button").nth(1).click()  # its pictures are gone by now
        expect(page.locator("#history [data-prompt]")).to_have_text("w" * 300)
        expect(page.locator("#history [data-detail]")).to_contain_text(i18n.NOT_KEPT)
        expect(page.locator("#prompt textarea")).to_have_value(PROMPT)
        expect(page.locator("#gallery .thumbnail-lg")).to_have_count(4)
        assert width_needed(page) == 390
    with opened(browser, address) as other:  # another visitor's browser
        expect(other.locator("#history-open")).to_be_hidden()
        expect(other.locator("#history")).to_contain_text(i18n.HISTORY_EMPTY)


@pytest.mark.slow
def test_a_browser_whose_storage_holds_nonsense(browser: Browser, address: str):
    with opened(browser, address) as page:
        page.evaluate("localStorage.setItem('sdxl-history x', '[1, null, {\"link\": 2}, {')")
        with opening(page):
            page.reload()
        draw(page)
        expect(page.locator("#history li")).to_have_count(1)


# --- files ---


def saved(page: Page, what: Locator, folder: Path) -> Path:
    with page.expect_download() as download:
        what.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


FILES = ("PNG", "JPEG", "WebP")


def saved_as(page: Page, kind: str, folder: Path) -> Path:
    """Download the opened picture as a file of this kind."""
    page.locator("#bar [data-act=download]").click()
    return saved(page, page.get_by_role("menuitem", name=kind), folder)


@pytest.mark.slow
def test_every_kind_of_file_restores_and_without_settings_none_does(page: Page, tmp_path: Path):
    draw(page)
    page.locator("#gallery .thumbnail-lg").first.click()
    files = [saved_as(page, kind, tmp_path) for kind in FILES]
    for path, kind in zip(files, ("PNG", "JPEG", "WEBP"), strict=True):
        found = metadata.read(path)
        assert found is not None
        assert found.prompt == PROMPT
        with Image.open(path) as picture:
            assert picture.format == kind
    page.locator("#chip-picture").click()
    page.locator("#restore-picture input[type=file]").set_input_files(files[2])
    expect(page.locator("#restored dd").first).to_have_text(PROMPT)
    page.locator("#edit [data-do=done]").click()

    open_advanced(page)
    page.get_by_label(i18n.EMBED).uncheck()
    expect(page.locator("#picked")).to_be_hidden()
    page.locator("#gallery .thumbnail-lg").first.click()
    for kind in FILES:
        assert metadata.read(saved_as(page, kind, tmp_path)) is None
    page.reload()
    page.locator("#gallery .thumbnail-lg").first.click()
    assert metadata.read(saved_as(page, "PNG", tmp_path)) is None
    page.get_by_label("Close").first.click()
    draw(page, "a moon")
    everything = saved(page, page.get_by_label("Download all"), tmp_path)
    with zipfile.ZipFile(everything) as files:
        assert len(files.namelist()) == 4
        for name in files.namelist():
            assert metadata.read(Path(files.extract(name, tmp_path))) is None
    open_advanced(page)
    expect(page.get_by_label(i18n.EMBED)).not_to_be_checked()
    page.locator("#gallery .thumbnail-lg").first.click()
    expect(page.locator("#picked")).to_be_visible()
    page.get_by_label(i18n.EMBED).check()
    expect(page.locator("#picked")).to_be_hidden()
    page.locator("#gallery .thumbnail-lg").first.click()
    assert metadata.read(saved_as(page, "PNG", tmp_path)) is not None


@pytest.mark.slow
def test_hostile_pictures_are_refused_or_shown_as_text(page: Page, tmp_path: Path):
    hostile = '<img src=x onerror="document.title = 1">'
    picture = Image.new("RGB", (8, 8))
    metadata.attach(
        picture,
        Settings(
            hostile,
            hostile,
            seed=1,
            num_inference_steps=2,
            guidance_scale=3.0,
            width=8,
            height=8,
            model=hostile,
        ),
    )
    metadata.save_png(picture, tmp_path / "made.png")
    jpeg = metadata.converted((tmp_path / "made.png").read_bytes(), "JPEG")
    (tmp_path / "made.jpg").write_bytes(jpeg)
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    (tmp_path / "damaged.webp").write_bytes(b"RIFF" + bytes(99))
    page.locator("#chip-picture").click()
    place = page.locator("#restore-picture input[type=file]")
    expect(page.locator("#start [data-start][data-ready]")).to_be_attached()
    for name, said in (
        ("huge.png", i18n.TOO_LARGE_A_PICTURE),
        ("damaged.webp", i18n.UNREADABLE_PICTURE),
    ):
        place.set_input_files(tmp_path / name)
        expect(page.locator("#restored")).to_have_text(said)
    place.set_input_files(tmp_path / "made.jpg")
    expect(page.locator("#restored dd").first).to_have_text(hostile)
    assert page.locator("#restored img").count() == 0
    assert page.title() != "1"


# --- haste ---


@pytest.mark.slow
def test_two_hundred_clicks_are_one_request(page: Page):
    page.locator("#prompt textarea").fill(PROMPT)
    page.locator("#generate").evaluate(
        "button => { for (let i = 0; i < 200; i++) button.click(); }"
    )
    wait_for_pictures(page)
    expect(page.locator("#history li")).to_have_count(1)
    draw(page, "a moon")  # drawing still works
    expect(page.locator("#history li")).to_have_count(2)


@pytest.mark.slow
def test_a_press_right_after_the_pictures_takes_effect(page: Page):
    page.locator("#prompt textarea").fill(PROMPT)
    page.evaluate(
        """async () => {
          const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));
          const said = () => document.getElementById("status").textContent;
          document.getElementById("generate").click();
          while (!said().includes("4 pictures in")) await pause(5);
          while (!document.getElementById("generate")) await pause(5);
          document.getElementById("generate").click();
        }"""
    )
    expect(page.locator("#history li")).to_have_count(2)


# --- invalid input ---


@pytest.mark.slow
def test_a_slider_takes_what_is_next_to_it(page: Page):
    open_advanced(page)
    for field, typed, becomes in (("#steps", "99", "50"), ("#guidance", "-3", "0")):
        number = page.locator(f"{field} input[type=number]")
        number.fill(typed)
        page.keyboard.press("Tab")
        expect(number).to_have_value(becomes)


@pytest.mark.slow
def test_an_impossible_seed_is_reported(page: Page):
    open_advanced(page)
    randomise = page.locator("#randomise input")
    expect(randomise).to_be_checked()
    fields = (
        ("#seed", i18n.SETTINGS["seed"].label),
        ("#variation-seed", i18n.SETTINGS["variation_seed"].label),
    )
    page.locator("#chip-seed").click()
    for typed, (field, label) in product(("-1", "4294967296", "1e30"), fields):
        page.locator(f"{field} input").fill(typed)
        ask_after_a_refusal(page, PROMPT)
        expect(page.get_by_role("alert")).to_have_text(f"{label} must be 0–4294967295.")
        expect(page.locator("#prompt textarea")).to_have_value(PROMPT)
        page.locator(f"{field} input").fill("7")
    expect(randomise).not_to_be_checked()  # a seed that is typed is meant
    page.locator("#seed input").fill("1.5")
    ask_after_a_refusal(page, PROMPT)
    expect(page.get_by_role("alert")).to_contain_text("1.5 is not a whole number")
    page.locator("#seed input").fill("")
    expect(randomise).to_be_checked()


@pytest.mark.slow
def test_ten_million_characters_are_a_message(browser: Browser, address: str):
    page = browser.new_page()  # its console logs the refusal, which `opened` would report
    page.set_default_timeout(DRAWN_WITHIN_MS)
    page.goto(address)
    page.locator("#prompt textarea").evaluate(
        """field => {
          field.value = "x".repeat(10_000_000);  // past what the field lets one type
          field.dispatchEvent(new Event("input", { bubbles: true }));
        }"""
    )
    page.locator("#generate").click()
    said = page.get_by_text("The limit is 256 KiB.")
    expect(said.first).to_be_visible(timeout=DRAWN_WITHIN_MS)
    ask_after_a_refusal(page, PROMPT)
    wait_for_pictures(page)
    page.close()
