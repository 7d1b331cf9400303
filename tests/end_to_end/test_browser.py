"""The real program with a real model, as a visitor uses it in a real browser."""

import json
import re
import urllib.request
import zipfile
from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from openai import OpenAI
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, Page, expect

from benchmarks.processes import ROOT, stand_in
from pipeline import BUNDLED, metadata
from pipeline.images.metadata import Settings
from serving.messages import Code, Message
from tests.browsing import (
    DRAWN_WITHIN_MS,
    STOPPED,
    ask,
    ask_after_a_refusal,
    await_answer,
    choose_steps,
    draw_pictures,
    drop,
    fix_seed,
    keep_history,
    opened,
    opening,
    press_to_copy,
    wait_for_pictures,
)
from tests.web import STEPS, served
from tools.page_states import PROMPT, THREE_FRAMES, act, open_advanced, open_picture
from ui import i18n

BLACK = "rgb(0, 0, 0)"


def test_from_a_prompt_to_a_saved_picture(page: Page, tmp_path: Path):
    expect(page.locator("#prompt textarea")).to_be_focused()
    page.keyboard.type(PROMPT)
    page.keyboard.press("Enter")
    wait_for_pictures(page)

    page.locator("#chip-seed").click()
    seed = int(page.locator("#seed input").input_value())
    captions = page.locator("#gallery .caption-label").all_inner_texts()
    assert captions == [f"Seed {(seed + i) % 2**32}: {PROMPT}" for i in range(4)]
    assert page.locator("#gallery img").first.get_attribute("alt") == captions[0]

    page.locator("#gallery .thumbnail-lg").first.click()
    with page.expect_download() as download:
        page.locator("#bar [data-act=download]").click()
        page.locator("#bar").get_by_role("menuitem", name="PNG").click()
    assert download.value.suggested_filename == f"a-large-red-star-on-a-blue-background-{seed}.png"
    saved = tmp_path / "saved.png"
    download.value.save_as(saved)
    settings = metadata.read(saved)
    assert settings is not None
    assert (settings.prompt, settings.negative_prompt) == (PROMPT, "")
    assert (settings.seed, settings.num_inference_steps) == (seed, STEPS)
    assert settings.guidance_scale == 5.0
    assert settings.model == BUNDLED.name


def test_a_picture_opened_and_its_settings_used(page: Page):
    draw_pictures(page, PROMPT)
    open_picture(page)
    seeds = page.locator("#picked-settings dd").nth(1)
    expect(seeds).to_have_text(re.compile(r"\d+"))
    first = int(seeds.inner_text())
    page.keyboard.press("ArrowRight")
    second = str((first + 1) % 2**32)
    expect(seeds).to_have_text(second)
    open_advanced(page)
    act(page, "use")
    expect(page.locator("#status")).to_contain_text(i18n.TAKEN_OVER)
    expect(page.locator("#seed input")).to_have_value(second)
    expect(page.locator("#randomise input")).not_to_be_checked()

    act(page, "more", "new_seed")
    expect(page.locator("#picked")).to_be_hidden()
    wait_for_pictures(page)
    assert page.locator("#seed input").input_value() not in (str(first), second)
    expect(page.locator("#steps input[type=number]")).to_have_value(str(STEPS))

    with page.expect_download() as download:
        page.get_by_label("Download all").click()
    with zipfile.ZipFile(download.value.path()) as all_of_them:
        assert len(all_of_them.namelist()) == 4
        assert all(name.endswith(".png") for name in all_of_them.namelist())


@pytest.mark.slow
def test_copied_settings_restore(page: Page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    draw_pictures(page, PROMPT)
    open_picture(page)
    press_to_copy(page.get_by_role("button", name=i18n.COPY_SETTINGS))
    page.locator("#chip-picture").click()
    page.locator("#restore-text textarea").focus()
    page.keyboard.press("ControlOrMeta+V")
    expect(page.locator("#restored dd").first).to_have_text(PROMPT)
    page.locator("#prompt textarea").fill("something else")
    page.locator("#restore-use").click()
    expect(page.locator("#prompt textarea")).to_have_value(PROMPT)


# Text in the format that AUTOMATIC1111 writes.
A1111 = """a (red:1.2) star, 8k
Negative prompt: blurry
Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 965400086, \
Size: 512x512, Model hash: 6ce0161689, Model: v1-5-pruned-emaonly, Version: v1.10.1"""


def a1111_files() -> Iterator[tuple[str, bytes]]:
    """Yield AUTOMATIC1111's files: a PNG with the text in a chunk, a JPEG with it in Exif."""
    chunk, exif = PngInfo(), Image.Exif()
    chunk.add_text("parameters", A1111)
    comment = b"UNICODE\0" + A1111.encode("utf-16-be")
    exif[ExifTags.IFD.Exif] = {ExifTags.Base.UserComment: comment}
    for kind, where in (("PNG", {"pnginfo": chunk}), ("JPEG", {"exif": exif})):
        file = BytesIO()
        Image.new("RGB", (8, 8)).save(file, format=kind, **where)
        yield f"00000-1.{kind.lower()}", file.getvalue()


@pytest.mark.slow
def test_a_picture_of_automatic1111_restores(page: Page):
    found, prompt = page.locator("#restored"), page.locator("#prompt textarea")
    for name, content in a1111_files():
        prompt.fill("something else")
        drop(page, "#prompt textarea", name, content)
        expect(found.locator("dd").first).to_have_text("a (red:1.2) star, 8k")
        expect(prompt).to_have_value("something else")
        page.locator("#edit [data-do=restore]").click()
        expect(prompt).to_have_value("a (red:1.2) star, 8k")
        expect(page.locator("#status .warning")).to_contain_text("v1-5-pruned-emaonly")
        drop(page, "#prompt textarea", "notes.txt", b"a red star")
        expect(found).to_have_text(i18n.UNREADABLE_PICTURE)
    page.keyboard.press("Escape")  # closes the panel with the message
    open_advanced(page)
    expect(page.locator("#negative textarea")).to_have_value("blurry")
    expect(page.locator("#seed input")).to_have_value("965400086")
    expect(page.locator("#steps input[type=number]")).to_have_value("20")


@pytest.mark.slow
def test_a_dropped_picture_restores(page: Page, tmp_path: Path):
    made = Settings(
        "<b>a yellow moon</b>",
        "",
        seed=41,
        num_inference_steps=12,
        guidance_scale=3.5,
        width=256,
        height=256,
        model="elsewhere",
    )
    picture = Image.new("RGB", (256, 256))
    metadata.attach(picture, made)
    metadata.save_png(picture, tmp_path / "made.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "plain.png")
    page.locator("#chip-picture").click()
    place = page.locator("#restore-picture input[type=file]")
    place.set_input_files(tmp_path / "plain.png")
    expect(page.locator("#edit .sheet")).to_be_visible()  # it has none, and can be used
    expect(page.locator("#restored")).to_have_text("")
    place.set_input_files(tmp_path / "made.png")
    expect(page.locator("#restored dd").first).to_have_text(made.prompt)
    expect(page.locator("#prompt textarea")).to_have_value("")
    page.locator("#edit [data-do=restore]").click()
    expect(page.locator("#prompt textarea")).to_have_value(made.prompt)
    expect(page.locator("#status .warning")).to_contain_text("elsewhere")


def test_a_picture_can_be_dropped_anywhere(page: Page):
    made = Settings(
        "a yellow moon",
        "",
        seed=41,
        num_inference_steps=12,
        guidance_scale=3.5,
        width=8,
        height=8,
        model="elsewhere",
    )
    picture = Image.new("RGB", (8, 8))
    metadata.attach(picture, made)
    png = BytesIO()
    metadata.save_png(picture, png)
    found = page.locator("#restored")
    drop(page, "#gallery", "made.png", png.getvalue())  # while Restore is closed
    expect(found.locator("dd").first).to_have_text(made.prompt)
    drop(page, "#prompt textarea", "notes.txt", b"a red star")
    expect(found).to_have_text(i18n.UNREADABLE_PICTURE)
    expect(page.locator("#restore-use")).to_be_hidden()
    drop(page, "#restore-picture button", "MADE.PNG", png.getvalue())
    expect(found.locator("dd").first).to_have_text(made.prompt)
    expect(page.get_by_test_id("toast-body")).to_have_count(0)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "fr"])
def test_a_file_that_cannot_be_read_is_refused_in_the_pages_words(
    browser: Browser, address: str, language: str, tmp_path: Path
):
    with i18n.speaking(language):
        large, unreadable = i18n.TOO_LARGE_A_PICTURE, i18n.UNREADABLE_PICTURE
    with opened(browser, address, locale=language) as page:
        sent: list[str] = []
        page.on("request", lambda each: sent.append(each.url) if "upload" in each.url else None)
        page.locator("#chip-picture").click()
        place = page.locator("#restore-picture input[type=file]")
        for name, size, said in (("made.png", 17_000_000, large), ("made.txt", 9, unreadable)):
            (tmp_path / name).write_bytes(bytes(size))
            place.set_input_files(tmp_path / name)
            expect(page.locator("#restored")).to_have_text(said)
        expect(page.get_by_test_id("toast-body")).to_have_count(0)
        assert sent == []


ROOM_UNDER_THE_PROMPT = """() => {
    const box = (selector) => document.querySelector(selector).getBoundingClientRect();
    return Math.round(box("#chips").top - box("#prompt textarea").bottom);
}"""


def test_words_that_the_model_does_not_know_are_named(page: Page):
    prompt, note = page.locator("#prompt textarea"), page.locator("#length .unknown")
    gap = page.evaluate(ROOM_UNDER_THE_PROMPT)
    prompt.fill("a red sofa, 🦊")
    expect(note).to_have_text("Not known to this model: sofa, 🦊")
    expect(page.locator(".veil span")).to_have_text(["sofa", "🦊"])
    assert page.evaluate(ROOM_UNDER_THE_PROMPT) == gap
    open_advanced(page)
    page.locator("#negative textarea").fill("blurry")
    expect(page.locator("#negative-length .unknown")).to_have_text(re.compile(": blurry$"))
    prompt.fill("a red star <hypernet:b:1> # note")
    expect(note).to_be_empty()
    expect(page.locator(".veil span")).to_have_text(["<hypernet:b:1>", "# note"])
    expect(page.locator("#length .read")).to_contain_text("without effect: <hypernet:b:1>")
    prompt.fill("a red star")
    expect(page.locator(".veil")).to_be_hidden()


VEIL = """() => {
  const parts = [...document.querySelectorAll("#prompt :is(textarea, .veil)")];
  return parts.map((part) => {
    const { font, padding, direction, whiteSpace, overflowWrap } = getComputedStyle(part);
    const { scrollTop, scrollHeight, clientWidth } = part;
    const box = JSON.stringify(part.getBoundingClientRect());
    return [box, font, padding, direction, whiteSpace, overflowWrap]
      .concat(scrollTop, scrollHeight, clientWidth);
  });
}"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "locale"), [(1280, "en"), (390, "de"), (640, "en")])
def test_the_veil_over_the_prompt_has_each_word_in_its_place(
    browser: Browser, address: str, width: int, locale: str
):
    with opened(browser, address, width, 800, locale=locale) as page:
        prompt, words = page.locator("#prompt textarea"), page.locator("#prompt .veil span")
        for text in (
            "a red sofa",
            "sofa " + "w" * 900,
            "sofa \n\n" * 40,
            "ספה כחולה " * 60,
            "sofa " * 400,
        ):
            prompt.fill(text)
            expect(words.first).to_be_visible()
            prompt.evaluate("(field) => { field.scrollTop = 37; }")
            page.evaluate(THREE_FRAMES)
            field, veil = page.evaluate(VEIL)
            assert field == veil
        expect(words.last).to_have_text(re.compile("sofa sofa sofa"))  # is left out


@pytest.mark.slow
def test_a_prompt_too_long_is_reported_while_typing(page: Page):
    prompt, length = page.locator("#prompt textarea"), page.locator("#length p")
    gap = page.evaluate(ROOM_UNDER_THE_PROMPT)
    for typed, said in (
        ("red " * 70, "72 of 77 tokens"),
        ("red " * 57 + "star", "60 of 77 tokens"),
        (
            "red " * 75 + "<b>star " * 50,
            re.compile(r"first 77 tokens count\. Left out: “< b > star.{40,50}…”$"),
        ),
    ):
        prompt.fill(typed)
        expect(length).to_have_text(said)
        assert page.evaluate(ROOM_UNDER_THE_PROMPT) == gap
    prompt.fill("a red star")
    expect(length).to_have_count(0)


@pytest.mark.slow
def test_a_picture_for_each_line(page: Page):
    open_advanced(page)
    page.get_by_label(i18n.SETTINGS["several"].label).check()
    expect(page.locator("#prompt textarea")).to_have_attribute("rows", "4")
    page.locator("#steps input[type=number]").fill("2")
    page.locator("#prompt textarea").press_sequentially("a yellow moon\na red star")
    page.keyboard.press("ControlOrMeta+Enter")
    captions = page.locator("#gallery .caption-label")
    expect(captions).to_have_count(2, timeout=DRAWN_WITHIN_MS)
    expect(captions.nth(0)).to_contain_text("a yellow moon")
    expect(captions.nth(1)).to_contain_text("a red star")


@pytest.mark.slow
def test_keys_run_and_stop(slow_page: Page):
    choose_steps(slow_page, 50)
    slow_page.locator("#prompt textarea").fill(PROMPT)
    slow_page.keyboard.press("ControlOrMeta+Enter")
    slow_page.wait_for_function("document.querySelector('#status progress')?.value > 0")
    slow_page.keyboard.press("Escape")
    expect(slow_page.locator("#status")).to_have_text(STOPPED)


# The page waits two seconds for Stop, which is too short on a busy machine.
PATIENT = """() => {
    const later = window.setTimeout;
    window.setTimeout = (then, ms, ...more) => later(then, ms === 2000 ? 60_000 : ms, ...more);
}"""


@pytest.mark.slow
def test_a_stop_before_the_start(slow_page: Page, slow_address: str, browser: Browser):
    with opened(browser, slow_address) as other:  # this one waits in the queue
        for page in (slow_page, other):
            page.evaluate(PATIENT)
            choose_steps(page, 50)
        for page in (slow_page, other):
            page.locator("#prompt textarea").fill(PROMPT)
            page.keyboard.press("ControlOrMeta+Enter")
        for page in (other, slow_page):
            page.keyboard.press("Escape")
            expect(page.locator("#status")).to_have_text(STOPPED)
            expect(page.locator("#generate")).to_be_visible()


@pytest.mark.slow
def test_opening_the_page_clears_nothing(page: Page):
    with opening(page):
        page.reload()
    await_answer(page)
    expect(page.locator("#generate")).to_be_visible()


def test_page_names_model_and_device(page: Page):
    expect(page.locator("#header")).to_contain_text(i18n.DEMO)
    expect(page.locator("#footer")).to_contain_text(re.compile(r"\d+ × \d+ pixels · on CPU"))
    expect(page.locator("#footer")).to_contain_text("licence")


@pytest.mark.slow
def test_a_visitor_from_elsewhere_is_answered_in_their_language(browser: Browser, address: str):
    with opened(browser, address, locale="de-AT") as page:
        expect(page.locator("html")).to_have_attribute("lang", "de")
        expect(page.locator("#prompt")).to_contain_text("Was möchtest du sehen?")
        expect(page.locator("#footer")).to_contain_text("Lizenz des Modells: Apache 2.0")
        page.get_by_role("button", name="Generieren").click()
        expect(page.get_by_role("alert")).to_have_text("Gib zuerst einen Prompt ein.")
        ask_after_a_refusal(page, PROMPT)
        expect(page.locator("#status")).to_have_text(
            re.compile(r"4 Bilder in \d+,\d s"), timeout=DRAWN_WITHIN_MS
        )
        expect(page.locator("#generate")).to_be_visible()
        page.locator("#chip-style").click()
        page.get_by_role("radio", name="Umriss").check()
        page.keyboard.press("ControlOrMeta+Enter")
        page.locator("#history-open").click()
        expect(page.locator("#history-open")).to_have_text("Verlauf")
        entries = page.locator("#history li button")
        expect(entries).to_have_count(2, timeout=DRAWN_WITHIN_MS)
        entries.first.click()
        expect(page.locator("#history small").first).to_contain_text("Umriss · Seed")


@pytest.mark.slow
def test_nothing_of_gradios_own_is_left_in_english(browser: Browser, address: str):
    english = [name.replace("#", r"\d+") for name in i18n.CONTROLS]
    english += [*i18n.GRADIOS.values(), "number input for", "range slider for", "detailed view"]
    with opened(browser, address, locale="de") as page, i18n.speaking("de"):
        app, gallery = page.locator("gradio-app"), page.locator("#gallery")
        choose_steps(page, 2)
        page.locator("#guidance input[type=number]").fill("7.5")
        ask(page, PROMPT)
        expect(gallery.locator(".thumbnail-lg img")).to_have_count(4, timeout=DRAWN_WITHIN_MS)
        expect(page.locator("#generate")).to_be_visible()
        expect(gallery.get_by_role("button", name="Alle herunterladen")).to_be_visible()
        said = app.aria_snapshot()
        open_picture(page)
        expect(page.locator("#picked-settings dd").filter(has_text="7,5")).to_be_visible()
        for name in ("Schließen", "Vorschaubild 4 von 4"):
            expect(gallery.get_by_role("button", name=name)).to_be_visible()
        expect(page.locator("#walk").get_by_role("button", name="Vollbild")).to_be_visible()
        for role in ("spinbutton", "slider"):
            label = i18n.SETTINGS["num_inference_steps"].label
            expect(page.locator("#steps").get_by_role(role, name=label)).to_be_visible()
        said += app.aria_snapshot()
        said += str(app.locator("[title]").evaluate_all("(all) => all.map(({ title }) => title)"))
        assert re.findall("|".join(english), said) == []
        page.keyboard.press("Escape")
        expect(gallery.locator(".preview")).to_have_count(0)


def test_blank_prompt_is_a_message(page: Page):
    ask(page, "   ")
    expect(page.get_by_role("alert")).to_have_text(i18n.translate(Message(Code.BLANK_PROMPT)))
    expect(page.locator("#generate")).to_be_visible()


@pytest.mark.slow
def test_a_cut_prompt_is_quoted_once_and_in_short(page: Page):
    draw_pictures(page, PROMPT + " red" * 90 + " <img src=x>")
    expect(page.locator("#status .warning")).to_have_text(i18n.END_LEFT_OUT)
    expect(page.locator("#length .over")).to_contain_text("Left out: “red red red")
    expect(page.locator("#status")).not_to_contain_text("red red red")
    expect(page.locator("#status img, #length img")).to_have_count(0)


def test_stop(slow_page: Page):
    choose_steps(slow_page, 50)
    ask(slow_page, PROMPT)
    slow_page.wait_for_function("document.querySelector('#status progress')?.value > 0")
    expect(slow_page.locator("#stop")).to_be_visible()
    previews = slow_page.locator("#previews img")
    expect(previews).to_have_count(4)
    expect(previews.first).to_have_js_property("naturalWidth", 16)
    slow_page.locator("#stop").click()
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#generate")).to_be_visible()
    expect(previews).to_have_count(0)
    expect(slow_page.locator("#gallery .caption-label").first).to_contain_text("Unfinished: step")
    slow_page.locator("#steps input[type=number]").fill("2")
    draw_pictures(slow_page, PROMPT)


NOTE_CLICKS = """() => document.addEventListener(
    "click", ({ timeStamp }) => { window.clicked = timeStamp; }, true)"""


@pytest.mark.slow
def test_a_double_click_on_generate_does_not_stop(slow_page: Page):
    choose_steps(slow_page, 50)
    slow_page.locator("#prompt textarea").fill(PROMPT)
    slow_page.locator("#generate").scroll_into_view_if_needed()
    generate = slow_page.locator("#generate").bounding_box()
    assert generate is not None
    at = generate["x"] + generate["width"] / 2, generate["y"] + generate["height"] / 2
    slow_page.evaluate(NOTE_CLICKS)
    slow_page.mouse.click(*at, delay=50, click_count=12)
    slow_page.wait_for_function("document.querySelector('#status progress')?.value > 0")
    expect(slow_page.locator("#history li")).to_have_count(1)
    # No part of the same press. Its second click must not hit Generate.
    slow_page.wait_for_function("performance.now() - window.clicked > 500")
    slow_page.mouse.dblclick(*at)
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    await_answer(slow_page)
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#history li")).to_have_count(1)


def draw_again_for_long(page: Page) -> None:
    """Draw pictures, then start a long drawing and wait until its first step is shown."""
    open_advanced(page)
    for steps in ("1", "50"):
        page.locator("#steps input[type=number]").fill(steps)
        ask(page, PROMPT)
        if steps == "1":
            wait_for_pictures(page)
    page.wait_for_function("document.querySelector('#status progress')?.value > 0")


@pytest.mark.slow
def test_the_buttons_of_an_older_picture_are_disabled_while_drawing(slow_page: Page):
    vary, again = (slow_page.locator(f"#bar [data-act={name}]") for name in ("vary", "new_seed"))
    draw_again_for_long(slow_page)
    slow_page.locator("#gallery .thumbnail-lg").first.press("Enter")  # previews take the clicks
    expect(vary).to_be_disabled()
    slow_page.locator("#bar [data-act=more]").click()
    expect(again).to_be_disabled()
    slow_page.keyboard.press("Escape")
    slow_page.locator("#stop").click()
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#bar [data-act=finish]")).to_be_enabled()


@pytest.mark.slow
def test_enter_sends_nothing_before_the_drawing_ends(slow_page: Page):
    choose_steps(slow_page, 50)
    ask(slow_page, PROMPT)
    slow_page.wait_for_function("document.querySelector('#status progress')?.value > 0")
    slow_page.reload()
    expect(slow_page.locator("#status")).to_contain_text(re.compile(r"Step \d+ of 50"))
    ask(slow_page, "a yellow moon")
    slow_page.keyboard.press("ControlOrMeta+Enter")
    open_advanced(slow_page)
    slow_page.get_by_label(i18n.SETTINGS["several"].label).check()
    expect(slow_page.locator("#prompt textarea")).to_have_attribute("rows", "4")
    slow_page.locator("#prompt textarea").press("End")
    slow_page.keyboard.press("Enter")
    expect(slow_page.locator("#prompt textarea")).to_have_value("a yellow moon\n")
    slow_page.keyboard.press("Shift+Enter")
    slow_page.locator("#stop").click()
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#prompt textarea")).to_have_value("a yellow moon\n")
    await_answer(slow_page)
    expect(slow_page.locator("#status")).to_have_text(STOPPED)
    expect(slow_page.locator("#history li")).to_have_count(1)


NOTE_STOP_GONE = """() => {
  window.stopGone = false;
  const look = () => { stopGone ||= !document.querySelector("#stop").checkVisibility(); };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
}"""


@pytest.mark.slow
def test_older_settings_can_be_restored_while_drawing(slow_page: Page):
    draw_again_for_long(slow_page)
    slow_page.evaluate(NOTE_STOP_GONE)
    slow_page.locator("#history-open").click()
    slow_page.locator("#history li button").last.click()
    expect(slow_page.locator("#history [data-detail] img")).to_be_visible()
    expect(slow_page.locator("#steps input[type=number]")).to_have_value("50")
    slow_page.locator("#history [data-use]").click()
    expect(slow_page.locator("#steps input[type=number]")).to_have_value("1")
    await_answer(slow_page)
    assert not slow_page.evaluate("stopGone")
    slow_page.locator("#stop").click()
    expect(slow_page.locator("#status")).to_have_text(STOPPED)


SPOILT = [
    None,
    7,
    "an entry",
    [],
    {},
    {"link": 7},
    {"look": 7},
    {"look": {"a": 1}},
    {"look": None},
    {"said": None},
    {"favourite": "yes"},
    {"gone": {"0": 1}},
    {"gone": [-1]},
    {"id": {"a": 1}},
    {"at": "yesterday"},
    {"at": 1e300},
]


@pytest.mark.slow
def test_a_damaged_entry_of_the_history_harms_no_other(page: Page):
    whole = {"id": "x", "link": f"?prompt={PROMPT}", "said": "as it was", "at": 1}
    spoilt: dict[str, Any] = {
        f"s{i}": whole | {"id": f"s{i}"} | each if isinstance(each, dict) and each else each
        for i, each in enumerate(SPOILT)
    }
    odd = whole | {"id": "y", "link": "?prompt=%", "at": 0}
    keep_history(page, spoilt | {"x": whole, "y": odd, "another": whole})
    with opening(page):
        page.reload()
    page.locator("#history-open").click()
    expect(page.locator("#history li span")).to_have_text([PROMPT, "%"])
    # New entries are kept beside the old ones.
    draw_pictures(page, "a yellow moon")
    expect(page.locator("#history li")).to_have_count(3)
    expect(page.locator("#history li img")).to_have_count(1)
    # Nothing but its own entry was written: another tab may be writing beside it.
    assert page.evaluate("localStorage.getItem('sdxl-history another')") == json.dumps(
        whole, separators=(",", ":")
    )
    page.locator("#history li button").nth(1).click()
    expect(page.locator("#history [data-prompt]")).to_have_text(PROMPT)


@pytest.mark.slow
def test_fixed_seed_gives_the_same_picture(page: Page):
    open_advanced(page)
    page.locator("#steps input[type=number]").fill("2")
    fix_seed(page, "41")
    first_picture = page.locator("#gallery img").first
    addresses = [""]
    for _ in range(2):
        ask(page, PROMPT)
        expect(first_picture).not_to_have_attribute("src", addresses[-1], timeout=DRAWN_WITHIN_MS)
        expect(page.locator("#generate")).to_be_visible()
        addresses.append(first_picture.get_attribute("src") or "")
    one, other = (page.request.get(address).body() for address in addresses[1:])
    assert one == other


@pytest.mark.slow
def test_generate_works_whenever_it_is_visible(slow_page: Page):
    choose_steps(slow_page, 1)
    for times in (1, 2, 3):
        ask(slow_page, PROMPT)
        expect(slow_page.locator("#history li")).to_have_count(times)
        expect(slow_page.locator("#generate")).to_be_visible(timeout=DRAWN_WITHIN_MS)


WAIT = re.compile(r"in the queue, about \d+ (s|min)$")


@pytest.mark.slow
def test_a_later_visitor_waits_and_a_reload_keeps_the_place(browser: Browser, tmp_path: Path):
    with (
        served(stand_in(400), tmp_path / "log") as address,
        opened(browser, address) as page,
        opened(browser, address) as second,
        opened(browser, address) as third,
    ):
        choose_steps(page, 5)
        draw_pictures(page, PROMPT)
        page.get_by_role("button", name=i18n.ADVANCED).click()
        for busy in (page, second):  # two, so that the third waits long enough
            choose_steps(busy, 50)
            ask(busy, PROMPT)
        ask(third, "a yellow moon")
        waits = third.locator("#status .running", has_text=WAIT)
        expect(waits).to_be_visible()
        expect(third.locator("#prompt textarea")).to_have_value("a yellow moon")
        third.reload()
        for busy in (page, second):
            busy.keyboard.press("Escape")  # no effect if already drawn
        pictures = third.locator("#gallery .thumbnail-lg img")
        expect(pictures).to_have_count(4, timeout=DRAWN_WITHIN_MS)
        expect(third.locator("#gallery .caption-label").first).to_contain_text("a yellow moon")


@pytest.mark.slow
def test_as_a_part_of_another_sites_page(
    browser: Browser, address: str, elsewhere: tuple[str, Path]
):
    site, folder = elsewhere
    example = (ROOT / "examples" / "embed.html").read_text(encoding="utf-8")
    (folder / "index.html").write_text(example.replace("http://127.0.0.1:7860", address))
    with opened(browser, site) as page:
        component, frame = page.locator("gradio-app"), page.frame_locator("iframe").locator("body")
        card = component.locator("#cards img").first
        expect(card).to_have_attribute("src", re.compile(f"{address}/example-pictures/.*webp"))
        expect(card).to_have_js_property("naturalWidth", 256)
        expect(frame.locator("#generate")).to_be_visible()
        assert page.evaluate("document.activeElement === document.body && scrollY === 0")
        for part in (component, frame):
            part.locator("#prompt textarea").fill(PROMPT)
            part.locator("#prompt textarea").press("Enter")
            expect(part.locator("#status")).to_contain_text(
                "4 pictures in", timeout=DRAWN_WITHIN_MS
            )
            pictures = part.locator("#gallery .thumbnail-lg img")
            expect(pictures).to_have_count(4)
            assert pictures.last.evaluate("image => image.decode().then(() => image.width)") > 0
            expect(part.locator("#header")).to_be_hidden()
        component.locator("#gallery .thumbnail-lg").first.click()
        with page.expect_download() as download:
            component.locator("#bar [data-act=download]").click()
            component.get_by_role("menuitem", name="JPEG").click()
        assert download.value.suggested_filename.endswith(".jpg")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        component.locator("#bar [data-act=more]").click()
        press_to_copy(component.locator("#bar [data-act=link]"))
        assert page.evaluate("navigator.clipboard.readText()").startswith(f"{address}/?prompt=")
        component.locator("#chip-style").click()
        picture = f'url("{address}/style-pictures/miniature/flat.webp")'
        expect(component.locator("#style label").nth(1)).to_have_css("--picture", picture)
        expect(component.locator("#footer")).to_be_visible()
        expect(frame.locator("#footer")).to_be_hidden()
        assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") == BLACK


HOST = """<!doctype html>
<html lang="it">
  <head>
    <link rel="icon" href="data:,">
    <script type="module" src="ADDRESS/gradio.js"></script>
  </head>
  <body>
    <p id="status">None yet</p>
    <textarea id="note"></textarea>
    <button id="generate">0</button>
    <gradio-app src="ADDRESS"></gradio-app>
    <script>
      const own = document.getElementById("generate");
      own.addEventListener("click", () => own.textContent++);
      document.addEventListener("keydown", ({ key, ctrlKey, target }) => {
        if (target.id !== "note") return;
        if (key === "Enter" && ctrlKey) target.value += " is kept";
        if (key === "Escape") target.value = "";
      });
    </script>
  </body>
</html>"""


@pytest.mark.slow
def test_the_other_sites_page_stays_its_own(
    browser: Browser, address: str, elsewhere: tuple[str, Path]
):
    site, folder = elsewhere
    (folder / "host.html").write_text(HOST.replace("ADDRESS", address))
    with opened(browser, f"{site}/host.html") as page:
        component, note = page.locator("gradio-app"), page.locator("#note")
        prompt, drawn = component.locator("#prompt textarea"), component.locator("#history li")
        expect(component).to_have_attribute("lang", "en")
        expect(page.locator("html")).to_have_attribute("lang", "it")
        expect(page.locator("body > #status")).to_have_css("color", BLACK)
        expect(page.locator("body > #status")).to_have_css("font-size", "16px")
        expect(page.locator("body > #status")).to_have_css("min-height", "0px")
        expect(page.locator("body > #generate")).to_have_css("min-height", "0px")
        prompt.fill(PROMPT)
        note.fill("This")
        note.press("Control+Enter")
        expect(note).to_have_value("This is kept")
        prompt.press("Control+Enter")
        expect(component.locator("#status")).to_contain_text("4 pictures", timeout=DRAWN_WITHIN_MS)
        expect(drawn).to_have_count(1)
        width = "image => image.decode().then(() => image.naturalWidth)"
        assert drawn.locator("img").evaluate(width) == 4 * 96
        component.locator("#gallery .thumbnail-lg").first.click()
        expect(component.locator("#bar [data-act=download]")).to_be_visible()
        assert page.evaluate("history.state") is None  # Back belongs to the other page
        note.press("Escape")
        expect(note).to_have_value("")
        expect(component.locator("#gallery .preview")).to_be_visible()
        prompt.press("Escape")
        expect(component.locator("#gallery .preview")).to_have_count(0)
        expect(page.locator("body > #generate")).to_have_text("0")


TWO = """<!doctype html>
<link rel="icon" href="data:,">
<script type="module" src="ADDRESS/gradio.js"></script>
<gradio-app src="ADDRESS"></gradio-app>
<gradio-app src="ADDRESS"></gradio-app>"""


def test_each_of_two_elements_uses_its_own_parts(
    browser: Browser, address: str, elsewhere: tuple[str, Path]
):
    site, folder = elsewhere
    (folder / "two.html").write_text(TWO.replace("ADDRESS", address))
    with opened(browser, f"{site}/two.html") as page:
        apps = page.locator("gradio-app").all()
        for app, prompt in zip(apps, ("a red ring", "a blue star"), strict=True):
            app.locator("#prompt textarea").fill(prompt)
            app.locator("#generate").click()
        for app in apps:
            expect(app.locator("#status")).to_contain_text("4 pictures", timeout=DRAWN_WITHIN_MS)
            app.locator("#gallery .thumbnail-lg").first.click()
            app.locator("#prompt textarea").fill("something else")
            app.locator("#bar [data-act=use]").click()
        for app, prompt in zip(apps, ("a red ring", "a blue star"), strict=True):
            expect(app.locator("#prompt textarea")).to_have_value(prompt)
            expect(app.locator("#history li")).to_have_count(2)
        kept = page.evaluate("Object.entries(sessionStorage).filter(([key]) => /draft/.test(key))")
        assert {json.loads(value)["prompt"] for _, value in kept} == {"a red ring", "a blue star"}


@pytest.mark.slow
def test_the_other_sites_fetch_is_the_browsers_own(
    browser: Browser, address: str, elsewhere: tuple[str, Path]
):
    site, folder = elsewhere
    (folder / "host.html").write_text(HOST.replace("ADDRESS", address))
    with opened(browser, f"{site}/host.html") as page:
        expect(page.locator("html[data-sdxl]")).to_be_attached()
        assert page.evaluate("/native code/.test(window.fetch)")
        assert page.evaluate("Object.getOwnPropertyNames(window).includes('fetch')")


def test_the_api_beside_the_page(address: str):
    with urllib.request.urlopen(f"{address}/readyz", timeout=60) as answer:
        assert answer.status == 200
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    answer = client.images.generate(prompt=PROMPT, n=2, extra_body={"num_inference_steps": 2})
    assert answer.data is not None
    assert [b64decode(each.b64_json or "")[:4] for each in answer.data] == [b"\x89PNG"] * 2


def test_programs(address: str):
    client = Client(address, verbose=False)
    found, seeds, left_out = client.predict(PROMPT, seed=2**32 - 2, steps=2, api_name="/generate")
    assert seeds == [2**32 - 2, 2**32 - 1, 0, 1]
    assert left_out == ""
    settings = [metadata.read(Path(path)) for path in found]
    assert [each.seed for each in settings if each] == seeds
    with pytest.raises(AppError, match="Steps must be 1–50"):
        client.predict(PROMPT, steps=51, api_name="/generate")
