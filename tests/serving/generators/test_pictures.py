"""Pictures that requests start from: in a generator's memory, and on their way to instances."""

import sys
from typing import Any

import pytest

from serving.generator import Error, Request
from serving.generators import backends
from serving.http import schemas
from serving.messages import Code
from serving.requests.lifecycle import RequestLifecycle
from tests.calls import BODY, post
from tests.fake_pipeline import FakePipeline
from tests.fleets import front_of, pictures
from tests.generators import follow, refuses, run, until
from tests.pictures import GREY, base64_of, colour_of, events_of, mask
from tests.pictures import saved as file_of
from tests.run_by import run_by
from tests.web import serve


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HEALTH_S", 0.1)


def request(prompt: str = "a star", **others: Any) -> Request:
    values = {"image": file_of(GREY.resize((8, 8))), "seed": 7, "images": 1} | others
    return Request(prompt, num_inference_steps=4, **values)


@pytest.mark.parametrize(
    ("ends", "kind"),
    [("done", None), ("refused", "invalid"), ("cancelled", "cancelled"), ("left", "abandoned")],
)
@run_by(run, held=True)
async def test_a_picture_is_not_kept_when_its_request_has_ended(
    generator: RequestLifecycle, pipe: FakePipeline, ends: str, kind: str | None
):
    picture = file_of(GREY.resize((8, 8)))
    before = sys.getrefcount(picture)
    wanted = request("refuse" if ends == "refused" else "a star", image=picture)
    request_id = wanted.id
    await generator.submit(wanted)
    del wanted
    assert sys.getrefcount(picture) > before
    await until(lambda: pipe.calls)
    if ends == "cancelled":
        generator.cancel(request_id)
    elif ends == "left":
        events = generator.events(request_id)
        await anext(events)
        await events.aclose()
        await until(lambda: generator.load.running == 0)
    pipe.let_all()
    told = await follow(generator, request_id)
    assert (told[-1].kind if isinstance(told[-1], Error) else None) == kind
    await until(lambda: not generator._tasks)
    pipe.calls.clear()  # the stand-in keeps them for tests
    await until(lambda: sys.getrefcount(picture) == before)


@run_by(run, held=True, grace_s=0.02)
async def test_a_request_that_lost_its_picture_is_not_drawn_again(
    generator: RequestLifecycle, pipe: FakePipeline
):
    wanted = request(keep=True)
    await generator.submit(wanted)
    events = generator.events(wanted.id)
    await anext(events)
    await generator.take_up(wanted.id)  # it is still under way
    await events.aclose()
    await until(lambda: generator.load.running + generator.load.waiting == 0)
    with refuses(Code.INPUT_GONE):
        await generator.take_up(wanted.id)


def test_a_picture_is_in_no_description_of_a_request():
    wanted = request(mask=b"a mask")
    assert "PNG" not in repr(wanted)
    assert "a mask" not in str(wanted)
    assert wanted.input_bytes == len(wanted.image or b"") + 6


def test_a_picture_is_passed_on():
    wanted = request(mask=mask(8, 8), strength=0.5, padding=3)
    sent = schemas.from_request(wanted)
    body = schemas.GenerateBody.model_validate(sent)
    found = body.take_input()
    assert (found.image, found.mask) == (wanted.image, wanted.mask)
    assert (body.strength, body.padding, body.image, body.mask) == (0.5, 3, None, None)
    plain = schemas.from_request(Request("a star", seed=7))
    assert not plain.keys() & {"image", "mask", "strength", "padding"}


@pytest.mark.lasting
def test_a_front_end_passes_pictures_on():
    body = BODY | {"image": base64_of(file_of(GREY)), "mask": base64_of(mask()), "strength": 0.6}
    with serve() as site, front_of(site.url) as front:
        there, here = events_of(post(site, body)), events_of(post(front, body))
        assert pictures(here) == pictures(there)
        assert colour_of(here) == (7, 100, 127)
        assert events_of(post(front, BODY))[-1][0] == "done"
