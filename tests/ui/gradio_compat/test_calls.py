"""Checks of calls to Gradio: only calls that the page itself could make get through."""

import asyncio
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import gradio as gr
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from gradio.block_function import BlockFunction
from starlette.testclient import TestClient

from serving.http.auth import ApiKeys, digests_of
from tests.pages import StandIn
from tests.ui.gradio_compat.mounted import mounted_in
from ui.gradio_compat import calls, sessions, uploads
from ui.mount import mount

FILE = {"meta": {"_type": "gradio.FileData"}, "orig_name": "x.png"}
SECRET = "nobody may read this"
# Values after the prompt in the call that asks how it is read: style, lines, negative prompt,
# syntax, recipe, steps and timesteps.
CHOSEN = ["(none)", False, "", "a1111", "", 25, "", ""]


class Page:
    """A page with a stand-in generator, and a client of the page."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        app = FastAPI()
        self.generator = StandIn()
        mount(app, self.generator, "127.0.0.1", 0, keep_files_s=600, **options)
        mounted = mounted_in(app)
        self.blocks: gr.Blocks = mounted.get_blocks()
        assert isinstance(mounted.state_holder, sessions.Sessions)
        self.sessions = mounted.state_holder
        self.mounted = mounted
        self.client = TestClient(app)

    def join(self, index: Any, data: Any, **others: Any) -> Any:
        body = {"fn_index": index, "session_hash": "session", "data": data} | others
        return self.client.post("/gradio_api/queue/join", json=body)

    def copies(self) -> set[str]:
        """Return all paths in the folder from which files are served."""
        return {str(path) for path in self.folder.rglob("*")}

    def upload(self, content: bytes = b"a picture") -> str:
        answer = self.client.post("/gradio_api/upload", files={"files": ("a.png", content)})
        assert answer.status_code == 200, answer.text
        return answer.json()[0]

    def forget(self) -> None:
        """Forget all sessions, calls and files, so that the next test finds a new page."""
        for pending in (
            self.blocks._queue.pending_event_ids_session,
            self.blocks._queue.pending_messages_per_session,
            self.blocks._queue.event_ids_to_events,
        ):
            pending.clear()
        self.sessions.forget_unused(datetime.max)
        self.generator.asked.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield the page that all tests share; making one takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("calls") / "served"
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        yield Page(folder)


@pytest.fixture
def page(served: Page) -> Iterator[Page]:
    with served.client:
        yield served
    served.forget()


@pytest.fixture
def hostile(tmp_path: Path, page: Page) -> list[dict[str, Any]]:
    """Return files that no visitor has uploaded, each in the form that a call would use."""
    secret = tmp_path / "secret.png"
    secret.write_text(SECRET)
    uploaded = Path(page.upload())
    beside = uploaded.with_name("beside.png")  # in the right folder, but not uploaded
    beside.write_text(SECRET)
    link = uploaded.with_name("link.png")
    link.symlink_to(secret)
    pipe = uploaded.with_name("pipe.png")
    os.mkfifo(pipe)
    up = f"{uploaded.parent}/../../secret.png"
    paths = [secret, beside, link, pipe, up, "/etc/passwd", "/dev/zero", "/proc/self/environ"]
    paths += ["/etc", "", "secret.png", f"{uploaded}/", f"{uploaded.parent}//{uploaded.name}"]
    urls = ["http://127.0.0.1:9/a.png", "https://example.org/a.png", "http://["]
    urls += ["file:///etc/passwd"]
    own = f"/gradio_api/file={uploaded}"
    return [
        *(FILE | {"path": str(path)} for path in paths),
        *({"path": str(path)} for path in paths),
        *(FILE | {"path": url} for url in urls),
        *(FILE | {"path": str(uploaded), "url": url} for url in urls),
        *(FILE | {"path": str(secret), "url": own} for _ in range(1)),
        FILE | {"url": urls[0]},
        FILE | {"path": None, "url": urls[0]},
        FILE | {"path": [str(secret)]},
    ]


def with_backend(page: Page) -> list[tuple[int, BlockFunction]]:
    """Return the functions that run here, not in the browser alone."""
    return [item for item in page.blocks.fns.items() if item[1].fn is not None]


# Whether every file is tried at each input, or one of them in turn.
ONE_OR_EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


@ONE_OR_EVERY
def test_no_function_of_the_page_takes_a_file_that_was_not_uploaded(
    page: Page, hostile: list[dict[str, Any]], every: bool
):
    """No input of any function takes such a file; inputs that are added later are covered, too."""
    before = page.copies()
    forms = itertools.cycle(
        [
            lambda bad: bad,
            lambda bad: [bad],
            lambda bad: {"value": bad},
            lambda bad: {"image": bad, "caption": None},
        ]
    )
    paths = itertools.cycle(["queue/join", "run/predict", "api/predict"])
    walked, files = set(), itertools.cycle(hostile)
    for index, function in with_backend(page):
        inputs = range(len(function.inputs))
        for place in inputs:
            for bad in itertools.islice(files, len(hostile) if every else 1):
                value = next(forms)(bad)
                data = [value if i == place else None for i in inputs]
                body = {"data": data, "session_hash": "s", "fn_index": index}
                answer = page.client.post(f"/gradio_api/{next(paths)}", json=body)
                assert answer.status_code == 403, (index, place, value, answer.text)
                assert SECRET not in answer.text
                walked.add((index, place))
    assert len(walked) == sum(len(function.inputs) for _, function in with_backend(page)) > 50
    assert page.copies() == before


@ONE_OR_EVERY
def test_no_function_for_programs_takes_a_file(
    page: Page, hostile: list[dict[str, Any]], every: bool
):
    before, files = page.copies(), itertools.cycle(hostile)
    names = [each for each in page.blocks.fns.values() if each.api_visibility == "public"]
    assert names
    for function in names:
        inputs = range(len(function.inputs))
        for place in inputs:
            for bad in itertools.islice(files, len(hostile) if every else 1):
                data = [bad if i == place else None for i in inputs]
                for kind in ("call", "api", "run"):
                    path = f"/gradio_api/{kind}/{function.api_name}"
                    assert page.client.post(path, json={"data": data}).status_code == 403
    for bad in hostile:
        answer = page.client.post("/gradio_api/call/v2/generate", json={"prompt": bad})
        assert answer.status_code == 403
    assert page.copies() == before


@pytest.mark.slow
def test_gradio_itself_refuses_such_files(
    page: Page, hostile: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    """With this project's checks off, Gradio's own checks refuse such files.

    If a new version of Gradio fails here, review it before use.
    """
    monkeypatch.setattr(calls.CheckedCalls, "_check_files", lambda *_: None)
    # Files inside Gradio's own folder and URLs are left out: Gradio would use them, and only our
    # checks prevent that.
    named = [
        bad
        for bad in hostile
        if "meta" in bad
        and str(bad.get("path")).startswith("/")
        and not str(bad["path"]).startswith(f"{page.folder}/")
    ]
    assert len(named) >= 5
    before = page.copies()
    for index, function in with_backend(page):
        count = len(function.inputs)
        for place in range(count):
            if function.inputs[place].stateful:
                continue
            for bad in named:
                data = [bad if i == place else None for i in range(count)]
                body = {"data": data, "session_hash": "s", "fn_index": index}
                answer = page.client.post("/gradio_api/run/predict", json=body)
                assert answer.status_code == 500, (index, place, bad, answer.text)
                assert SECRET not in answer.text
    assert page.copies() == before


def test_an_uploaded_file_is_taken(page: Page):
    path = page.upload()
    file = FILE | {"path": path, "url": f"http://testserver/gradio_api/file={path}", "size": 9}
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "of_picture"]
    assert page.join(index, [file]).status_code == 200


def test_the_url_of_an_uploaded_file_is_not_passed_on(page: Page, monkeypatch: pytest.MonkeyPatch):
    passed: list[Any] = []
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "of_picture"]
    path = page.upload()
    checked = {"data": [FILE | {"path": path, "url": f"http://evil.test/gradio_api/file={path}"}]}
    monkeypatch.setattr(calls.json, "dumps", lambda value, **_: passed.append(value) or "{}")
    page.client.post(
        "/gradio_api/queue/join",
        content=json.JSONEncoder().encode(checked | {"fn_index": index, "session_hash": "s"}),
    )
    assert passed[0]["data"] == [FILE | {"path": path}]


@pytest.mark.parametrize("end", ["%0A", "%0D", "%00", "%0A/", "%20", "/x", "%2F", ";x"])
def test_other_spellings_of_a_path_are_checked_too(page: Page, end: str):
    paths = {
        re.sub(r"\{[^}]*\}", "generate", str(route.path))
        for route in iter_route_contexts(page.mounted.routes)
        if "POST" in (getattr(route.original_route, "methods", None) or ())
    }
    assert {"/gradio_api/queue/join", "/gradio_api/run/generate"} <= paths
    for path in paths:
        answer = page.client.post(f"{path}{end}", json={"fn_index": 999, "session_hash": "x" * 99})
        assert 400 <= answer.status_code < 500, (path, answer.text)


def test_a_call_by_name_calls_no_other_function(page: Page):
    """Gradio goes by the name there, and would leave the number unchecked."""
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "stop"]
    for name in ("again", "for_page", "nothing"):
        body = {"fn_index": index, "data": [None], "session_hash": "s"}
        assert page.client.post(f"/gradio_api/call/{name}", json=body).status_code == 404


@pytest.mark.parametrize("name", ["cancel", "reset"])
def test_gradios_routes_to_cancel_calls_are_closed(page: Page, name: str):
    """Gradio forgets a call that is cancelled, and goes on with it all the same."""
    body = {"fn_index": 0, "session_hash": "s", "event_id": "e"}
    assert page.client.post(f"/gradio_api/{name}", json=body).status_code == 404


def test_functions_of_the_browser_alone_cannot_be_called(page: Page):
    alone = {
        each["id"] for each in page.blocks.config.get("dependencies", []) if not each["backend_fn"]
    }
    assert alone == page.blocks.fns.keys() - {index for index, _ in with_backend(page)} != set()
    for index in alone:
        data = [None] * len(page.blocks.fns[index].inputs)
        assert page.join(index, data).status_code == 404


def test_a_missing_session_is_reported_without_a_traceback(
    page: Page, caplog: pytest.LogCaptureFixture
):
    answer = page.client.get("/gradio_api/queue/data?session_hash=gone")
    told = json.loads(answer.text.removeprefix("data: "))
    assert (told["msg"], told["session_not_found"]) == ("unexpected_error", True)
    assert not [record for record in caplog.records if record.exc_info]


def test_messages_that_another_stream_has_deleted_are_no_error(page: Page):
    messages = page.blocks._queue.pending_messages_per_session
    del messages["gone"]
    assert messages["gone"].empty()  # nothing is kept of what is put there
    assert "gone" not in messages


def test_a_stream_that_breaks_off_is_ended():
    async def break_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("response already started")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    checked = calls.CheckedCalls.__new__(calls.CheckedCalls)
    checked._app = break_off
    asyncio.run(checked._stream({}, cast(Any, None), send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


def test_a_lone_surrogate_is_replaced(page: Page):
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "length"]
    body = {"fn_index": index, "session_hash": "s", "data": ["a \ud800", *CHOSEN]}
    content = json.dumps(body)
    assert "a \\ud800" in content
    answer = page.client.post("/gradio_api/run/predict", content=content)
    assert answer.status_code == 200, answer.text


def test_malformed_calls_are_refused_with_a_reason(page: Page):
    odd = "x" * 65
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "length"]
    values = ["a", *CHOSEN]
    for status, answer in [
        (404, page.join(999, [])),
        (404, page.join(-1, [])),
        (404, page.join(None, [])),
        (422, page.join("0", [])),
        (422, page.join(True, [])),
        (422, page.join(index, values, trigger_id="x")),
        (422, page.join(index, values, event_id="a b")),
        (422, page.join(index, [])),
        (422, page.join(index, [*values, "more"])),
        (422, page.join(index, "abc")),
        (400, page.join(index, values, session_hash=odd)),
        (400, page.join(index, values, session_hash="a/b")),
        (400, page.join(index, values, session_hash=7)),
        (400, page.client.post("/gradio_api/queue/join", content=b"{")),
        (400, page.client.post("/gradio_api/queue/join", json=[])),
        (400, page.client.post("/gradio_api/queue/join", content=b"[" * 100_000)),
        (400, page.join(index, [json.loads("[" * 40 + "]" * 40), *CHOSEN])),
        (404, page.client.post("/gradio_api/call/no_such", json={"data": []})),
        (404, page.client.post("/gradio_api/run/no_such", json={"data": []})),
        (404, page.client.post("/gradio_api/call/length", json={"data": values})),
        (404, page.client.post("/gradio_api/call/v2/no_such", json={})),
        (422, page.client.post("/gradio_api/call/v2/generate", json={})),
        (422, page.client.post("/gradio_api/call/v2/generate", json={"prompt": "a", "b": 1})),
        (400, page.client.get(f"/gradio_api/heartbeat/{odd}")),
        (400, page.client.get(f"/gradio_api/queue/data?session_hash={odd}")),
        (400, page.client.get("/gradio_api/queue/data")),
        (400, page.client.get(f"/gradio_api/call/generate/{odd}")),
    ]:
        assert answer.status_code == status, answer.text
        assert len(answer.json()["detail"]) < 500
        for private in ("Traceback", 'File "', "site-packages", str(page.folder)):
            assert private not in answer.text


def test_only_checked_fields_reach_gradio(page: Page):
    """Duplicate fields are read the same way on both sides, and unknown fields are dropped."""
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "length"]
    body = (
        '{"fn_index": 0, "session_hash": "s", "data": ["a"], "batched": true,'
        f'"fn_index": {index}, "data": {json.dumps(["a red star", *CHOSEN])}}}'
    )
    answer = page.client.post("/gradio_api/run/predict", content=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.lasting
def test_the_pages_own_api_can_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    page = Page(tmp_path, programs=False)
    with page.client as client:
        assert client.post("/gradio_api/call/v2/generate", json={"prompt": "a"}).status_code == 404
        for kind in ("call", "api", "run"):
            answer = client.post(f"/gradio_api/{kind}/generate", json={"data": ["a"]})
            assert answer.status_code == 404
        assert client.get("/gradio_api/info").json()["named_endpoints"] == {}
        [index] = [i for i, each in page.blocks.fns.items() if each.name == "length"]
        assert page.join(index, ["a", *CHOSEN]).status_code == 200  # the page still works
    assert page.generator.asked == []


@pytest.mark.lasting
def test_programs_need_a_key_and_the_page_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    page = Page(tmp_path, keys=ApiKeys(lambda: digests_of(["secret"])))
    indices = {each.name: index for index, each in page.blocks.fns.items()}
    for_programs, for_page = indices["for_programs"], indices["for_page"]
    nothing = [None] * len(page.blocks.fns[for_page].inputs)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("call/v2/generate", {"prompt": "a"}),
        *((f"{kind}/generate", {"data": []}) for kind in ("call", "api", "run")),
        *(
            (kind, {"fn_index": for_programs, "data": [], "session_hash": "s"})
            for kind in ("queue/join", "api/generate", "run/predict")
        ),
    ]
    with page.client as client:

        def status(path: str, body: dict[str, Any], **headers: str) -> int:
            return client.post(f"/gradio_api/{path}", json=body, headers=headers).status_code

        for path, body in calls:
            assert status(path, body) == 401, path
            assert status(path, body, Authorization="Bearer wrong") == 401, path
        assert page.generator.asked == []
        assert not page.sessions.session_data
        assert status(*calls[0], Authorization="Bearer secret") == 200
        # Only the number of values is wrong.
        assert status(*calls[1], Authorization="Bearer secret") == 422
        assert page.join(indices["length"], ["a", *CHOSEN]).status_code == 200
        assert page.join(for_page, nothing).status_code == 200


# --- sessions ---


def test_an_address_has_a_bounded_number_of_sessions(page: Page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "MOST_EACH", 3)
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "length"]
    body = {"fn_index": index, "data": ["a", *CHOSEN]}
    for i in range(10):
        assert page.client.post(
            "/gradio_api/run/predict", json=body | {"session_hash": f"s{i}"}
        ).is_success
    assert set(page.sessions.session_data) == {"s7", "s8", "s9"}
    with page.sessions.held("s7"):  # as an open page holds it
        for i in range(10, 20):
            session = {"session_hash": f"s{i}"}
            assert page.client.post("/gradio_api/run/predict", json=body | session).is_success
        assert set(page.sessions.session_data) == {"s7", "s18", "s19"}


def test_calls_without_a_session_are_counted_too(page: Page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "MOST_EACH", 3)
    for _ in range(10):
        call = page.client.post("/gradio_api/call/v2/generate", json={"prompt": "a red star"})
        event = call.json()["event_id"]
        answer = page.client.get(f"/gradio_api/call/generate/{event}")
        assert "event: complete" in answer.text
    assert len(page.sessions.session_data) <= 3
    assert len(page.blocks._queue.pending_event_ids_session) <= 3


def test_unanswered_calls_of_one_session_are_bounded(page: Page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "MOST_CALLS", 3)
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "stop"]
    statuses = [page.join(index, [None]).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]


def test_unanswered_calls_of_one_address_are_bounded(page: Page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "MOST_CALLS_EACH", 3)
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "stop"]
    statuses = [page.join(index, [None], session_hash=f"s{i}").status_code for i in range(4)]
    named = page.client.post("/gradio_api/call/v2/generate", json={"prompt": "a"}).status_code
    unnamed = page.client.post("/gradio_api/call/generate", json={"data": ["a"]}).status_code
    assert [*statuses, named, unnamed] == [200, 200, 200, 429, 429, 429]


def test_waiting_pages_do_not_block_other_pages(page: Page):
    """Waiting pages leave room for others, although each takes one of Gradio's concurrent calls."""
    assert len(page.blocks._queue.active_jobs) == sessions.CALLS_AT_A_TIME
    assert sessions.CALLS_AT_A_TIME >= 8 * sessions.MOST_CALLS_EACH


def test_all_addresses_together_have_a_bounded_number_of_sessions(
    page: Page, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sessions, "MOST", 4)
    page.sessions.admit("kept", "other")
    for i in range(10):
        assert page.sessions.admit(f"s{i}", "greedy")
    assert {name: set(own) for name, own in page.sessions._of.items()} == {
        "other": {"kept"},
        "greedy": {"s7", "s8", "s9"},
    }


def test_a_session_takes_little_memory(page: Page):
    """A session copies no component's properties, so it takes a tenth of the memory."""
    state = page.sessions["session"]
    [index] = [i for i, each in page.blocks.fns.items() if each.name == "length"]
    page.join(index, ["x" * 100_000, *CHOSEN], session_hash="session")
    assert not list(state.components)


# --- uploads ---


@pytest.mark.lasting
def test_uploads_of_one_address_are_bounded(page: Page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "MOST_BYTES_EACH", 100)
    page = Page(page.folder)
    paths = [page.upload(b"x" * 40) for _ in range(2)]
    refused = page.client.post("/gradio_api/upload", files={"files": ("a.png", b"x" * 40)})
    assert refused.status_code == 429
    Path(paths[0]).unlink()  # as after its settings were read
    page.upload(b"x" * 40)
    assert len([path for path in page.folder.rglob("*") if path.is_file()]) == 2


def test_the_same_picture_from_two_visitors_is_two_files(page: Page):
    one, other = page.upload(), page.upload()
    assert one != other
    Path(one).unlink()
    assert Path(other).read_bytes() == b"a picture"


def test_unread_uploads_are_removed(page: Page, monkeypatch: pytest.MonkeyPatch):
    page.upload()
    monkeypatch.setattr(uploads, "KEPT_S", -1.0)
    left = Path(page.upload(b"another"))
    assert [path for path in page.folder.rglob("*") if path.is_file()] == [left]
    assert len(list(page.folder.iterdir())) == 1


@pytest.mark.parametrize("field", ["other", "files"])
def test_a_malformed_form_leaves_no_files(page: Page, field: str):
    for files in ([(field, ("a.png", b"x"))] * 2, [(field, (None, b"x" * 2_000_000))], []):
        answer = page.client.post("/gradio_api/upload", files=files)
        assert 400 <= answer.status_code < 500
    answer = page.client.post("/gradio_api/upload", content=b"x")
    assert 400 <= answer.status_code < 500
    assert not page.folder.exists() or not any(page.folder.iterdir())


@pytest.mark.parametrize(
    ("language", "start"),
    [
        ("de-AT, en;q=0.5", "Aus deinem Netz"),
        ("fr", "Cette page est ouverte"),
        ("ja", "This page is open"),
    ],
)
def test_a_refusal_is_in_the_visitors_language(
    page: Page, monkeypatch: pytest.MonkeyPatch, language: str, start: str
):
    monkeypatch.setattr(page.sessions, "admit", lambda *_: False)
    refused = page.client.get(
        "/gradio_api/queue/data?session_hash=a", headers={"Accept-Language": language}
    )
    assert refused.status_code == 429
    assert refused.json()["detail"].startswith(start)
    assert refused.json()["error"]["message_code"] == "too_many_pages"


def test_a_refused_upload_is_in_the_visitors_language(page: Page):
    refused = page.client.post(
        "/gradio_api/upload", files={"other": b""}, headers={"Accept-Language": "es"}
    )
    assert refused.status_code == 400
    assert refused.text == "El formulario no contiene ningún archivo llamado «files»."


def test_files_that_an_event_names_are_removed(page: Page):
    index, function = next(
        (index, function)
        for index, function in page.blocks.fns.items()
        if function.fn is not None and function.collects_event_data
    )
    body = {
        "fn_index": index,
        "session_hash": "session",
        "data": [None] * len(function.inputs),
        "event_data": {"value": {"image": FILE | {"path": "/etc/passwd"}}},
    }
    answer = page.client.post("/gradio_api/run/predict", json=body)
    assert answer.status_code == 200, answer.text
