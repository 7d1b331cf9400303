"""The whole pipeline from text to pictures: options, results and refused requests."""

import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pipeline
from pipeline import (
    Cancelled,
    CheckpointError,
    DeviceError,
    InputError,
    NotFiniteError,
    SDXLPipeline,
    metadata,
)
from pipeline.request import GenerateRequest
from pipeline.runtime import memory, sampler
from pipeline.runtime.compiled import CompiledSampler
from tests.checkpoints import (
    EXECUTABLES,
    SMALLEST,
    CompilationCount,
    change_json,
    copy_checkpoint,
    encoded,
    nothing_compiles,
    shared_pipeline,
)

PROMPTS = ["a red star", "a blue circle", "a large green square", "two yellow rings"]
SIZE = 16
CLOSE = 1e-4  # tolerance for pictures in 0..1 and latents; the order of additions may differ


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    return shared_pipeline(1)


def pictures(pipe: SDXLPipeline, *args: Any, **options: Any) -> np.ndarray:
    return pipe.generate(*args, output_type="np", **options).images


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Count how often each executable has run since the test began."""
    counted: Counter[Any] = Counter()
    run = jax.stages.Compiled.__call__

    def count(self: jax.stages.Compiled, *args: Any) -> Any:
        counted[self] += 1
        return run(self, *args)

    monkeypatch.setattr(jax.stages.Compiled, "__call__", count)
    return counted


def by_name(runs: Counter[Any], sampler: CompiledSampler) -> dict[str, int]:
    """Return the run counts of one sampler's executables by name, without zeros."""
    counts = {name: runs[executable] for name, executable in sampler.executables.items()}
    return {name: count for name, count in counts.items() if count}


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


# --- nothing compiles after startup


def test_the_counter_counts() -> None:
    with CompilationCount() as count:
        jax.jit(lambda x: jnp.sin(x) * 12345)(jnp.arange(7, dtype=jnp.float32))
    assert count.value > 0


def cancel_between_steps(pipe: SDXLPipeline) -> None:
    cancelled = Event()
    with pytest.raises(Cancelled):
        pipe.generate("a star", on_step=lambda *_: cancelled.set(), cancelled=cancelled)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_nothing_compiles_after_startup(devices: int) -> None:
    pipe = shared_pipeline(devices)
    with nothing_compiles():
        for number in range(3):
            pipe.generate(f"prompt {number}", seed=1000 * number, guidance_scale=1.5 * number)
        for steps in (1, 2, 13, 50):
            pipe.generate("a star", num_inference_steps=steps)
        for output_type in ("pil", "np", "latent"):
            pipe.generate(PROMPTS, output_type=output_type, on_step=lambda *_: None)
        for negative in (None, "", "blurry", PROMPTS, ["", "a", " ", "b"]):
            pipe.generate("a star", negative, cancelled=Event())
        pipe.generate("very long " * 200, "also long " * 200)
        pipe.generate("a star", latents=np.ones((4, 8, 8, 4), np.float32))
        for share in (0.0, 0.5, 0.9):
            pipe.generate("a star", guidance_until=share, on_step=lambda *_: None)
            pipe.generate("a star", variation_seed=9, variation_strength=share)
        cancel_between_steps(pipe)
        pipe.generate("")
        with pytest.raises(InputError):
            pipe.generate("a star", seed=-1)


# --- one picture, one seed


@pytest.mark.parametrize("seed", [0, 12, 2**32 - 2])
def test_picture_i_is_picture_0_of_seed_plus_i(pipe: SDXLPipeline, seed: int) -> None:
    result = pipe.generate("a star", "a ring", seed=seed, output_type="np")
    assert result.seeds == [(seed + i) % 2**32 for i in range(4)]
    for i, own in enumerate(result.seeds):
        first = pictures(pipe, "a star", "a ring", seed=own)[0]
        assert difference(first, result.images[i]) <= CLOSE
    assert difference(result.images[0], result.images[1]) > 0.01


def test_the_same_request_gives_the_same_pictures(pipe: SDXLPipeline) -> None:
    one, other = (pictures(pipe, PROMPTS, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("devices", [1, 8])
def test_variations(devices: int) -> None:
    pipe = shared_pipeline(devices)
    varied = pipe.generate(
        "a star", seed=7, variation_seed=2**32 - 2, variation_strength=0.25, output_type="np"
    )
    assert varied.seeds == [7] * 4
    seeds = [2**32 - 2, 2**32 - 1, 0, 1]
    assert varied.variation_seeds == seeds
    plain = pictures(pipe, "a star", seed=7)
    for i, own in enumerate(seeds):
        options = {"seed": 7, "variation_seed": own}
        alone = pictures(pipe, "a star", **options, variation_strength=0.25)[0]
        assert difference(alone, varied.images[i]) <= CLOSE
        # A stronger variation is less like the picture of the seed.
        far = pictures(pipe, "a star", **options, variation_strength=0.75)[0]
        assert 0.01 < np.abs(alone - plain[0]).mean() < np.abs(far - plain[0]).mean()
    np.testing.assert_array_equal(pictures(pipe, "a star", seed=7, variation_seed=9), plain)
    whole = pictures(pipe, "a star", seed=3, variation_seed=7, variation_strength=1)
    assert difference(whole, plain) <= CLOSE


def test_a_variation_of_a_variation(pipe: SDXLPipeline) -> None:
    again = {"seed": 7, "variation_seed": 5, "variation_strength": 0.25}
    # Turned all the way, the noise is that of the other seed.
    whole = pictures(pipe, "a star", **again, variation_of="8:0.5,9:1")[0]
    assert difference(whole, pictures(pipe, "a star", **again | {"seed": 9})[0]) <= CLOSE
    near, plain = (
        pictures(pipe, "a star", **options)[0]
        for options in (again | {"variation_of": "9:0.5"}, again)
    )
    assert np.abs(near - plain).mean() > 0.01
    unused = pictures(pipe, "a star", seed=7, variation_of="9:1")
    np.testing.assert_array_equal(unused, pictures(pipe, "a star", seed=7))


def test_a_variation_has_what_it_takes_in_its_settings(pipe: SDXLPipeline) -> None:
    image = pipe.generate("a star", seed=7, variation_seed=5, variation_strength=0.5).images[2]
    found = metadata.from_text(image.info[metadata.KEY])
    assert (found.seed, found.variation_seed, found.variation_strength) == (7, 7, 0.5)
    found = metadata.from_text(pipe.generate("a star", seed=7).images[2].info[metadata.KEY])
    assert (found.seed, found.variation_seed, found.variation_strength) == (9, None, None)


# --- prompts


def test_a_prompt_for_each_picture(pipe: SDXLPipeline) -> None:
    negative = ["", "a ring", " ", "a square"]
    together = pictures(pipe, PROMPTS, negative, seed=5)
    for i, (prompt, without) in enumerate(zip(PROMPTS, negative, strict=True)):
        alone = pictures(pipe, prompt, without, seed=5)
        assert difference(alone[i], together[i]) <= CLOSE
        other = pictures(pipe, PROMPTS[i - 1], without, seed=5)
        assert difference(other[i], together[i]) > 0.001


@pytest.mark.parametrize("force_zeros", [True, False])
def test_a_blank_negative_prompt_is_none(
    pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch, force_zeros: bool
) -> None:
    config = replace(pipe._config, force_zeros_for_empty_prompt=force_zeros)
    monkeypatch.setattr(pipe._models, "_first", pipe._models._first._replace(config=config))
    none = pictures(pipe, "a star", None)
    for blank in ("", " ", "\n\t \u3000", ["", " ", "\t", ""]):
        np.testing.assert_array_equal(pictures(pipe, "a star", blank), none)
    assert difference(pictures(pipe, "a star", "a ring"), none) > 0.001


def test_force_zeros_decides_what_none_means(
    pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeroed = pictures(pipe, "a star")
    config = replace(pipe._config, force_zeros_for_empty_prompt=False)
    monkeypatch.setattr(pipe._models, "_first", pipe._models._first._replace(config=config))
    assert difference(pictures(pipe, "a star"), zeroed) > 0.001


@pytest.mark.parametrize("force_zeros", [True, False])
def test_a_blank_prompt_is_one_without_words(
    pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch, force_zeros: bool
) -> None:
    """As in diffusers, a blank prompt is encoded like any other and never zeroed."""
    config = replace(pipe._config, force_zeros_for_empty_prompt=force_zeros)
    monkeypatch.setattr(pipe._models, "_first", pipe._models._first._replace(config=config))
    drawn = pictures(pipe, "")
    for blank in (" ", "\n\t \u3000", ["", " ", "\t", ""]):
        np.testing.assert_array_equal(pictures(pipe, blank), drawn)
    assert difference(pictures(pipe, "a star"), drawn) > 0.001
    # Guidance leads away from the negative prompt, which equals the prompt unless it is zeroed.
    unguided = pictures(pipe, "", guidance_scale=1)
    assert (difference(drawn, unguided) > 0.001) == force_zeros
    assert force_zeros or difference(drawn, unguided) <= CLOSE
    image = pipe.generate("", num_inference_steps=1).images[0]
    assert metadata.from_text(image.info[metadata.KEY]).prompt == ""


@pytest.mark.parametrize("devices", [1, 8])
def test_each_evaluation_runs_one_program(devices: int, runs: Counter[Any]) -> None:
    pipe = shared_pipeline(devices)
    rest = dict.fromkeys(("encode", "condition", "noise", "enter", "decode"), 1)
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 3),
        ({"guidance_scale": 1.0}, 3),
        ({"scheduler": "heun"}, 5),
    ]
    for options, steps in cases:
        runs.clear()
        pipe.generate("a star", on_step=lambda *_: None, **options)
        assert by_name(runs, pipe._compiled) == {**rest, "step": steps}


def test_without_guidance_only_the_prompt_is_predicted_for(pipe: SDXLPipeline) -> None:
    def halves(**options: Any) -> list[int]:
        drawing = pipe.prepare(GenerateRequest("a star", num_inference_steps=4, **options))
        return drawing.first.work[0].column("halves").astype(int).tolist()

    for scale in (1, 0.5, 0):
        assert halves(guidance_scale=scale) == [1, 1, 1, 1]
    assert halves(guidance_scale=1.01) == [2, 2, 2, 2]
    assert halves(guidance_until=0.5) == [2, 2, 1, 1]


def test_guidance_of_1_and_below_is_none(pipe: SDXLPipeline) -> None:
    unguided = pictures(pipe, "a star", guidance_scale=1.0)
    for scale in (0, 0.5, 1, np.float32(1)):
        for negative in (None, "a ring"):
            same = pictures(pipe, "a star", negative, guidance_scale=scale)
            np.testing.assert_array_equal(same, unguided)
    assert difference(pictures(pipe, "a star", guidance_scale=1.5), unguided) > 0.001
    assert np.isfinite(pictures(pipe, "a star", guidance_scale=50)).all()


@pytest.mark.parametrize("devices", [1, 8])
def test_guidance_until(devices: int) -> None:
    pipe = shared_pipeline(devices)

    def draw(**options: Any) -> np.ndarray:
        return pictures(pipe, "a star", "a ring", num_inference_steps=4, **options)

    guided, unguided = draw(), draw(guidance_scale=1.0)
    np.testing.assert_array_equal(draw(guidance_until=1), guided)
    assert difference(draw(guidance_until=0), unguided) <= CLOSE
    begun = draw(guidance_until=0.25)
    assert min(difference(begun, guided), difference(begun, unguided)) > 0.001
    np.testing.assert_array_equal(draw(guidance_until=0.25, on_step=lambda *_: None), begun)
    # 0.3 of 4 steps are 1.2, which is rounded to 1 step.
    np.testing.assert_array_equal(draw(guidance_until=0.3), begun)


def test_guidance_until_is_in_the_settings(pipe: SDXLPipeline) -> None:
    def settings(share: float) -> metadata.Settings:
        image = pipe.generate("a star", guidance_until=share, num_inference_steps=1).images[0]
        return metadata.from_text(image.info[metadata.KEY])

    assert settings(0.25).guidance_until == 0.25
    assert settings(1).guidance_until is None


@pytest.mark.parametrize("devices", [1, 8])
def test_guidance_rescale(devices: int) -> None:
    pipe = shared_pipeline(devices)

    def draw(**options: Any) -> np.ndarray:
        return pictures(pipe, "a star", "a ring", num_inference_steps=4, **options)

    plain, unguided = draw(), draw(guidance_scale=1.0)
    np.testing.assert_array_equal(draw(guidance_rescale=0), plain)
    np.testing.assert_array_equal(draw(guidance_rescale=0.7, guidance_scale=1.0), unguided)
    assert difference(draw(guidance_rescale=0.7, guidance_until=0), unguided) <= CLOSE
    some, more = draw(guidance_rescale=0.3), draw(guidance_rescale=0.7)
    assert min(difference(some, plain), difference(more, some)) > 0.001
    # The standard deviation is that of each picture alone.
    alone = pictures(
        pipe,
        ["a ring", "a star", "a ring", "a star"],
        ["a ring", "a ring", "", "a ring"],
        num_inference_steps=4,
        guidance_rescale=0.7,
    )
    assert difference(alone[[1, 3]], more[[1, 3]]) <= CLOSE


def test_guidance_rescale_is_in_the_settings(pipe: SDXLPipeline) -> None:
    def settings(share: float) -> metadata.Settings:
        image = pipe.generate("a star", guidance_rescale=share, num_inference_steps=1).images[0]
        return metadata.from_text(image.info[metadata.KEY])

    assert settings(0.7).guidance_rescale == 0.7
    assert settings(0).guidance_rescale is None


def test_truncated_words_are_returned(pipe: SDXLPipeline) -> None:
    long = "star " * 75 + "ring"
    result = pipe.generate(["star", long, "star", "star"], ["", "", "", long])
    assert [text.replace(" ", "")[-4:] for text in result.truncated] == ["", "ring", "", ""]
    assert [text == "" for text in result.negative_truncated] == [True, True, True, False]


# --- steps


def test_on_step_and_output_types(pipe: SDXLPipeline) -> None:
    seen: list[tuple[int, int, tuple[int, ...]]] = []
    last: list[np.ndarray] = []

    def on_step(step: int, total: int, latents: jax.Array) -> None:
        assert isinstance(latents, jax.Array)
        seen.append((step, total, latents.shape))
        last[:] = [np.asarray(latents)]

    latents = pipe.generate(
        "a star", num_inference_steps=5, on_step=on_step, output_type="latent"
    ).images
    assert seen == [(step, 5, (4, 8, 8, 4)) for step in range(1, 6)]
    np.testing.assert_array_equal(latents, last[0])
    assert (latents.shape, latents.dtype) == ((4, 8, 8, 4), np.float32)

    at_once = pictures(pipe, "a star", num_inference_steps=5)
    assert (at_once.shape, at_once.dtype) == ((4, SIZE, SIZE, 3), np.float32)
    assert at_once.min() >= 0
    assert at_once.max() <= 1
    watched = pictures(pipe, "a star", num_inference_steps=5, on_step=lambda *_: None)
    np.testing.assert_array_equal(watched, at_once)
    images = pipe.generate("a star", num_inference_steps=5).images
    assert [(image.mode, image.size) for image in images] == [("RGB", (SIZE, SIZE))] * 4
    levels = np.stack([np.asarray(image) for image in images])
    np.testing.assert_array_equal(levels, np.round(at_once * 255).astype(np.uint8))


def test_measure(pipe: SDXLPipeline) -> None:
    short = pipe.measure("a star")
    assert (short.limit, short.left_out) == (77, "")
    assert 4 <= short.tokens < 77
    assert pipe.measure("").tokens == 2
    long = pipe.measure("star " * 100)
    assert long.tokens > 77
    assert long.left_out
    assert long.left_out == pipe.generate("star " * 100).truncated[0]


def test_measure_reads_the_syntax(pipe: SDXLPipeline) -> None:
    def tokens(prompt: str, steps: int | None = None) -> int:
        return pipe.measure(prompt, "a1111", steps).tokens

    plain = pipe.measure("(red:1.3) star").tokens
    assert tokens("(red:1.3) star <lora:b:0.8>") == pipe.measure("red star").tokens < plain
    # The longest text of a run counts, and the longest option of a list.
    assert tokens("a [red:big blue:10]", 12) == pipe.measure("a big blue").tokens
    assert tokens("a [red:big blue:10]", 9) == pipe.measure("a red").tokens
    before_the_end = pipe.facts.num_inference_steps - 1
    assert tokens(f"a [red:big blue:{before_the_end}]") == pipe.measure("a big blue").tokens
    assert tokens("a {red|big blue}") == pipe.measure("a big blue").tokens
    with pytest.raises(InputError, match="prompt_syntax is 'compel'"):
        pipe.measure("a", "compel")
    with pytest.raises(InputError, match="num_inference_steps is 0"):
        pipe.measure("a", num_inference_steps=0)


def test_previews(pipe: SDXLPipeline) -> None:
    looks: list[np.ndarray] = []
    seen: list[int] = []
    expected = pictures(pipe, "a star", num_inference_steps=5)
    with nothing_compiles():
        watched = pictures(
            pipe,
            "a star",
            num_inference_steps=5,
            on_step=lambda step, *_: seen.append(step),
            on_preview=lambda look: seen.append(-1) or looks.append(look()),
        )
    np.testing.assert_array_equal(watched, expected)
    assert seen == [1, -1, 2, -1, 3, -1, 4, -1, 5]
    assert {(look.shape, look.dtype) for look in looks} == {((4, 8, 8, 3), np.dtype(np.uint8))}
    # The expected picture changes less and less from one evaluation to the next.
    moves = [np.abs(np.subtract(*pair, dtype=int)).mean() for pair in pairwise(looks)]
    assert moves[0] > moves[-1]
    # The pictures differ from each other in the first preview already.
    assert np.abs(looks[0][0].astype(int) - looks[0][1]).max() > 0


def test_the_default_step_count(pipe: SDXLPipeline) -> None:
    steps: list[int] = []
    pipe.generate("a star", on_step=lambda step, *_: steps.append(step))
    assert len(steps) == pipe.facts.num_inference_steps == 3


def test_cancelled_before_the_first_step(pipe: SDXLPipeline) -> None:
    steps: list[int] = []
    cancelled = Event()
    cancelled.set()
    with pytest.raises(Cancelled, match="stopped while it was prepared"):
        pipe.generate("a star", on_step=lambda step, *_: steps.append(step), cancelled=cancelled)
    assert steps == []


def test_cancelled_between_steps(pipe: SDXLPipeline) -> None:
    expected = pictures(pipe, "a star", seed=1)
    cancelled = Event()
    steps: list[int] = []

    def on_step(step: int, *_: object) -> None:
        steps.append(step)
        if step == 2:
            cancelled.set()

    with pytest.raises(Cancelled, match="stopped after 2 of 9 steps"):
        pipe.generate("a ring", num_inference_steps=9, on_step=on_step, cancelled=cancelled)
    assert steps == [1, 2]
    np.testing.assert_array_equal(pictures(pipe, "a star", seed=1), expected)


def test_an_event_that_is_not_set_changes_nothing(pipe: SDXLPipeline) -> None:
    watched = pictures(pipe, "a star", cancelled=Event())
    np.testing.assert_array_equal(watched, pictures(pipe, "a star"))


def test_an_error_of_the_caller_passes_through(pipe: SDXLPipeline) -> None:
    with pytest.raises(ZeroDivisionError, match="the caller's own"):
        pipe.generate("a star", on_step=Mock(side_effect=ZeroDivisionError("the caller's own")))
    pipe.generate("a star")


def test_given_latents_replace_the_seeds_noise(pipe: SDXLPipeline) -> None:
    noise = np.asarray(sampler.noise(jnp.arange(7, 11, dtype=jnp.uint32), (8, 8, 4)))
    given = pictures(pipe, "a star", latents=noise)
    assert difference(given, pictures(pipe, "a star", seed=7)) <= CLOSE
    np.testing.assert_array_equal(pictures(pipe, "a star", latents=noise, seed=99), given)


@pytest.mark.filterwarnings("ignore:overflow")
def test_values_that_overflow_are_an_error(pipe: SDXLPipeline) -> None:
    noise = np.full((4, 8, 8, 4), 3e38, np.float32)
    for output_type in ("pil", "latent"):
        with pytest.raises(NotFiniteError, match="lower the weights of the LoRAs"):
            pipe.generate("a star", latents=noise, output_type=output_type)
    assert np.isfinite(pictures(pipe, "a star")).all()


# --- sizes


def test_another_size(pipe: SDXLPipeline) -> None:
    with pytest.raises(InputError, match=r"the size is 24x16; expected one of 16x16"):
        pipe.generate("a star", width=24)
    before = pictures(pipe, "a star")
    pipe.add_size(16, 24)
    with nothing_compiles():
        pipe.add_size(16, 24)
        wide = pipe.generate("a star", width=24, guidance_until=0.5)
        np.testing.assert_array_equal(pictures(pipe, "a star"), before)
    assert [image.size for image in wide.images] == [(24, 16)] * 4
    found = metadata.from_text(wide.images[0].info[metadata.KEY])
    assert (found.width, found.height) == (24, 16)
    assert (pipe.facts.width, pipe.facts.height) == (16, 16)
    with pytest.raises(InputError, match=r"the size is 8x16; expected one of 16x16, 24x16"):
        pipe.generate("a star", width=8)


def test_an_impossible_size_is_refused(pipe: SDXLPipeline) -> None:
    for refuse in (pipe.check_size, pipe.add_size):
        with pytest.raises(InputError, match="width is 17; expected a multiple of 4"):
            refuse(16, 17)
        with pytest.raises(InputError, match="height is 0; expected 4 to 8192"):
            refuse(0, 16)


@pytest.mark.parametrize("side", ["height", "width"])
def test_a_side_of_0_is_not_the_default(pipe: SDXLPipeline, side: str) -> None:
    said = "the size is 0x16" if side == "width" else "the size is 16x0"
    sides: dict[str, Any] = {side: 0}
    for refuse in (partial(pipe.generate, "a star"), pipe.warm_up):
        with pytest.raises(InputError, match=f"{said}; expected one of 16x16"):
            refuse(**sides)


@pytest.mark.slow
def test_another_size_compiles_only_what_depends_on_it(tmp_path: Path) -> None:
    def start(height: int | None = None) -> SDXLPipeline:
        return SDXLPipeline.from_pretrained(
            SMALLEST,
            height=height,
            images_per_request=3,
            num_inference_steps=2,
            devices=jax.devices()[:1],
            cache_dir=tmp_path / "cache",
        )

    pipe = start()
    pipe.add_size(24, 16)
    own, added = (pipe._by_size[size] for size in ((16, 16), (24, 16)))
    assert set(own.executables) == set(added.executables)
    for name in ("encode", "condition"):
        assert added.executables[name] is own.executables[name]
    # A start with another size finds the text encoders of the first size in the cache.
    with nothing_compiles():
        tall = start(height=24)
    drawn = pictures(tall, "a star", seed=5)
    np.testing.assert_array_equal(pictures(pipe, "a star", seed=5, height=24), drawn)


def test_the_network_gets_the_pictures_size(pipe: SDXLPipeline) -> None:
    pipe.add_size(16, 24)
    ids = np.zeros((2, 4, 2, 77), np.int32)
    own, wide = (encoded(pipe._by_size[size], ids) for size in ((16, 16), (16, 24)))
    jax.tree.map(np.testing.assert_array_equal, own.keys_values, wide.keys_values)
    assert own.added_embed is not None
    assert wide.added_embed is not None
    assert np.abs(np.asarray(own.added_embed) - np.asarray(wide.added_embed)).max() > 1e-3


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_every_program_of_every_size_has_run_once_before_a_request(
    devices: int, runs: Counter[Any]
) -> None:
    pipe = SDXLPipeline.from_pretrained(
        SMALLEST, devices=jax.devices()[:devices], cache_dir=EXECUTABLES
    )
    executables = pipe._compiled.executables
    assert by_name(runs, pipe._compiled) == dict.fromkeys(executables, 1)
    pipe.add_size(16, 24)
    runs.clear()
    pipe.warm_up(16, 24)
    assert by_name(runs, pipe._by_size[16, 24]) == dict.fromkeys(executables, 1)


def test_sizes_may_be_read_while_one_is_added(
    pipe: SDXLPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "_by_size", {(16, 16): pipe._compiled})
    monkeypatch.setattr(CompiledSampler, "resized", lambda self, *_: self)
    # Error messages and requests iterate over the sizes in this way.
    reading = iter(pipe._by_size)
    read = [next(reading)]
    threads = [Thread(target=pipe.add_size, args=(16, 16 + 4 * i)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*read, *reading] == [(16, 16)]
    assert set(pipe._by_size) == {(16, 16 + 4 * i) for i in range(9)}


def test_sizes_share_their_parameters(pipe: SDXLPipeline) -> None:
    pipe.add_size(16, 24)
    one, other = (pipe._by_size[size].parameters.leaves for size in ((16, 16), (16, 24)))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a is b


# --- settings inside pictures


def test_settings_inside_every_picture(pipe: SDXLPipeline, tmp_path: Path) -> None:
    result = pipe.generate(
        PROMPTS, ["", "a, b", "Steps: 3", ""], 7.5, 2**32 - 2, num_inference_steps=2
    )
    assert result.seeds == [2**32 - 2, 2**32 - 1, 0, 1]
    for i, image in enumerate(result.images):
        metadata.save_png(image, tmp_path / "picture.png")
        assert metadata.read(tmp_path / "picture.png") == metadata.Settings(
            prompt=PROMPTS[i],
            negative_prompt=["", "a, b", "Steps: 3", ""][i],
            seed=result.seeds[i],
            num_inference_steps=2,
            guidance_scale=7.5,
            width=SIZE,
            height=SIZE,
            model="checkpoint",
            revision=None,
            scheduler="euler",
            sigma_schedule="karras",
        )


def test_a_pipeline_describes_itself(pipe: SDXLPipeline) -> None:
    assert (pipe.facts.name, pipe.facts.revision) == ("checkpoint", None)
    assert (pipe.facts.height, pipe.facts.width, pipe.facts.images_per_request) == (SIZE, SIZE, 4)
    assert (pipe.facts.device, pipe.facts.num_devices, pipe.facts.max_inference_steps) == (
        "cpu",
        1,
        50,
    )
    assert (pipe.facts.scheduler, pipe.facts.version) == (
        "euler",
        f"jax {jax.__version__}, float32",
    )
    assert pipeline.SDXLPipeline is SDXLPipeline


# --- bad requests

BAD_REQUESTS: list[tuple[str, dict[str, Any], str]] = [
    ("none", {"prompt": None}, "prompt must be one text, or a list of 4"),
    ("number", {"prompt": 7}, r"prompt must be one text.*'int'"),
    ("bytes", {"prompt": b"star"}, r"prompt must be one text.*'int'"),
    ("no prompts", {"prompt": []}, "prompt must be one text.*got 0"),
    ("three", {"prompt": PROMPTS[:3]}, "prompt must be one text.*got 3"),
    ("five", {"prompt": [*PROMPTS, "a"]}, "prompt must be one text.*got 5"),
    ("not all text", {"prompt": ["a", "b", None, "d"]}, "prompt must be one text.*'NoneType'"),
    ("negative number", {"negative_prompt": 0}, "negative_prompt must be one text"),
    ("negative false", {"negative_prompt": False}, "negative_prompt must be one text"),
    ("no negatives", {"negative_prompt": []}, "negative_prompt must be one text.*got 0"),
    ("two negatives", {"negative_prompt": ["a", "b"]}, "negative_prompt must be .*got 2"),
    *(
        (f"guidance {value!r}"[:40], {"guidance_scale": value}, "guidance_scale is .*from 0 to 50")
        for value in (
            *(float("nan"), float("inf"), float("-inf"), 50.1, 1e300, -0.1, -1, 10**400),
            *("5", True, [5.0], 5j, np.float32("nan"), np.float64("inf")),
        )
    ),
    *(
        (f"guidance until {value!r}", {"guidance_until": value}, "guidance_until is .*from 0 to 1")
        for value in (float("nan"), -0.1, 1.1, "1", True)
    ),
    ("rescale", {"guidance_rescale": 1.5}, "guidance_rescale is 1.5; expected .* from 0 to 1"),
    ("strength", {"variation_strength": 1.5}, "variation_strength is 1.5; expected .* 0 to 1"),
    ("variation seed", {"variation_seed": -1}, "variation_seed is -1; expected 0 to 4294967295"),
    (
        "variations of latents",
        {"latents": np.zeros((4, 8, 8, 4), np.float32), "variation_strength": 0.5},
        "pass either latents or variation_strength",
    ),
    *(
        (f"seed {value!r}", {"seed": value}, "seed is .*expected .*0 to 4294967295")
        for value in (-1, 2**32, 10**30, 1.5, 7.0, True, "7", float("nan"), np.int64(-1))
    ),
    *(
        (f"steps {value!r}", {"num_inference_steps": value}, "num_inference_steps is .*1 to 50")
        for value in (0, -1, 51, 10**30, 2.5, True, "25", np.int32(51))
    ),
    *(
        (f"output {value!r}", {"output_type": value}, "output_type is .*expected one of")
        for value in ("", "PIL", "jpeg", None, 1, ["pil"])
    ),
    ("latents of one", {"latents": np.zeros((1, 8, 8, 4), np.float32)}, r"\[1, 8, 8, 4\] float32"),
    ("latents nchw", {"latents": np.zeros((4, 4, 8, 8), np.float32)}, r"\[4, 4, 8, 8\] float32"),
    ("latents float64", {"latents": np.zeros((4, 8, 8, 4))}, "float64; expected"),
    ("latents int", {"latents": np.zeros((4, 8, 8, 4), np.int32)}, "int32; expected"),
    ("latents nan", {"latents": np.full((4, 8, 8, 4), np.nan, np.float32)}, "NaN or infinity"),
    ("latents ragged", {"latents": [[1.0], [1.0, 2.0]]}, "latents are not an array"),
    ("latents text", {"latents": "noise"}, r"latents are \[\]"),
]


@pytest.mark.parametrize(
    ("request_", "message"),
    [(request, message) for _, request, message in BAD_REQUESTS],
    ids=[name for name, _, _ in BAD_REQUESTS],
)
def test_bad_request(pipe: SDXLPipeline, request_: dict[str, Any], message: str) -> None:
    def on_step(*_: object) -> None:
        pytest.fail("a bad request was run")

    given: dict[str, Any] = {"prompt": "a star", "on_step": on_step, **request_}
    with pytest.raises(InputError, match=message):
        pipe.generate(**given)


def test_a_request_draws_as_its_settings(pipe: SDXLPipeline) -> None:
    settings: dict[str, Any] = {"num_inference_steps": 2, "guidance_scale": 3.0, "seed": 5}
    request = GenerateRequest("a star", "a ring", **settings)
    right = pictures(pipe, "a star", "a ring", **settings)
    np.testing.assert_array_equal(pictures(pipe, request), right)
    again = pictures(pipe, replace(request, seed=6, guidance_scale=1.0), seed=5, guidance_scale=3)
    np.testing.assert_array_equal(again, right)


def test_numbers_of_numpy_are_numbers(pipe: SDXLPipeline) -> None:
    numbers = {
        "guidance_scale": np.float32(5),
        "seed": np.uint32(2**32 - 1),
        "num_inference_steps": np.int64(3),
    }
    same = pictures(pipe, "a star", guidance_scale=5, seed=2**32 - 1, num_inference_steps=3)
    np.testing.assert_array_equal(pictures(pipe, np.array(["a star"] * 4), **numbers), same)


# --- bad checkpoints and settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"images_per_request": value}, "images_per_request is .*1 to 64")
            for value in (0, -1, 65, 2.5, True, "4", None)
        ),
        *(({"num_inference_steps": value}, "num_inference_steps is") for value in (0, 51, 2.5)),
        *(
            ({"dtype": value}, "dtype is .*expected float32 or bfloat16")
            for value in ("float16", jnp.float16, np.float64, "int8", "nonsense", 7)
        ),
        *(({"height": value}, "height is .*") for value in (0, 18, -16, 8196, 16.0, "16")),
        *(({"width": value}, "width is 18; expected a multiple of 4") for value in (18,)),
        ({"devices": []}, "devices is empty"),
        ({"scheduler": "deis"}, "scheduler is 'deis'; expected one of 'euler', .*'dpmsolver"),
    ],
    ids=str,
)
def test_bad_setting(options: dict[str, Any], message: str) -> None:
    with nothing_compiles(), pytest.raises(InputError, match=message):
        SDXLPipeline.from_pretrained(SMALLEST, **options)


def empty(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            file.unlink()


def sd_3(folder: Path) -> None:
    change_json(folder / "model_index.json", _class_name="StableDiffusion3Pipeline")


def only_pickle(folder: Path) -> None:
    file = folder / "unet/diffusion_pytorch_model.fp16.safetensors"
    file.replace(file.with_suffix(".bin"))


def no_weights(folder: Path) -> None:
    (folder / "vae/diffusion_pytorch_model.fp16.safetensors").unlink()


def cut_off(folder: Path) -> None:
    file = folder / "vae/diffusion_pytorch_model.fp16.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def no_tokenizer(folder: Path) -> None:
    for file in (folder / "tokenizer_2").iterdir():
        file.unlink()


def small_vocabulary(folder: Path) -> None:
    change_json(folder / "text_encoder/config.json", vocab_size=100)


def other_shapes(folder: Path) -> None:
    change_json(folder / "text_encoder/config.json", intermediate_size=20)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (empty, ["model_index.json"]),
        (sd_3, ["model_index.json", "_class_name", "StableDiffusion3Pipeline"]),
        (only_pickle, ["unet/diffusion_pytorch_model.fp16.bin", "safetensors"]),
        (no_weights, ["vae/", "no weights found"]),
        (cut_off, ["vae/diffusion_pytorch_model.fp16.safetensors"]),
        (no_tokenizer, ["tokenizer_2/tokenizer_config.json", "missing"]),
        (small_vocabulary, ["text_encoder/config.json", "vocab_size = 100"]),
        (other_shapes, ["text_encoder", "mlp.fc1", "configuration"]),
    ],
)
def test_bad_checkpoint(
    tmp_path: Path, damage: Callable[[Path], None], named: Iterable[str]
) -> None:
    folder = copy_checkpoint(tmp_path)
    damage(folder)
    with nothing_compiles(), pytest.raises(CheckpointError) as caught:
        SDXLPipeline.from_pretrained(folder, devices=jax.devices()[:1])
    assert str(folder) in str(caught.value)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize(("dtype", "read"), [("float32", ""), ("bfloat16", ".fp16"), (None, "")])
@pytest.mark.parametrize("network", ["unet", "text_encoder_2"])
def test_the_precision_that_a_download_would_choose_is_read(
    tmp_path: Path, dtype: str | None, read: str, network: str
) -> None:
    folder = copy_checkpoint(tmp_path)
    for half in folder.rglob("*.fp16.safetensors"):
        tensors = {name: value.astype(np.float32) for name, value in load_file(half).items()}
        save_file(tensors, half.with_name(half.name.replace(".fp16", "")))
    [file] = (folder / network).glob(f"*model{read}.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with nothing_compiles(), pytest.raises(CheckpointError) as caught:
        SDXLPipeline.from_pretrained(folder, dtype=dtype, devices=jax.devices()[:1])
    assert f"{file}: not a complete safetensors file" in str(caught.value)


def test_only_files_that_are_read_count_as_the_checkpoints_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FarEnough(Exception):
        pass

    used: list[jax.Device] = []

    def stop(devices: list[jax.Device], *_: int) -> None:
        used.extend(devices)
        raise FarEnough

    monkeypatch.setattr("pipeline.pipeline.make_mesh", stop)
    folder = copy_checkpoint(tmp_path)
    with (folder / "sd_xl_base_1.0.safetensors").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(FarEnough):
        SDXLPipeline.from_pretrained(folder)
    assert used == jax.devices()


def test_open_cache_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with nothing_compiles(), pytest.raises(PermissionError, match=str(tmp_path)):
        SDXLPipeline.from_pretrained(SMALLEST, cache_dir=tmp_path)


# --- starting


def test_an_interrupt_while_a_checkpoint_is_examined_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupt while the checkpoint is examined stops the start before anything is compiled."""

    monkeypatch.setattr("pipeline.pipeline.match_networks", Mock(side_effect=KeyboardInterrupt))
    with nothing_compiles(), pytest.raises(KeyboardInterrupt):
        SDXLPipeline.from_pretrained(SMALLEST)


def test_too_little_memory_is_known_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1_000_000)
    with nothing_compiles(), pytest.raises(DeviceError) as caught:
        SDXLPipeline.from_pretrained(SMALLEST, devices=jax.devices()[:1])
    message = r"too little memory: 16x16, 4 pictures per request, needs at least .* 1\.0 MB of this"
    assert re.match(message, str(caught.value))


def test_a_size_that_does_not_fit_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = shared_pipeline(1)
    monkeypatch.setattr(pipe._compiled.room, "memory", 1_000_000_000)
    with nothing_compiles():
        for refuse in (
            lambda: pipe.add_size(8192, 8192),
            lambda: pipe.check_memory([(8192, 8192)]),
        ):
            with pytest.raises(DeviceError, match="leave out the size 8192x8192 or"):
                refuse()
        pipe.check_memory([(16, 24)])
    with pytest.raises(InputError, match="the size is 8192x8192; expected one of 16x16"):
        pipe.generate("a star", height=8192, width=8192)


@pytest.mark.slow
def test_a_restart_compiles_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A restart takes executables from the cache and replaces damaged ones."""

    def start(folder: Path = SMALLEST) -> tuple[int, np.ndarray]:
        with CompilationCount() as count:
            pipe = SDXLPipeline.from_pretrained(
                folder,
                images_per_request=1,
                num_inference_steps=2,
                devices=jax.devices()[:1],
                cache_dir=tmp_path / "cache",
            )
        return count.value, pictures(pipe, "a star", "a ring", seed=3)

    compiled, first = start()
    assert compiled == 8
    stored = sorted((tmp_path / "cache").iterdir())
    programs = {"condition", "decode", "encode", "encode_image", "enter", "noise", "step", "vary"}
    names = programs | {f"{name}_bytes" for name in programs} | {"prompts", "shapes", "tokenizers"}
    assert {file.name.split("-")[0] for file in stored} == names
    assert len(stored) == len(names)

    [decode] = (tmp_path / "cache").glob("decode-*")
    content = decode.read_bytes()
    decode.write_bytes(content[: len(content) // 2])
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        compiled, second = start()
    assert compiled == 1
    assert f"{decode} could not be loaded" in caplog.text
    np.testing.assert_array_equal(second, first)

    caplog.clear()
    compiled, third = start()
    assert compiled == 0
    assert caplog.messages == []
    np.testing.assert_array_equal(third, first)
    assert sorted((tmp_path / "cache").iterdir()) == stored

    # Modules that are slow to import are needed only for things that are not cached.
    program = """if True:
        import sys
        import jax
        from pipeline import SDXLPipeline

        SDXLPipeline.from_pretrained(
            sys.argv[1],
            images_per_request=1,
            num_inference_steps=2,
            devices=jax.devices()[:1],
            cache_dir=sys.argv[2],
        )
        costly = "transformers", "huggingface_hub", "jax.experimental.pallas"
        print([name for name in costly if name in sys.modules])
    """
    command = [sys.executable, "-c", program, str(SMALLEST), str(tmp_path / "cache")]
    alike = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    assert subprocess.check_output(command, text=True, env=alike) == "[]\n"

    other = copy_checkpoint(tmp_path)
    cut_off(other)
    with pytest.raises(CheckpointError, match=str(other)):
        start(other)


@pytest.fixture
def mixed_dtypes() -> Iterator[None]:
    """Allow mixed dtypes: JAX's attention and Flax's norms mix them on purpose."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")  # also in the threads that compile
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.mark.slow
@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("dtype", ["bfloat16", None])
def test_other_size_and_precision(
    dtype: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """bfloat16 works if asked for, and by default on hardware that is made for it."""
    monkeypatch.setattr("pipeline.pipeline.worth_bfloat16", lambda *_: True)
    with caplog.at_level(logging.INFO, logger="pipeline"):
        pipe = SDXLPipeline.from_pretrained(
            SMALLEST,
            height=24,
            width=16,
            images_per_request=1,
            num_inference_steps=2,
            dtype=dtype,
            devices=jax.devices()[:1],
        )
    assert pipe.facts.version.endswith(", bfloat16")
    for stage in ("loaded unet", "compiled step", "warmed up"):
        assert any(message.startswith(stage) for message in caplog.messages)
    result = pipe.generate("a star", output_type="np").images
    assert (result.shape, result.dtype) == ((1, 24, 16, 3), np.float32)
    assert np.isfinite(result).all()
    assert result.std() > 0.01
    assert pipe.generate("a star").images[0].size == (16, 24)
    assert pipe.generate("a star", output_type="latent").images.dtype == np.float32
