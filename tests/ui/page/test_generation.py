"""The page's own functions, with a stand-in for the generator."""

import asyncio
import errno
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from html import escape
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from PIL import Image as Pillow

from pipeline.images.metadata import Settings
from pipeline.request import VALUES as DECLARED
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Image,
    Pause,
    Queued,
    Request,
    RequestError,
)
from serving.messages import Code, Message, untranslated
from tests.pages import (
    CLIENT,
    MODEL,
    SENDER,
    VALUES,
    StandIn,
    all_of,
    call_with,
    said_of,
    to_request,
)
from ui import i18n, status
from ui.form import requests
from ui.form.fields import Fields, Visitor
from ui.page import generation, page
from ui.page.generation import STRONG, SUBTLE, Drawing
from ui.page.page import build_page
from ui.pictures import embedding, files
from ui.pictures.saved import Picture
from ui.samples.examples import examples_for, surprise
from ui.samples.model_kind import Kind, kind_of
from ui.samples.styles import NONE, Typed, styles_for, typed
from ui.wiring import Updates, Wiring

BLANK = "Enter a prompt first."
BROKEN = "Something went wrong. Try again."

ROOT = Path(__file__).parents[3]

OTHERS: dict[str, Any] = {
    "several": False,
    "guidance_until": 1,
    "variation_strength": 0,
    "variation_seed": 0,
    "size": "",
}


@pytest.fixture(autouse=True)
def served_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


def test_a_long_session_id_is_cut():
    sender = gr.Request(CLIENT, session_hash="x" * 2**20)  # type: ignore[arg-type]
    assert Visitor.behind(sender) == Visitor("x" * 64, "::1")


def pressed(drawing: Drawing, told: dict[str, Any] | None = None, **changes: Any) -> Updates:
    """Return what the page gets at a press of Generate."""
    values: dict[str, Any] = {**OTHERS, "randomise": False} | VALUES | changes
    return asyncio.run(drawing.for_page(call_with(told=told, **Fields(**values).shown())))


def shown(stand_in: StandIn, *, randomise: bool = False, **changes: Any) -> list[Updates]:
    """Return all updates that the page receives of one request."""
    values: dict[str, Any] = {**OTHERS, "randomise": randomise} | VALUES | changes
    drawing = Drawing(stand_in, Kind.MINIATURE)
    return all_of(drawing, drawing.for_page(call_with(**Fields(**values).shown())))


# --- from fields to a request ---


def test_plain_request():
    request = to_request(prompt="  a red star \n")
    assert 0 <= request.variation_seed < 2**32
    assert replace(request, variation_seed=0) == Request(
        "a red star", None, 5.0, 25, 7, id=request.id, visitor="a session", address="::1"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": ""}, BLANK),
        ({"prompt": " \t\u2003\n"}, BLANK),
        ({"prompt": None}, BLANK),
        ({"prompt": ["a", "b"]}, "Prompt must be text"),
        ({"prompt": "x" * 2001}, "Prompt: 2001 characters are too many. The limit is 2000"),
        ({"negative_prompt": "x" * 10**7}, "Negative prompt: 10000000 characters"),
        ({"style": "Baroque"}, "Style: Baroque is unknown"),
        ({"style": None}, "Style: nothing is unknown"),
        ({"guidance_scale": float("nan")}, "Guidance scale must be 0–50."),
        ({"guidance_scale": float("inf")}, "Guidance scale must be 0–50."),
        ({"guidance_scale": 50.5}, "Guidance scale must be 0–50."),
        ({"guidance_scale": -1}, "Guidance scale must be 0–50."),
        ({"guidance_scale": "5"}, "Guidance scale must be 0–50."),
        ({"guidance_scale": 10**400}, "Guidance scale must be 0–50."),
        ({"steps": 0}, "Steps must be 1–50."),
        ({"steps": 51}, "Steps must be 1–50."),
        ({"steps": 2.5}, "Steps: 2.5 is not a whole number. It must be 1–50."),
        ({"steps": True}, "Steps: True"),
        ({"steps": float("nan")}, "Steps: nan"),
        ({"steps": None}, "Steps: nothing"),
        ({"guidance_until": 1.5}, "Stop guidance at must be 0–1."),
        ({"variation_strength": None}, "Variation strength must be 0–1."),
        ({"variation_seed": 2.5}, "Variation seed: 2.5"),
        ({"size": "384x256"}, "Size: 384x256 is unknown. Choose from 256x256."),
        ({"size": 256}, "Size must be text"),
        ({"seed": -1}, "Seed must be 0–4294967295."),
        ({"seed": 2**32}, "Seed must be 0–4294967295."),
        ({"seed": "seven"}, "Seed: seven"),
    ],
)
def test_refused(changes: dict[str, Any], said: str):
    with pytest.raises(RequestError) as refused:
        to_request(**changes)
    assert said in i18n.translate(refused.value.message)


@pytest.mark.parametrize("sent", [None, "half", 101, -1, 10**400, float("nan"), [50]])
def test_a_share_that_the_page_cannot_send_is_refused(sent: object):
    fields = Fields.sent({"prompt": "a star", "guidance_until": sent})
    with pytest.raises(RequestError):
        to_request(guidance_until=fields.guidance_until)


def test_limits_are_inclusive():
    request = to_request(prompt="x" * 2000, guidance_scale=50, steps=50, seed=2**32 - 1)
    assert (request.guidance_scale, request.num_inference_steps) == (50.0, 50)
    assert to_request(seed=7.0).seed == 7


def test_without_a_seed_the_seed_is_random():
    seeds = {to_request(seed=None).seed for _ in range(20)}
    assert len(seeds) > 15
    assert all(0 <= seed < 2**32 for seed in seeds)


# --- styles and examples ---


@pytest.mark.parametrize("kind", Kind)
def test_ten_styles_and_none(kind: Kind):
    styles = styles_for(kind)
    assert next(iter(styles)) == NONE
    assert len(styles) == 11
    assert styles[NONE].apply("a {star}", " dull ") == ("a {star}", "dull")


@pytest.mark.parametrize("negative", ["", "dull"])
@pytest.mark.parametrize("kind", Kind)
def test_the_words_of_a_style_are_recognised(kind: Kind, negative: str):
    styles = styles_for(kind)
    for style in styles.values():
        prompts = style.apply("a {prompt} star", negative)
        assert typed(styles.values(), *prompts) == Typed("a {prompt} star", negative, style.name)
    photo = "a star, candid photograph, natural light, 50mm lens, fine detail, true colours"
    assert typed(styles.values(), photo, "other words") == Typed(photo, "other words", NONE)


@pytest.mark.parametrize("kind", Kind)
def test_styles_keep_the_visitors_words(kind: Kind):
    for style in styles_for(kind).values():
        prompt, negative = style.apply("a {prompt} % star", "dull")
        assert "a {prompt} % star" in prompt
        assert negative.startswith("dull")
        assert style.prompt.count("{prompt}") == 1


def test_style_reaches_the_request():
    request = to_request(style="Watercolour", negative_prompt="people")
    assert str(request.prompt).startswith("a red star, watercolour")
    assert str(request.negative_prompt).startswith("people, ")


@pytest.mark.parametrize("kind", Kind)
def test_examples_are_short_enough_to_be_read_whole(kind: Kind):
    assert examples_for(kind)
    assert all(len(example) <= 60 for example in examples_for(kind))


@pytest.mark.parametrize(
    ("name", "licence"),
    [
        ("stabilityai/stable-diffusion-xl-base-1.0", "Open RAIL++-M"),
        ("stable-diffusion-xl-base-1.0", "Open RAIL++-M"),
        ("someone/stable-diffusion-xl-faces", i18n.OWN_LICENCE),
        ("someone/other", i18n.OWN_LICENCE),
    ],
)
def test_a_licence_is_only_named_where_it_is_known(name: str, licence: str):
    model = replace(MODEL, name=name)
    assert escape(licence) in page._footer(model, kind_of(model))


def test_changing_the_choice_of_settings_inside_writes_nothing_without_pictures(
    monkeypatch: pytest.MonkeyPatch,
):
    saved: list[object] = []
    monkeypatch.setattr(files, "save", lambda named: saved.append(named) or [])
    with gr.Blocks() as blocks:
        wiring = Wiring(blocks)
        for name in ("embed", "gallery", "pictures", "relay", "texts"):
            wiring.add(name, gr.State([]) if name == "pictures" else gr.Checkbox())
        embedding.connect(wiring, StandIn())
    [follow] = [each.fn for each in blocks.fns.values() if each.fn]
    answer = follow(SENDER, gr.EventData(None, None), False, [])  # type: ignore[misc]
    assert asyncio.run(answer) == gr.skip()
    assert saved == []


def test_a_models_kind_follows_its_name():
    assert kind_of(replace(MODEL, name="miniature", bundled=True)) is Kind.MINIATURE
    assert kind_of(replace(MODEL, name="org/stable-diffusion-xl-base-1.0")) is Kind.SDXL
    assert kind_of(replace(MODEL, name="miniature")) is Kind.OTHER


@pytest.mark.parametrize("kind", Kind)
def test_surprises_are_many_and_short(kind: Kind):
    found = {surprise(kind, Random(seed)) for seed in range(50)}
    assert len(found) > 40
    assert all(prompt.startswith("a") and len(prompt) <= 80 for prompt in found)


# --- several prompts ---


def test_a_picture_for_each_line():
    request = to_request(prompt=" a red star \n\n a moon\n", several=True, style="Anime")
    assert [prompt[:12] for prompt in request.prompt] == ["a red star, ", "a moon, hand"]
    assert request.images == 2
    assert str(request.negative_prompt).startswith("photograph")
    assert to_request(prompt="a\nb").prompt == "a\nb"
    assert to_request(prompt="a", several=True).images == 1


@pytest.mark.parametrize(("prompt", "said"), [("a\n" * 5, "5 lines"), ("\n \n", "describe")])
def test_too_many_lines_and_none(prompt: str, said: str):
    with pytest.raises(RequestError, match=said):
        to_request(prompt=prompt, several=True)


def test_each_picture_of_several_has_its_own_caption():
    class Several(StandIn):
        async def events(
            self, request_id: str, pause_s: float | None = None
        ) -> AsyncGenerator[Event]:
            for i, prompt in enumerate(self.asked[-1].prompt):
                settings = {**said_of(self.asked[-1], 7 + i), "prompt": prompt}
                yield Image(i, b"png", 7 + i, settings)
            yield Done()

    (*_, last) = shown(Several(), prompt="a red star\na moon", several=True)
    assert [caption for _, caption in last["gallery"]] == ["Seed 7: a red star", "Seed 8: a moon"]
    assert Path(last["gallery"][1][0]).name == "a-moon-8.png"


# --- updates of the page ---


def test_the_page_shows_that_it_begins_and_then_pictures(served_folder: Path):
    updates = shown(StandIn(), steps=3)
    request_id = updates[0]["relay"]["request"]
    assert updates[0]["status"] == status.busy(i18n.text("starting", attempt=1), request_id)
    line = updates[-1]["status"]
    assert re.fullmatch(r"4 pictures in \d+\.\d s", line["text"])
    assert (line["kind"], line["ends"]) == ("drawn", request_id)
    assert updates[0]["seed"] == 7  # the seed used is written back

    gallery = updates[-1]["gallery"]
    assert [caption for _, caption in gallery] == [f"Seed {s}: a red star" for s in (7, 8, 9, 10)]
    paths = [Path(path) for path, _ in gallery]
    assert [path.name for path in paths] == [f"a-red-star-{s}.png" for s in (7, 8, 9, 10)]
    assert paths[0].read_bytes() == b"png7"
    assert all(path.is_relative_to(served_folder) for path in paths)
    assert [each.settings.seed for each in updates[-1]["pictures"]] == [7, 8, 9, 10]


@pytest.mark.parametrize("error", [None, Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))])
def test_the_history_gets_a_request_again_at_its_end(error: Error | None):
    # Gradio drops the first update if another request ends at the same moment.
    updates = shown(StandIn(error=error), steps=3)
    entry, last_entry = updates[0]["relay"]["entry"], updates[-1]["relay"]["entry"]
    assert entry["link"]
    assert last_entry.items() >= entry.items()
    assert ("drawn" in last_entry) == (error is None)


def test_previews_stay_in_the_gallery_after_a_stop():
    update = shown(StandIn(error=Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))), steps=3)[-1]
    assert [Path(path).read_bytes() for path, _ in update["gallery"]] == [b"look 0", b"look 1"]
    assert {caption for _, caption in update["gallery"]} == {"Unfinished: step 3 of 3"}
    pictures = update["pictures"]
    assert [each.settings.seed for each in pictures] == [7, 8]
    assert {each.typed.prompt for each in pictures} == {"a red star"}


def test_a_stopped_request_is_finished_with_its_own_settings():
    stopped = Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))
    changes = {"style": "Night", "negative_prompt": "dull", "guidance_scale": 4.5}
    update = shown(StandIn(error=stopped), steps=3, randomise=True, **changes)[-1]
    stand_in = StandIn()

    pictures = update["pictures"]
    call = call_with({"key": pictures[1].key}, pictures=pictures)
    drawing = Drawing(stand_in, Kind.MINIATURE)
    last = all_of(drawing, drawing.finish(call))[-1]
    (asked,) = stand_in.asked
    assert asked.prompt == "a glossy picture of a red star on a black background"
    assert (asked.negative_prompt, asked.guidance_scale) == ("dull", 4.5)
    assert asked.num_inference_steps == 3
    assert asked.seed == update["pictures"][0].settings.seed
    assert [each.unfinished for each in last["pictures"]] == [None] * 4


@pytest.mark.parametrize("known", [True, False])
def test_a_stopped_request_can_be_finished_after_a_reload(known: bool):
    stand_in = StandIn(error=Error(ErrorKind.CANCELLED, Message(Code.CANCELLED)))
    drawing = Drawing(stand_in, Kind.MINIATURE)
    told = pressed(drawing, style="Night", steps=3)["relay"]
    if not known:  # the request was sent by another client
        drawing = Drawing(stand_in, Kind.MINIATURE)
    last = asyncio.run(drawing.again(call_with(told={"request": told["request"]})))
    assert {caption for _, caption in last["gallery"]} == {"Unfinished: step 3 of 3"}
    unfinished = [each.unfinished for each in last["pictures"]]
    assert [each.asked.style for each in unfinished] == (["Night", "Night"] if known else [])


@pytest.mark.parametrize("style", ["Glossy", "Night", NONE])
def test_pictures_have_the_words_that_were_typed(style: str):
    # With "Glossy" the model reads the same as for "a red star" with "Night".
    prompt = "a red star on a black background"
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    told = pressed(drawing, prompt=prompt, style=style)["relay"]
    followed = call_with({"id": told["request"]})
    reloaded = call_with(told={"request": told["request"]})
    for answer in (drawing.ended(followed), drawing.again(reloaded)):
        last = asyncio.run(answer)
        assert [each.typed for each in last["pictures"]] == [Typed(prompt, "", style)] * 4
        assert last["gallery"][0][1] == f"Seed 7: {prompt}"


def test_a_stop_before_the_first_preview_leaves_the_older_pictures(
    monkeypatch: pytest.MonkeyPatch,
):
    async def stopped(*_: object) -> AsyncGenerator[Event]:
        yield Queued(1, None)
        yield Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))

    monkeypatch.setattr(StandIn, "events", stopped)
    assert "gallery" not in shown(StandIn())[-1]


def test_a_blurred_picture_says_so():
    gallery = shown(StandIn(blurred=2), steps=1)[-1]["gallery"]
    said = [" blurred by the safety checker" in caption for _, caption in gallery]
    assert said == [False, False, True, False]
    assert gallery[2][1] == "Seed 9, blurred by the safety checker: a red star"


@pytest.mark.parametrize("family", ["Stable Diffusion", "Stable Diffusion XL"])
def test_the_title_names_the_models_family(family: str):
    stand_in = StandIn()
    stand_in.facts = replace(MODEL, family=family)
    page = build_page(stand_in)
    assert page.title == f"{family} on JAX"
    header = next(block for block in page.blocks.values() if block.elem_id == "header")
    assert f">{family} on JAX</h1>" in header.value  # type: ignore[attr-defined]


def test_random_seed_is_written_back():
    stand_in = StandIn()
    updates = shown(stand_in, randomise=True, steps=1)
    assert updates[0]["seed"] == stand_in.asked[0].seed


def test_the_ending_says_that_a_prompt_was_cut():
    warnings = [
        shown(StandIn(truncated=truncated), steps=1)[-1]["status"]["warning"]
        for truncated in ("the end", "")
    ]
    assert warnings == [i18n.END_LEFT_OUT, ""]


STOPPED = "stopped", "Stopped at step 1 of 1."


@pytest.mark.parametrize(
    ("stand_in", "kind", "said"),
    [
        (
            StandIn(error=Error(ErrorKind.INVALID, untranslated("<i>no</i>"))),
            "error",
            "<i>no</i>",  # the browser shows it as text
        ),
        (StandIn(error=Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))), *STOPPED),
        (StandIn(refusal=RequestError(untranslated("full"), ErrorKind.FULL)), "error", "full"),
    ],
)
def test_error_ends_as_a_message(stand_in: StandIn, kind: str, said: str):
    update = shown(stand_in, steps=1)[-1]
    assert (update["status"]["kind"], update["status"]["text"]) == (kind, said)


def test_broken_generator_ends_as_a_message(monkeypatch: pytest.MonkeyPatch):
    async def submit(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(StandIn, "submit", submit)
    (update,) = shown(StandIn())
    assert update["status"] == status.error(BROKEN)


def test_a_page_loaded_anew_finds_its_request_again():
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    request_id = pressed(drawing)["relay"]["request"]

    def again(request_id: Any) -> Updates:
        return asyncio.run(drawing.again(call_with(told={"request": request_id})))

    updates = again(request_id)
    assert updates["status"] == status.drawn("4 pictures", "", request_id)
    assert updates["gallery"][0][1] == "Seed 7: a red star"
    assert updates["relay"]["request"] == request_id
    anything: list[Any] = [None, "forgotten", ["a"], {"a": 1}, 7]
    for nothing_to_find in anything:
        assert again(nothing_to_find) == {}


def test_a_page_loaded_anew_follows_a_request_under_way(monkeypatch: pytest.MonkeyPatch):
    async def waiting(*_: object) -> AsyncGenerator[Event]:
        yield Queued(1, None)
        yield Pause()

    monkeypatch.setattr(StandIn, "events", waiting)
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    updates = asyncio.run(drawing.again(call_with(told={"request": "an id"})))
    line = status.busy(i18n.text("starting", attempt=1), "an id")
    assert updates == {"status": line, "relay": {"request": "an id", "entry": {"id": "an id"}}}


def choose(drawing: Drawing, data: Any) -> Updates:
    """Return what the page gets when an entry of the history is chosen."""
    return asyncio.run(drawing.chosen(call_with(data)))


def test_choosing_an_entry_shows_its_pictures_and_changes_no_field():
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    request_id = pressed(drawing)["relay"]["request"]
    updates = choose(drawing, {"id": request_id})
    assert [caption for _, caption in updates["gallery"]][1:] == [
        f"Seed {seed}: a red star" for seed in (8, 9, 10)
    ]
    assert updates.keys() == {"status", "relay", "gallery", "pictures", "texts", "panel"}
    keys = [picture.key for picture in updates["pictures"]]
    assert updates["relay"]["entry"] == {"id": request_id, "drawn": keys}


@pytest.mark.parametrize("data", [None, [], "x", {}, {"id": []}, {"id": "x"}, {"gone": {}}])
def test_an_entry_whose_pictures_are_no_longer_kept_is_told(data: Any):
    updates = choose(Drawing(StandIn(), Kind.MINIATURE), data)
    [entry] = [relay["entry"] for relay in updates.values()]
    assert entry["forgotten"]
    assert isinstance(entry["id"], str)


@pytest.mark.parametrize(
    ("gone", "seeds"),
    [
        ("0,2", [8, 10]),
        ("", [7, 8, 9, 10]),
        ("9,-1,x,00", [7, 8, 9, 10]),
        ([0, 2], [7, 8, 9, 10]),
        ("3" * 10**6, [7, 8, 9, 10]),
    ],
)
def test_deleted_pictures_stay_away(gone: Any, seeds: list[int]):
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    request_id = pressed(drawing)["relay"]["request"]
    told = {"request": request_id}
    reload = asyncio.run(drawing.again(call_with({"gone": gone}, told=told)))
    for updates in (choose(drawing, {"id": request_id, "gone": gone}), reload):
        assert [picture.settings.seed for picture in updates["pictures"]] == seeds
        assert len(updates["gallery"]) == len(seeds)
        assert len(updates["relay"]["entry"]["drawn"]) == len(seeds)


def test_deleted_previews_stay_away():
    stopped = Error(ErrorKind.CANCELLED, Message(Code.CANCELLED))
    drawing = Drawing(StandIn(error=stopped), Kind.MINIATURE)
    request_id = pressed(drawing)["relay"]["request"]
    updates = choose(drawing, {"id": request_id, "gone": "0"})
    assert [picture.settings.seed for picture in updates["pictures"]] == [8]


def test_the_time_is_told_of_a_request_that_was_in_sight():
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    request_id = pressed(drawing)["relay"]["request"]

    def ended(**data: Any) -> str:
        call = call_with({"id": request_id, **data})
        return asyncio.run(drawing.ended(call))["status"]["text"]

    assert "4 pictures in" in ended()
    assert ended(broken=True) == "4 pictures"
    assert ended() == "4 pictures"


@pytest.mark.parametrize("request_id", [None, "forgotten", {"a": 1}])
def test_a_request_lost_with_the_connection_is_reported(request_id: Any):
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    updates = asyncio.run(drawing.ended(call_with({"id": request_id})))
    ended_id = request_id if isinstance(request_id, str) else ""
    assert updates == {"status": status.note(i18n.LOST) | {"ends": ended_id}}


PRESS = "1-22-333-4444-55555"


def test_a_press_that_is_sent_again_is_drawn_once():
    stand_in = StandIn()
    drawing = Drawing(stand_in, Kind.MINIATURE)
    call = call_with(told={"press": PRESS}, **Fields(**VALUES, **OTHERS).shown())

    async def press_twice() -> list[Updates]:
        return list(await asyncio.gather(drawing.for_page(call), drawing.for_page(call)))

    first, second = asyncio.run(press_twice())
    assert first is second
    assert first["relay"]["request"] == PRESS
    assert [request.id for request in stand_in.asked] == [PRESS]


def test_a_press_goes_on_when_its_client_has_left(monkeypatch: pytest.MonkeyPatch):
    stand_in = StandIn()
    drawing = Drawing(stand_in, Kind.MINIATURE)
    submit = StandIn.submit

    async def slow(self: StandIn, request: Request) -> None:
        await asyncio.sleep(0.05)
        await submit(self, request)

    monkeypatch.setattr(StandIn, "submit", slow)

    async def leave_and_return() -> Updates:
        call = call_with(told={"press": PRESS}, **Fields(**VALUES, **OTHERS).shown())
        first = asyncio.create_task(drawing.for_page(call))
        await asyncio.sleep(0.01)
        first.cancel()
        return await drawing.for_page(call)

    assert asyncio.run(leave_and_return())["relay"]["request"] == PRESS
    assert len(stand_in.asked) == 1


@pytest.mark.parametrize("press_id", [None, "short", "x" * 65, "../" * 8, {"a": 1}, 7])
def test_an_id_that_no_page_sends_is_not_used(press_id: object):
    updates = pressed(Drawing(StandIn(), Kind.MINIATURE), told={"press": press_id})
    assert updates["relay"]["request"] not in (press_id, "")


def test_few_presses_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generation, "MOST_PRESSES", 2)
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    ids = [pressed(drawing)["relay"]["request"] for _ in range(3)]
    assert list(drawing._answers) == ids[1:]


def test_one_address_does_not_make_the_page_forget_presses_of_others(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(generation, "MOST_PRESSES", 2)
    drawing = Drawing(StandIn(), Kind.MINIATURE)
    values = {**OTHERS, "randomise": False} | VALUES
    ids = []
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.2"):
        call = call_with(**Fields(**values).shown())
        sender: Any = SimpleNamespace(session_hash="", client=SimpleNamespace(host=address))
        updates = asyncio.run(drawing.for_page(replace(call, sender=sender)))
        ids.append(updates["relay"]["request"])
    assert list(drawing._answers) == [ids[0], ids[2]]


def test_stop_stops_that_request():
    stand_in = StandIn()
    drawn = Drawing(stand_in, Kind.MINIATURE)
    for request_id in ("an id", [{"a": 1}]):
        asyncio.run(drawn.stop(call_with(told={"request": request_id})))
    assert stand_in.cancelled == ["an id", ""]


def test_blank_prompt_reaches_no_generator():
    stand_in = StandIn()
    (update,) = shown(stand_in, prompt=" ")
    assert update["status"] == status.error(BLANK, "prompt")
    assert stand_in.asked == []


# --- programs ---


def test_programs_get_files_and_seeds():
    program = Drawing(StandIn(truncated="end"), Kind.MINIATURE).for_programs
    found, seeds, left_out = asyncio.run(program(SENDER, "a red star", seed=7))
    assert seeds == [7, 8, 9, 10]
    assert left_out == "end"
    assert [file["orig_name"] for file in found] == [f"a-red-star-{s}.png" for s in seeds]


def test_programs_hear_of_parts_of_prompts_without_effect():
    class Ignoring(StandIn):
        async def events(
            self, request_id: str, pause_s: float | None = None
        ) -> AsyncGenerator[Event]:
            async for event in super().events(request_id, pause_s):
                is_image = isinstance(event, Image)
                yield replace(event, ignored=("<b:c>", "end")) if is_image else event

    program = Drawing(Ignoring(truncated="the end"), Kind.MINIATURE).for_programs
    assert asyncio.run(program(SENDER, "a <b:c>"))[2] == "<b:c> … the end"


def test_programs_upload_a_picture_which_is_deleted(served_folder: Path):
    upload = served_folder / "hash" / "picture.png"
    upload.parent.mkdir()
    Pillow.new("RGB", (8, 8), "red").save(upload)
    stand_in = StandIn()
    program = Drawing(stand_in, Kind.MINIATURE).for_programs
    asyncio.run(program(SENDER, "a red star", strength=0.5, image={"path": str(upload)}))
    (asked,) = stand_in.asked
    assert asked.strength == 0.5
    assert (asked.image or b"").startswith(b"\x89PNG")
    assert not upload.parent.exists()
    other = served_folder / "a-secret.png"
    other.write_bytes(b"a secret")
    for file in ({"path": str(other)}, {"path": str(upload)}, {}, {"path": "\0"}):
        with pytest.raises(gr.Error, match="it was not uploaded"):
            asyncio.run(program(SENDER, "a red star", image=file))
    assert other.exists()


def test_programs_get_errors_without_details():
    refused = StandIn(refusal=RequestError(untranslated("no"), ErrorKind.FULL))
    failed = StandIn(error=Error(ErrorKind.FAILED, untranslated("sorry")))
    for stand_in, said in ((refused, "no"), (failed, "sorry")):
        program = Drawing(stand_in, Kind.MINIATURE).for_programs
        with pytest.raises(gr.Error) as raised:
            asyncio.run(program(SENDER, "a red star", steps=1))
        assert raised.value.message == said


def test_only_generate_is_open_to_programs_and_nothing_waits_in_gradio():
    page = build_page(StandIn())
    info: dict[str, Any] = dict(page.get_api_info())
    assert list(info["named_endpoints"]) == ["/generate"]
    generate = info["named_endpoints"]["/generate"]
    assert "0 to 4294967295" in generate["description"]
    names = [each["parameter_name"] for each in generate["parameters"]]
    assert names[:10] == [  # programs may pass them by position
        *("prompt", "negative_prompt", "style", "guidance_scale", "steps", "seed"),
        *("guidance_until", "variation_strength", "variation_seed", "size"),
    ]
    for setting in DECLARED:
        parameter = generate["parameters"][names.index(setting.link)]
        default = None if setting.absent_note else setting.default
        assert parameter["parameter_default"] == default
        assert f"\n    {setting.link}: {setting.help}" in generate["description"]
    assert page._queue.default_concurrency_limit is None
    assert {fn.concurrency_limit for fn in page.fns.values()} == {"default"}


# --- sizes ---


def test_sizes_by_name():
    wide = replace(MODEL, more_sizes=((384, 256),))
    asked = [
        requests.to_request(
            wide, styles_for(Kind.SDXL), Fields(**VALUES, size=size), Visitor("", "")
        ).size
        for size in ("", "384x256", "256x256")
    ]
    assert asked == [None, (384, 256), (256, 256)]


# --- variations ---


def test_variations_of_a_picture():
    stand_in = StandIn()
    made = Settings(
        "a star",
        "dull",
        seed=7,
        num_inference_steps=10,
        guidance_scale=4.0,
        width=256,
        height=256,
        model="org/model",
    )

    picture = Picture(Path("folder/a-star-7.png"), Typed("a star", "dull"), made)

    varied = replace(made, variation_of="1:0.5", variation_seed=2, variation_strength=0.25)
    again = replace(picture, path=Path("folder/again.png"), settings=varied)

    def vary(key: str, how: str = "subtle") -> list[Updates]:
        drawing = Drawing(stand_in, Kind.SDXL)
        call = call_with({"key": key, "how": how}, pictures=[picture, again])
        return all_of(drawing, drawing.vary(call))

    assert "no longer kept" in vary("other/a-star-7.png")[-1]["status"]["text"]
    assert stand_in.asked == []
    vary(picture.key)
    vary(picture.key)
    one, other = stand_in.asked
    assert (one.prompt, one.negative_prompt, one.seed) == ("a star", "dull", 7)
    assert (one.num_inference_steps, one.variation_strength) == (10, SUBTLE)
    assert one.variation_seed != other.variation_seed

    vary(again.key, "strong")
    third = stand_in.asked[-1]
    assert (third.seed, third.variation_of) == (7, "1:0.5,2:0.25")
    assert third.variation_strength == STRONG

    drawing = Drawing(stand_in, Kind.SDXL)
    call = call_with({"key": again.key}, pictures=[picture, again])
    all_of(drawing, drawing.new_seed(call))
    fourth = stand_in.asked[-1]
    assert (fourth.prompt, fourth.num_inference_steps) == ("a star", 10)
    assert fourth.seed != 7
    assert (fourth.variation_strength, fourth.variation_of) == (0, "")


def test_variations_are_told_apart():
    class Varied(StandIn):
        async def events(
            self, request_id: str, pause_s: float | None = None
        ) -> AsyncGenerator[Event]:
            for i in range(2):
                about = {"variation_seed": 3 + i, "variation_strength": 0.5}
                yield Image(i, b"png", 7, said_of(self.asked[-1], 7) | about)
            yield Done()

    (*_, last) = shown(Varied())
    assert [caption for _, caption in last["gallery"]] == [
        "Seed 7, variation 3: a red star",
        "Seed 7, variation 4: a red star",
    ]
    assert [Path(path).name for path, _ in last["gallery"]] == [
        "a-red-star-7-3.png",
        "a-red-star-7-4.png",
    ]


# --- odds and ends ---


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("../../etc/passwd\0", "etc-passwd-0.png"),
        ("星", "picture-0.png"),
        ("Écran <script>", "ecran-script-0.png"),
        ("x" * 500, f"{'x' * 60}-0.png"),
    ],
)
def test_file_names_are_harmless(prompt: str, name: str):
    assert files.name(prompt, 0) == name


def test_a_full_disk_is_reported_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    write = Path.write_bytes

    def write_until_full(path: Path, content: bytes) -> int:
        if path.stem.endswith("-8"):
            write(path, content[:1])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_until_full)
    program = Drawing(StandIn(), Kind.MINIATURE).for_programs
    with pytest.raises(gr.Error, match="no room"):
        asyncio.run(program(SENDER, "a red star", seed=7))
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in caplog.text


def test_files_are_written_in_other_threads(monkeypatch: pytest.MonkeyPatch):
    write, threads = Path.write_bytes, list[threading.Thread]()

    def noted(path: Path, content: bytes) -> int:
        threads.append(threading.current_thread())
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", noted)
    assert len(shown(StandIn())[-1]["gallery"]) == 4
    stopped = StandIn(error=Error(ErrorKind.CANCELLED, Message(Code.CANCELLED)))
    assert len(shown(stopped)[-1]["gallery"]) == 2
    asyncio.run(Drawing(StandIn(), Kind.MINIATURE).for_programs(SENDER, "a red star"))
    assert len(threads) == 10
    # The event loop's thread must stay free for other visitors.
    assert threading.main_thread() not in threads


def test_old_pictures_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))

    async def save_and_wait() -> list[Path]:
        kept, old = files.save({"kept.png": b"k"}), files.save({"old.png": b"o"})
        os.utime(old[0].parent, (0, time.time() - 3601))
        tidying = asyncio.create_task(files.remove_old(3600, 0.05))
        while old[0].parent.exists():
            await asyncio.sleep(0.01)
        tidying.cancel()
        return kept

    assert asyncio.run(asyncio.wait_for(save_and_wait(), 60))[0].read_bytes() == b"k"


def test_model_line():
    model = replace(MODEL, device="TPU v5 lite", num_devices=4)
    line = "org/model · 256 × 256 pixels · on 4 × TPU v5 lite"
    assert f"<p>{line} · " in page._footer(model, Kind.OTHER)
    quantized = replace(model, quantization="int8")
    assert f"<p>{line}, int8 · " in page._footer(quantized, Kind.OTHER)


@pytest.mark.lasting
def test_page_needs_no_jax():
    program = "import sys, ui.page.page, ui.theme; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
