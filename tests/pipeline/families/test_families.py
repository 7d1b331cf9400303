"""Every scheduler, and checkpoints with one text encoder, through the whole pipeline."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import Cancelled, SDXLPipeline, metadata
from tests.checkpoints import DRAWN_BY, GOLDEN, SMALLEST, CompilationCount

CLOSE = 1e-4  # tolerance for pictures in 0..1; the order of additions may differ
SD_1 = GOLDEN / "flax_sd/checkpoint"
SAMPLER = {"pndm": "PLMS", "euler-ancestral": "Euler a", "dpmsolver++": "DPM++ 2M"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SDXLPipeline]:
    """Return a function that makes pipelines, which share a cache of executables."""
    folder = tmp_path_factory.mktemp("private") / "cache"

    @cache
    def make(
        scheduler: str | None = None, model: Path = SD_1, images: int = 2, devices: int = 1
    ) -> SDXLPipeline:
        return SDXLPipeline.from_pretrained(
            model,
            images_per_request=images,
            num_inference_steps=5,
            devices=jax.devices()[:devices],
            cache_dir=folder,
            scheduler=scheduler,
        )

    return make


def pictures(pipe: SDXLPipeline, *args: Any, **options: Any) -> np.ndarray:
    return pipe.generate(*args, output_type="np", **options).images


def test_the_checkpoints_own_scheduler_and_size(start: Callable[..., SDXLPipeline]) -> None:
    pipe = start()
    assert (pipe.height, pipe.width) == (16, 16)
    np.testing.assert_array_equal(pictures(pipe, "a star"), pictures(start("pndm"), "a star"))


@pytest.mark.parametrize("scheduler", DRAWN_BY)
def test_nothing_compiles_for_another_scheduler(
    start: Callable[..., SDXLPipeline], scheduler: str
) -> None:
    start()
    with CompilationCount() as count:
        pipe = start(scheduler)
        for steps in (1, 2, 50):
            pipe.generate(["a star", "a ring"], "blue", num_inference_steps=steps)
        pipe.generate("a star", guidance_scale=0.5, on_step=lambda *_: None, seed=2**32 - 1)
    assert count.value == 0


def test_schedulers_differ(start: Callable[..., SDXLPipeline]) -> None:
    drawn = [pictures(start(scheduler), "a star") for scheduler in DRAWN_BY]
    for i, one in enumerate(drawn):
        assert all(np.abs(one - other).max() > 10 * CLOSE for other in drawn[:i])


@pytest.mark.parametrize("scheduler", DRAWN_BY)
def test_a_run_with_on_step_is_the_same_and_reports_every_step(
    start: Callable[..., SDXLPipeline], scheduler: str
) -> None:
    seen: list[tuple[int, int]] = []
    pipe = start(scheduler)
    watched = pictures(pipe, "a star", on_step=lambda i, total, _: seen.append((i, total)))
    assert seen == [(i, 5) for i in range(1, 6)]
    np.testing.assert_array_equal(watched, pictures(pipe, "a star"))


def test_cancelled_between_steps_that_take_more_than_one_evaluation(
    start: Callable[..., SDXLPipeline],
) -> None:
    cancelled = Event()
    with pytest.raises(Cancelled, match="stopped after 1 of 5 steps"):
        start("pndm").generate("a star", on_step=lambda *_: cancelled.set(), cancelled=cancelled)


@pytest.mark.parametrize("scheduler", DRAWN_BY)
def test_one_picture_one_seed(start: Callable[..., SDXLPipeline], scheduler: str) -> None:
    draw = partial(pictures, start(scheduler), "a star", "a ring")
    one, next_one = draw(seed=5), draw(seed=6)
    assert np.abs(one[1] - next_one[0]).max() <= CLOSE
    assert np.abs(one[0] - one[1]).max() > 10 * CLOSE


def test_prompts_and_negative_prompts_are_each_pictures_own(
    start: Callable[..., SDXLPipeline],
) -> None:
    pipe = start()
    both = pictures(pipe, ["a star", "blue"], ["", "red"])
    first, second = pictures(pipe, "a star", " \n"), pictures(pipe, "blue", "red")
    assert np.abs(both[0] - first[0]).max() <= CLOSE
    assert np.abs(both[1] - second[1]).max() <= CLOSE
    assert np.abs(first[1] - second[1]).max() > 10 * CLOSE


def test_guidance_of_1_and_below_is_none(start: Callable[..., SDXLPipeline]) -> None:
    draw = partial(pictures, start(), "a star")
    np.testing.assert_array_equal(draw("a ring", 1.0), draw("", 0.0))
    assert np.abs(draw("a ring", 1.0) - draw("a ring", 5.0)).max() > 10 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("model", [SMALLEST, SD_1], ids=["SDXL", "SD 1"])
def test_eight_pictures_on_eight_devices(start: Callable[..., SDXLPipeline], model: Path) -> None:
    """Pictures agree on eight devices, even with a scheduler that adds noise at each step."""
    pipe = start("euler-ancestral", model, images=8, devices=8)
    assert (pipe.num_devices, pipe.images_per_request) == (8, 8)
    drawn = pictures(pipe, "a star", seed=2**32 - 4)
    two = start("euler-ancestral", model)
    for i in range(0, 8, 2):
        alone = pictures(two, "a star", seed=(2**32 - 4 + i) % 2**32)
        assert np.abs(drawn[i : i + 2] - alone).max() <= CLOSE


@pytest.mark.slow
def test_another_size_shares_the_safety_checker(start: Callable[..., SDXLPipeline]) -> None:
    pipe = start(model=GOLDEN / "safety/checkpoint")
    pipe.add_size(pipe.height, 2 * pipe.width)
    pipe.warm_up(pipe.height, 2 * pipe.width)
    with CompilationCount() as count:
        wide = pipe.generate("a star", width=2 * pipe.width)
    assert count.value == 0
    assert wide.images[0].width == 2 * pipe.width
    own, added = pipe._by_size.values()
    assert set(added.seconds) == set(own.seconds) - {"encode", "check"}
    for name in ("encode", "check"):
        assert added.executables[name] is own.executables[name]


@pytest.mark.parametrize("scheduler", SAMPLER)
def test_settings_name_the_sampler(start: Callable[..., SDXLPipeline], scheduler: str) -> None:
    image = start(scheduler).generate("a star").images[0]
    assert f"Sampler: {SAMPLER[scheduler]}, " in image.info[metadata.KEY]
