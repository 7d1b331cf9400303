"""A page that visitors sign in to, in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests import compiling
from tests.browsing import AXE, VIOLATIONS, ask, choose, draw_pictures, picture, wait_for_pictures
from tests.checkpoints import SMALLEST
from tests.web import folder_served, served
from tools.page_states import launched
from ui import i18n

PASSWORD = "a long password"
EMBEDDING = '<script type="module" src="{0}/gradio.js"></script><gradio-app src="{0}"></gradio-app>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def elsewhere(folder: Path) -> Iterator[str]:
    """Yield the address of another site."""
    with folder_served(folder) as port:
        yield f"http://localhost:{port}"


@pytest.fixture(scope="module")
def address(elsewhere: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the real program with a tiny model and one user."""
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text(f"anna:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    flags = ["--sizes", "16x16", "--page-users-file", str(users), "--cors-origins", elsewhere]
    program = ["app.py", "--model", str(SMALLEST), *flags]
    with compiling.quickly(), served(program, users.with_name("log")) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


def opened(browser: Browser, address: str, **options: Any) -> Page:
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    return page


def sign_in(page: Page, password: str = PASSWORD) -> None:
    page.locator("[name=name]").fill("anna")
    page.locator("[name=password]").fill(password)
    page.keyboard.press("Enter")


@pytest.mark.slow
def test_a_visit(browser: Browser, address: str):
    page = opened(browser, f"{address}/?prompt=a%20red%20star")
    expect(page.locator("[name=name]")).to_be_focused()
    sign_in(page, "another one")
    expect(page.locator("[role=alert]")).to_have_text(str(i18n.LANGUAGES["en"]["wrong_password"]))
    expect(page.locator("[name=name]")).to_have_value("anna")
    expect(page.locator("[name=password]")).to_be_focused()
    sign_in(page)
    expect(page.locator("#prompt textarea")).to_have_value("a red star")
    draw_pictures(page, "a red star", 4)

    page.reload()
    expect(page.locator("#gallery .thumbnail-lg img")).to_have_count(4)
    with page.expect_response(lambda answer: "/gradio_api/upload" in answer.url) as uploaded:
        choose(page, picture())
    assert uploaded.value.ok
    draw_pictures(page, "a yellow moon", 4)

    page.locator("#header button").click()
    expect(page.locator("[name=name]")).to_be_visible()
    page.goto(address)
    expect(page.locator("[name=name]")).to_be_visible()


def test_the_form_in_german(browser: Browser, address: str):
    page = opened(browser, address, locale="de-CH", java_script_enabled=False)
    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(page.get_by_role("heading")).to_have_text("Anmelden")
    expect(page.get_by_label("Benutzername")).to_have_attribute("autocomplete", "username")
    expect(page.get_by_label("Passwort")).to_have_attribute("autocomplete", "current-password")
    sign_in(page, "falsch")
    expect(page.get_by_role("alert")).to_have_text("Benutzername oder Passwort ist falsch.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_is_accessible(browser: Browser, address: str, scheme: Any):
    page = opened(browser, address, color_scheme=scheme)
    sign_in(page, "another one")
    expect(page.get_by_role("alert")).to_be_visible()
    page.add_script_tag(path=AXE)
    assert page.evaluate(VIOLATIONS) == []


@pytest.mark.slow
def test_a_session_that_ends_goes_on_after_signing_in_again(browser: Browser, address: str):
    """Signed out in another tab, the page says so, and goes on once signed in again there."""
    page = opened(browser, address)
    sign_in(page)
    expect(page.locator("#prompt textarea")).to_be_visible()
    other = page.context.new_page()
    other.goto(address)
    other.locator("#header button").click()
    expect(other.locator("[name=name]")).to_be_visible()

    ask(page, "a red star")
    expect(page.locator("#status")).to_contain_text(i18n.STATUS["signed_out"])
    sign_in(other)
    wait_for_pictures(page, 4)
    expect(page.locator("#status")).not_to_contain_text(i18n.STATUS["signed_out"])

    page.context.clear_cookies()
    page.locator("#generate").click()
    page.locator("#status").get_by_role("button", name=i18n.STATUS["sign_in"]).click()
    sign_in(page)
    expect(page.locator("#prompt textarea")).to_have_value("a red star")


def test_other_sites_get_a_link(browser: Browser, address: str, elsewhere: str, folder: Path):
    frame = f'<iframe src="{address}/?embed=1" width="600" height="600"></iframe>'
    (folder / "index.html").write_text(EMBEDDING.format(address) + frame)
    page = opened(browser, elsewhere)
    link = page.locator("gradio-app a")
    expect(link).to_have_text(str(i18n.LANGUAGES["en"]["sign_in_needed"]))
    expect(link).to_have_attribute("href", f"{address}/")
    inside = page.frame_locator("iframe")
    expect(inside.locator("[name=name]")).to_be_visible()
    expect(inside.get_by_role("link")).to_have_attribute("href", "./?embed=1")


def test_other_sites_cannot_send_anything(
    browser: Browser, address: str, elsewhere: str, folder: Path
):
    """Not even a site that may embed the page can use a visitor's cookie, or set one."""
    (folder / "index.html").write_text("<p>elsewhere</p>")
    page = opened(browser, address)
    sign_in(page)
    expect(page.locator("#prompt textarea")).to_be_visible()
    cookie = {each.get("name", ""): each.get("value", "") for each in page.context.cookies()}
    for path in ("/live", "/gradio_api/run/predict", "/sign-in", "/sign-out"):
        answer = httpx.post(address + path, cookies=cookie, headers={"Origin": elsewhere})
        assert answer.status_code == 403
        assert "Set-Cookie" not in answer.headers
    page.goto(elsewhere)
    send = """(url) => {
      const form = Object.assign(document.createElement("form"), { method: "post", action: url });
      document.body.append(form);
      form.submit();
    }"""
    with page.expect_navigation():
        page.evaluate(send, f"{address}/sign-out")
    assert {each.get("name") for each in page.context.cookies()} == cookie.keys()
