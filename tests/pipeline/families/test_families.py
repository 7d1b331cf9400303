"""Every scheduler, and checkpoints with one text encoder, through the whole pipeline."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import Cancelled, InputError, SDXLPipeline, metadata
from tests.checkpoints import DRAWN_BY, EXECUTABLES, GOLDEN, SMALLEST, nothing_compiles

CLOSE = 1e-4  # tolerance for pictures in 0..1; the order of additions may differ
SD_1 = GOLDEN / "flax_sd/checkpoint"
SAMPLER = {"pndm": "PLMS", "euler-ancestral": "Euler a", "dpmsolver++": "DPM++ 2M"}


@pytest.fixture(scope="module")
def start() -> Callable[..., SDXLPipeline]:
    """Return a function that makes a pipeline, once for each of its arguments."""

    @cache
    def make(
        scheduler: str | None = None, model: Path = SD_1, images: int = 2, devices: int = 1
    ) -> SDXLPipeline:
        return SDXLPipeline.from_pretrained(
            model,
            images_per_request=images,
            num_inference_steps=5,
            devices=jax.devices()[:devices],
            cache_dir=EXECUTABLES,
            scheduler=scheduler,
        )

    return make


def pictures(pipe: SDXLPipeline, *args: Any, **options: Any) -> np.ndarray:
    return pipe.generate(*args, output_type="np", **options).images


def test_the_checkpoints_own_scheduler_and_size(start: Callable[..., SDXLPipeline]) -> None:
    pipe = start()
    assert (pipe.facts.height, pipe.facts.width) == (16, 16)
    own = pictures(pipe, "a star", scheduler="PLMS")
    np.testing.assert_array_equal(pictures(pipe, "a star"), own)


def test_a_requests_scheduler_draws_what_the_operators_draws(
    start: Callable[..., SDXLPipeline],
) -> None:
    pipe, other = start(), start("dpmsolver++-sde")
    assert (pipe.facts.scheduler, other.facts.scheduler) == ("pndm", "dpmsolver++-sde")
    for options in ({}, {"timestep_spacing": "trailing", "sigma_schedule": "karras"}):
        of_request = pictures(pipe, "a star", scheduler="dpmsolver++-sde", **options)
        np.testing.assert_array_equal(of_request, pictures(other, "a star", **options))


def test_nothing_compiles_for_another_scheduler(start: Callable[..., SDXLPipeline]) -> None:
    pipe = start()
    with nothing_compiles():
        for name in pipe.facts.schedulers:
            for steps in (1, 3):
                pipe.generate("a star", "blue", num_inference_steps=steps, scheduler=name)
        pipe.generate("a star", num_inference_steps=50, scheduler="heun")  # the most evaluations
        pipe.generate("a star", guidance_scale=0.5, on_step=lambda *_: None, scheduler="heun")
        pipe.generate("a star", scheduler="Euler", timesteps=[999, 310, 53])
        pipe.generate("a star", scheduler="Euler", sigma_schedule="align-your-steps")
        pipe.generate("a star", scheduler="ddim", eta=0.5, timestep_spacing="linspace")


def test_schedulers_and_their_settings_differ(start: Callable[..., SDXLPipeline]) -> None:
    choices: list[dict[str, Any]] = [{"scheduler": name} for name in DRAWN_BY]
    for sigma_schedule in ("karras", "exponential", "beta", "align-your-steps"):
        choices.append({"scheduler": "dpmsolver++", "sigma_schedule": sigma_schedule})
    choices.append({"scheduler": "dpmsolver++", "timesteps": "999,845,587,310,53"})
    choices.append({"timestep_spacing": "trailing"})
    choices.append({"scheduler": "ddim", "eta": 0.5})
    drawn = [pictures(start(), "a star", **choice) for choice in choices]
    for i, one in enumerate(drawn):
        assert all(np.abs(one - other).max() > 10 * CLOSE for other in drawn[:i])


@pytest.mark.parametrize("scheduler", DRAWN_BY)
def test_a_run_with_on_step_is_the_same_and_reports_every_step(
    start: Callable[..., SDXLPipeline], scheduler: str
) -> None:
    seen: list[tuple[int, int]] = []
    draw = partial(pictures, start(), "a star", scheduler=scheduler)
    watched = draw(on_step=lambda i, total, _: seen.append((i, total)))
    assert seen == [(i, 5) for i in range(1, 6)]
    np.testing.assert_array_equal(watched, draw())


def test_timesteps_are_the_steps_of_a_run(start: Callable[..., SDXLPipeline]) -> None:
    seen: list[tuple[int, int]] = []
    result = start().generate(
        "a star",
        scheduler="lcm",
        timesteps=[999, 749, 499],
        num_inference_steps=1,
        on_step=lambda i, total, _: seen.append((i, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    settings = metadata.from_text(result.images[0].info[metadata.KEY])
    assert (settings.num_inference_steps, settings.timesteps) == (3, "999,749,499")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "deis"}, "scheduler is 'deis'; expected one of 'euler', "),
        ({"sigma_schedule": "karras"}, "karras', which scheduler 'pndm' cannot use; .* 'euler' or"),
        ({"scheduler": "DDIM Karras"}, "sigma_schedule is 'karras', which scheduler 'ddim' cannot"),
        ({"scheduler": "lcm", "timestep_spacing": "trailing"}, "scheduler 'lcm' cannot use"),
        ({"scheduler": "heun", "eta": 0.5}, "leave it out, or set scheduler to 'ddim' or 'tcd'"),
        ({"eta": 1.5, "scheduler": "tcd"}, "eta is 1.5; expected a number from 0 to 1"),
        ({"timesteps": [999]}, "timesteps is '999', which scheduler 'pndm' cannot use"),
        ({"scheduler": "lcm", "timesteps": [1000]}, r"timesteps is \[1000\]; expected .* 0 to 999"),
        ({"scheduler": "lcm", "timesteps": [5, 9]}, "expected up to 50 falling whole numbers"),
        ({"scheduler": "Euler Karras", "timesteps": "9"}, "timesteps and sigma_schedule cannot be"),
    ],
    ids=str,
)
def test_schedulers_that_cannot_be_used(
    start: Callable[..., SDXLPipeline], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        start().generate("a star", **options)


def test_cancelled_between_steps_that_take_more_than_one_evaluation(
    start: Callable[..., SDXLPipeline],
) -> None:
    cancelled = Event()
    with pytest.raises(Cancelled, match="stopped after 1 of 5 steps"):
        start().generate("a star", on_step=lambda *_: cancelled.set(), cancelled=cancelled)


@pytest.mark.parametrize("scheduler", DRAWN_BY)
def test_one_picture_one_seed(start: Callable[..., SDXLPipeline], scheduler: str) -> None:
    draw = partial(pictures, start(), "a star", "a ring", scheduler=scheduler)
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
    assert (pipe.facts.num_devices, pipe.facts.images_per_request) == (8, 8)
    drawn = pictures(pipe, "a star", seed=2**32 - 4)
    two = start("euler-ancestral", model)
    for i in range(0, 8, 2):
        alone = pictures(two, "a star", seed=(2**32 - 4 + i) % 2**32)
        assert np.abs(drawn[i : i + 2] - alone).max() <= CLOSE


@pytest.mark.slow
def test_another_size_shares_the_safety_checker(start: Callable[..., SDXLPipeline]) -> None:
    pipe = start(model=GOLDEN / "safety/checkpoint")
    pipe.add_size(pipe.facts.height, 2 * pipe.facts.width)
    pipe.warm_up(pipe.facts.height, 2 * pipe.facts.width)
    with nothing_compiles():
        wide = pipe.generate("a star", width=2 * pipe.facts.width)
    assert wide.images[0].width == 2 * pipe.facts.width
    own, added = pipe._by_size.values()
    for name in {"encode", "condition", "check"}:
        assert added.executables[name] is own.executables[name]


@pytest.mark.parametrize("scheduler", SAMPLER)
def test_settings_name_the_sampler(start: Callable[..., SDXLPipeline], scheduler: str) -> None:
    image = start().generate("a star", scheduler=scheduler, num_inference_steps=1).images[0]
    assert f"Sampler: {SAMPLER[scheduler]}, " in image.info[metadata.KEY]
