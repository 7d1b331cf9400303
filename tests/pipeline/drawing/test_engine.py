"""Pictures enter and leave the slots, and are the same as alone."""

from collections.abc import Iterator
from functools import cache
from threading import Event
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import Cancelled, InputError, NotFiniteError, SDXLPipeline
from pipeline.drawing.drawing import Drawing, Picture
from pipeline.drawing.engine import AHEAD
from pipeline.drawing.origins import Inputs
from pipeline.request import GenerateRequest
from pipeline.runtime.compiled import CompiledSampler
from tests.checkpoints import DRAWN_BY, nothing_compiles, shared_pipeline

Options = tuple[tuple[str, Any], ...]

IMAGE = np.random.default_rng(0).uniform(size=(16, 16, 3)).astype(np.float32)
MASK = np.zeros((16, 16), np.float32)
MASK[:, 6:] = 1


@pytest.fixture
def pipe() -> Iterator[SDXLPipeline]:
    """Yield the shared pipeline on one device, with empty slots before and after."""
    shared = shared_pipeline(1)
    yield shared
    shared.reset()


def prepare(
    pipe: SDXLPipeline, images: int = 1, output_type: str = "latent", **options: Any
) -> Drawing:
    names = "height", "width", "image", "mask"
    options = with_picture(options)
    others = {name: options.pop(name) for name in names if name in options}
    given = {"prompt": "a star", "num_inference_steps": 3, **options}
    size = {name: others.pop(name) for name in ("height", "width") if name in others}
    request, inputs = GenerateRequest(**given), Inputs(**others)
    return pipe.prepare(request, images, inputs=inputs, output_type=output_type, **size)


def with_picture(options: dict[str, Any]) -> dict[str, Any]:
    """Return options in which a picture, and a mask if so, replaces `start`."""
    options = dict(options)
    start = options.pop("start", None)
    if start is None:
        return options
    masked, strength = start
    strength = max(strength, 1 / options["num_inference_steps"])  # one step at least
    mask = {"mask": MASK} if masked else {}
    return {**options, "image": IMAGE, "strength": strength, **mask}


def begin(pipe: SDXLPipeline, images: int = 1, **options: Any) -> Drawing:
    drawing = prepare(pipe, images, **options)
    pipe.begin(drawing)
    return drawing


def finish(pipe: SDXLPipeline) -> None:
    """Advance until nothing is left to do."""
    while pipe.is_busy:
        pipe.advance()


def pictures(drawing: Drawing) -> list[Any]:
    return [picture.image for _, picture in sorted(drawing.pictures.items())]


@cache
def alone(devices: int, index: int, options: Options) -> np.ndarray:
    """Return a picture's latents `[h, w, C]`, drawn with nothing beside it."""
    chosen = dict(options)
    request = with_picture({**chosen, "seed": (chosen["seed"] + index) % 2**32})
    pipe = shared_pipeline(devices)
    return pipe.generate("a star", images=1, output_type="latent", **request).images[0]


def test_pictures_leave_while_others_are_drawn(pipe: SDXLPipeline) -> None:
    long, short = begin(pipe, 3, num_inference_steps=9), begin(pipe, num_inference_steps=2)
    late = begin(pipe, 2, seed=5, num_inference_steps=2)
    with nothing_compiles():
        ended: list[Drawing] = []
        while pipe.is_busy:
            ended += [each.drawing for each in pipe.advance() if each.drawing.is_over]
            assert pipe.in_slots <= pipe.facts.images_per_request
    assert ended == [short, late, long]
    given = (("seed", 5), ("num_inference_steps", 2))
    for index, image in enumerate(pictures(late)):
        np.testing.assert_array_equal(image, alone(1, index, given))


def test_progress_names_what_is_finished(pipe: SDXLPipeline) -> None:
    drawing = begin(pipe, 2, num_inference_steps=2, output_type="pil")
    steps, finished = [], []
    while pipe.is_busy:
        for progress in pipe.advance():
            steps.append(progress.drawing.done)
            finished += progress.finished
    assert [*dict.fromkeys(steps)] == [1, 2]
    assert [(picture.index, picture.image.size) for picture in finished] == [
        (0, (16, 16)),
        (1, (16, 16)),
    ]
    assert drawing.result().images == [picture.image for picture in finished]


def test_the_host_is_ahead_of_the_devices(pipe: SDXLPipeline) -> None:
    begin(pipe, num_inference_steps=9)
    for _ in range(AHEAD):
        assert pipe.advance() == []
    [progress] = pipe.advance()
    assert progress.drawing.done == 1
    assert len(pipe._flights) == AHEAD
    finish(pipe)


@pytest.mark.parametrize("waiting", [True, False])
def test_a_cancelled_drawing_leaves_within_two_steps(pipe: SDXLPipeline, waiting: bool) -> None:
    other = begin(pipe, 4, num_inference_steps=6)
    drawing = begin(pipe, 2) if waiting else other
    for _ in range(3):
        pipe.advance()
    drawing.cancelled.set()
    [first, *_] = pipe.advance()
    assert first.drawing is drawing
    assert isinstance(drawing.error, Cancelled)
    assert pipe.in_slots == (4 if waiting else 0)
    finish(pipe)
    assert not drawing.pictures
    assert len(other.pictures) == (4 if waiting else 0)


def test_an_error_of_one_drawing_spares_the_others(pipe: SDXLPipeline) -> None:
    huge = np.full((2, 8, 8, 4), 3e38, np.float32)
    bad = pipe.prepare(
        GenerateRequest("a star", num_inference_steps=2), 2, inputs=Inputs(latents=huge)
    )
    pipe.begin(bad)
    good = begin(pipe, 2, seed=3)
    again = begin(pipe, 2, seed=4)  # in the slots of the bad ones
    with np.errstate(all="ignore"):
        finish(pipe)
    assert isinstance(bad.error, NotFiniteError)
    for drawing, seed in ((good, 3), (again, 4)):
        given = (("seed", seed), ("num_inference_steps", 3))
        for index, image in enumerate(pictures(drawing)):
            np.testing.assert_array_equal(image, alone(1, index, given))


def test_after_a_failure_the_slots_are_empty(
    pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(pipe, 4, num_inference_steps=9)
    pipe.advance()
    with monkeypatch.context() as patch:
        patch.setattr(CompiledSampler, "step", Mock(side_effect=MemoryError("no memory")))
        with pytest.raises(MemoryError, match="no memory"):
            pipe.advance()
    assert (pipe.is_busy, pipe.in_slots) == (False, 0)
    after = begin(pipe, seed=3)
    finish(pipe)
    given = (("seed", 3), ("num_inference_steps", 3))
    np.testing.assert_array_equal(pictures(after)[0], alone(1, 0, given))


def test_pictures_of_two_sizes_take_turns(pipe: SDXLPipeline) -> None:
    pipe.add_size(16, 24)
    first = begin(pipe, 2, num_inference_steps=4)
    wide = begin(pipe, width=24, num_inference_steps=4)
    moved: list[Drawing] = []
    while pipe.is_busy:
        moved += [progress.drawing for progress in pipe.advance()]
    assert moved == [first, wide] * 4
    assert pictures(wide)[0].shape == (8, 12, 4)


def test_previews_are_of_pictures_in_slots(pipe: SDXLPipeline) -> None:
    drawing = prepare(pipe, 2, num_inference_steps=4)
    assert pipe.look(drawing) == {}
    pipe.begin(drawing)
    while not drawing.done:
        pipe.advance()
    with nothing_compiles():
        looks = pipe.look(drawing)
    assert {i: (look.shape, look.dtype) for i, look in looks.items()} == dict.fromkeys(
        range(2), ((8, 8, 3), np.dtype(np.uint8))
    )
    finish(pipe)
    assert pipe.look(drawing) == {}


def test_generate_draws_beside_other_drawings(pipe: SDXLPipeline) -> None:
    other = begin(pipe, 3, num_inference_steps=9)
    drawn = pipe.generate(
        "a star", images=2, output_type="latent", seed=5, num_inference_steps=2
    ).images
    given = (("seed", 5), ("num_inference_steps", 2))
    assert not other.is_over
    for index, image in enumerate(drawn):
        np.testing.assert_array_equal(image, alone(1, index, given))
    finish(pipe)
    assert len(other.pictures) == 3


@pytest.mark.parametrize("images", [0, 5, 1.5, True])
def test_a_number_of_pictures_that_does_not_fit_is_refused(pipe: SDXLPipeline, images: Any) -> None:
    with pytest.raises(InputError, match=r"images is .*expected .*1 to 4"):
        pipe.generate("a star", images=images)


def test_what_was_cancelled_before_it_began_is_never_drawn(pipe: SDXLPipeline) -> None:
    cancelled = Event()
    request = GenerateRequest("a star", num_inference_steps=3)
    drawing = pipe.prepare(request, 1, cancelled=cancelled)
    cancelled.set()
    pipe.begin(drawing)
    assert [each.drawing for each in pipe.advance()] == [drawing]
    assert str(drawing.error) == "stopped after 0 of 3 steps"
    assert not pipe.is_busy


# --- the same picture, whatever is beside it

REQUESTS = st.fixed_dictionaries(
    {
        "seed": st.sampled_from([3, 2**32 - 2]),
        "scheduler": st.sampled_from(DRAWN_BY),
        "num_inference_steps": st.integers(1, 4),
        "guidance_scale": st.sampled_from([1.0, 5.0]),
        "guidance_until": st.sampled_from([0.5, 1.0]),
        "guidance_rescale": st.sampled_from([0.0, 0.7]),
        # Whether the picture that it starts from has a mask, and the strength.
        "start": st.sampled_from([None, (False, 0.5), (True, 0.7), (True, 1.0)]),
    }
)
ARRIVALS = st.lists(
    st.tuples(
        REQUESTS,
        st.integers(1, 4),  # pictures
        st.integers(0, 6),  # calls of `advance` before it begins
        st.none() | st.integers(0, 6),  # calls after which it is cancelled
    ),
    min_size=2,
    max_size=5,
)


def check_arrivals(
    devices: int, arrivals: list[tuple[dict[str, Any], int, int, int | None]]
) -> None:
    """Draw requests that arrive one after the other; compare each picture with itself alone."""
    pipe = shared_pipeline(devices)
    begun: list[tuple[Drawing, dict[str, Any], int | None]] = []
    seen: list[tuple[Drawing, Picture]] = []
    calls = 0
    try:
        while len(begun) < len(arrivals) or pipe.is_busy:
            for request, images, at, lasts in arrivals[len(begun) :]:
                if at > calls:
                    break
                begun.append((begin(pipe, images, **request), request, lasts))
            for drawing, _, lasts in begun:
                if lasts == calls:
                    drawing.cancelled.set()
            seen += [(each.drawing, one) for each in pipe.advance() for one in each.finished]
            calls += 1
    finally:
        pipe.reset()
    for drawing, request, _ in begun:
        assert drawing.is_over
        assert drawing.error is None or isinstance(drawing.error, Cancelled)
        own = {picture.index: picture.image for each, picture in seen if each is drawing}
        assert sorted(own) == sorted(drawing.pictures)
        for index, image in own.items():
            np.testing.assert_array_equal(image, alone(devices, index, tuple(request.items())))


QUIETLY = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.mark.slow
@given(arrivals=ARRIVALS)
@settings(max_examples=6, **QUIETLY)
def test_a_picture_is_the_same_beside_any_others(arrivals: Any) -> None:
    check_arrivals(4, arrivals)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, pytest.param(4, marks=pytest.mark.rare), 8])
@given(arrivals=ARRIVALS)
@settings(max_examples=60, **QUIETLY)
def test_a_picture_is_always_the_same(devices: int, arrivals: Any) -> None:
    check_arrivals(devices, arrivals)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", DRAWN_BY)
def test_pictures_are_the_same_on_devices_that_share_no_picture(scheduler: str) -> None:
    """One, two and four devices run the same code for a picture."""
    given = (("seed", 3), ("scheduler", scheduler), ("num_inference_steps", 3))
    one, *more = (alone(devices, 0, given) for devices in (1, 2, 4))
    for other in more:
        np.testing.assert_array_equal(one, other)
