"""An operator's own screening: its input, the effect of its answers, and the visible pictures."""

import asyncio
import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Gate
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import openai
import pytest
from mcp import types
from PIL import Image

from pipeline import Cancelled, ScreenError, SDXLPipeline, metadata
from pipeline.drawing import engine
from pipeline.drawing.drawing import Drawing as Pictures
from pipeline.images.moderation import Screen, blur
from pipeline.request import GenerateRequest
from serving.generators.client import Client
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests import screens
from tests.calls import Event, call, generate
from tests.checkpoints import EXECUTABLES, SMALLEST, nothing_compiles
from tests.generators import drawer_of, local_generator, remote_generator
from tests.web import Site, serve, wait_until
from ui.page.generation import Drawing
from ui.samples.model_kind import Kind


class Screening:
    """A screen with replaceable behaviour that records its input."""

    def __init__(self) -> None:
        self.by: Any = screens.every_second
        self.given: list[Image.Image] = []

    def __call__(self, images: list[Image.Image]) -> Any:
        self.given = images
        return self.by(images)


@pytest.fixture(scope="module")
def shared() -> tuple[SDXLPipeline, Screening]:
    screening = Screening()
    pipe = SDXLPipeline.from_pretrained(
        SMALLEST,
        images_per_request=2,
        num_inference_steps=2,
        devices=jax.devices()[:1],
        screen=screening,
        cache_dir=EXECUTABLES,
    )
    return pipe, screening


@pytest.fixture
def pipe(shared: tuple[SDXLPipeline, Screening], screening: Screening) -> SDXLPipeline:
    return shared[0]


@pytest.fixture
def screening(shared: tuple[SDXLPipeline, Screening]) -> Screening:
    shared[1].by = screens.every_second
    return shared[1]


@pytest.fixture
def decided(screening: Screening) -> Iterator[Gate]:
    """Yield a gate that has to be opened before the screen flags pictures."""
    gate = Gate()
    screening.by = lambda images: [gate.wait(60) for _ in images]
    yield gate
    gate.set()


def pixels(png: bytes | str) -> np.ndarray:
    content = png if isinstance(png, bytes) else base64.b64decode(png)
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image)


# --- the pipeline


@pytest.mark.slow
def test_a_flagged_picture_is_blurred_and_sent_unblurred_beside(
    pipe: SDXLPipeline, screening: Screening
) -> None:
    with nothing_compiles():
        result, floats = (pipe.generate("a star", output_type=kind) for kind in ("pil", "np"))
    assert result.flagged == floats.flagged == [True, False]
    assert [image.mode for image in screening.given] == ["RGB", "RGB"]
    assert [image.info for image in screening.given] == [{}, {}]
    drawn = [np.asarray(image) for image in screening.given]
    shown = [np.asarray(image) for image in result.images]
    np.testing.assert_array_equal(shown, [blur(drawn[0]), drawn[1]])
    np.testing.assert_allclose(floats.images[0], shown[0] / 255, atol=1e-6)
    [(index, itself)] = result.unblurred.items()
    assert index == 0
    np.testing.assert_array_equal(itself, drawn[0])
    assert floats.unblurred == {}
    texts = [image.info[metadata.KEY] for image in (*result.images, itself)]
    remarks = [metadata.from_text(text).safety_checker for text in texts]
    assert remarks == [metadata.BLURRED, None, None]


def test_a_picture_flagged_in_its_first_run_stays_blurred(
    pipe: SDXLPipeline, screening: Screening
) -> None:
    verdicts = iter([[True], [False]])
    screening.by = lambda _: next(verdicts)
    result = pipe.generate("a star", images=1, enlarge=(16, 16), enlarge_strength=1.0)
    settings = metadata.from_text(result.images[0].info[metadata.KEY])
    assert (result.unblurred, settings.safety_checker) == ({}, metadata.BLURRED)


def begun(pipe: SDXLPipeline, steps: int) -> Pictures:
    drawing = pipe.prepare(GenerateRequest("a star", num_inference_steps=steps), 1)
    pipe.begin(drawing)
    return drawing


def decoded(pipe: SDXLPipeline, steps: int) -> Pictures:
    """Begin a drawing, and advance until all its steps are done."""
    drawing = begun(pipe, steps)
    while drawing.done < steps:
        pipe.advance()
    return drawing


def finish(pipe: SDXLPipeline) -> None:
    while pipe.is_busy:
        pipe.advance()


def test_a_slow_screen_delays_no_step_of_other_pictures(pipe: SDXLPipeline, decided: Gate) -> None:
    slow, other = decoded(pipe, 2), decoded(pipe, 5)
    assert pipe.is_finishing
    assert not slow.is_over
    assert not other.is_over
    decided.set()
    finish(pipe)
    assert slow.result().flagged == other.result().flagged == [True]


def test_no_picture_enters_while_many_wait_for_the_screen(
    pipe: SDXLPipeline, decided: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_DECODED", 1)
    drawings = [begun(pipe, 2) for _ in range(6)]
    while sum(drawing.done for drawing in drawings) < 2 * 2:
        pipe.advance()
    pipe.advance()
    assert [drawing.entered for drawing in drawings] == [1, 1, 0, 0, 0, 0]
    decided.set()
    finish(pipe)
    assert all(drawing.is_over for drawing in drawings)


def test_a_drawing_is_cancelled_while_it_waits_for_the_screen(
    pipe: SDXLPipeline, decided: Gate
) -> None:
    drawing = decoded(pipe, 2)
    drawing.cancelled.set()
    assert [progress.drawing for progress in pipe.advance()] == [drawing]
    assert isinstance(drawing.error, Cancelled)
    assert not pipe.is_busy


def test_latents_are_not_screened(pipe: SDXLPipeline, screening: Screening) -> None:
    screening.by = screens.broken
    assert pipe.generate("a star", output_type="latent").flagged == [False, False]


def test_answers_may_be_an_array(pipe: SDXLPipeline, screening: Screening) -> None:
    screening.by = lambda images: np.array([False, True])
    result = pipe.generate("a star")
    assert result.flagged == [False, True]
    assert list(result.unblurred) == [1]


@pytest.mark.parametrize("wrong", [screens.broken, screens.too_few, lambda images: None])
def test_a_wrong_number_of_verdicts_is_an_error(
    wrong: Screen, pipe: SDXLPipeline, screening: Screening
) -> None:
    screening.by = wrong
    with pytest.raises(ScreenError):
        pipe.generate("a star")


# --- serving


@pytest.fixture(params=["here", "elsewhere"])
def site(pipe: SDXLPipeline, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Serve an instance that draws, or a front-end with that instance behind it."""
    generator = local_generator(pipe, Limits(), Observer())
    with serve(generator=generator) as behind:
        if request.param == "here":
            yield behind
            return
        front = remote_generator(Client(), [behind.url], generator.facts, Limits(), Observer())
        with serve(generator=front, passes_on=True) as site:
            yield site


def images(events: list[Event]) -> list[dict[str, Any]]:
    return [fields for name, fields in events if name == "image"]


def test_the_original_is_sent_if_asked_for(site: Site, screening: Screening) -> None:
    first, second = images(generate(site, unblurred=True))
    drawn = np.asarray(screening.given[0])
    np.testing.assert_array_equal(pixels(first["png"]), blur(drawn))
    np.testing.assert_array_equal(pixels(first["unblurred"]), drawn)
    assert second["unblurred"] is None
    assert [each["settings"]["safety_checker"] for each in (first, second)] == ["blurred", None]


def test_only_the_blurred_picture_is_sent_unless_asked(site: Site, screening: Screening) -> None:
    assert [each["unblurred"] for each in images(generate(site))] == [None, None]
    drawn = np.asarray(screening.given[0])
    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)
    [found] = client.images.generate(prompt="a red star").data or []
    *pictures, _ = call(site, prompt="a red star", seed=7).content
    assert isinstance(pictures[0], types.ImageContent)
    for png in (found.b64_json or "", pictures[0].data):
        assert len(np.unique(pixels(png))) > 1
        assert not np.array_equal(pixels(png), drawn)
    np.testing.assert_array_equal(pixels(pictures[0].data), blur(drawn))


def test_a_failure_ends_its_request_and_no_other(
    site: Site, screening: Screening, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in (screens.broken, screens.too_few):
        screening.by = wrong
        events = generate(site, unblurred=True, previews=True)
        name, fields = events[-1]
        assert (name, fields["kind"]) == ("error", "failed")
        assert fields["message"] == str(Message(Code.UNSCREENED))
        assert not {"image", "preview"} & {name for name, _ in events}
    screening.by = screens.every_second
    assert generate(site)[-1][0] == "done"
    assert "Traceback" in caplog.text
    assert "KeyError: 'a secret'" in caplog.text
    assert "the screening of 2 pictures gave 1 answers" in caplog.text


def test_a_screen_that_does_not_answer_counts_as_stuck_devices(
    pipe: SDXLPipeline, decided: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = local_generator(pipe, Limits(), Observer())
    monkeypatch.setattr(drawer_of(generator), "_stuck_s", 0.05)
    with serve(generator=generator) as site, ThreadPoolExecutor(1) as asking:
        events = asking.submit(generate, site)
        wait_until(lambda: pipe.is_finishing and generator.stuck)
        decided.set()
        assert events.result()[-1][0] == "done"
        wait_until(lambda: not generator.stuck)


def test_there_are_no_previews(site: Site) -> None:
    assert "preview" not in dict(generate(site, previews=True, num_inference_steps=4))


def test_without_reveal_no_original_is_sent(pipe: SDXLPipeline, screening: Screening) -> None:
    strict = local_generator(pipe, Limits(), Observer(), reveal=False)
    with serve(generator=strict) as site:
        first, _ = images(generate(site, unblurred=True))
    assert first["unblurred"] is None
    assert first["settings"]["safety_checker"] == "blurred"


def test_programs_that_call_the_page_get_the_blurred_one(
    pipe: SDXLPipeline, screening: Screening, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    sender = cast(Any, SimpleNamespace(session_hash="a", client=None))

    async def ask() -> list[dict[str, Any]]:
        generator = local_generator(pipe, Limits(), Observer())
        found, *_ = await Drawing(generator, Kind.MINIATURE).for_programs(sender, "a red star")
        await generator.close(1)
        return found

    files = asyncio.run(ask())
    assert len(list(tmp_path.rglob("*.png"))) == len(files)
    with Image.open(files[0]["path"]) as image:
        np.testing.assert_array_equal(image, blur(np.asarray(screening.given[0])))
