"""A pipeline with step caching: what requests get, and what stays the same."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline import InputError, SDXLPipeline, metadata
from pipeline import __main__ as command
from pipeline.families import read_config
from pipeline.models.unet import UNet
from pipeline.request import GenerateRequest
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.programs import PROGRAMS, Shapes, Target, cache_key
from pipeline.runtime.sampler import noise
from tests.checkpoints import (
    EXECUTABLES,
    SMALLEST,
    encoded,
    nothing_compiles,
    shared_pipeline,
)
from tools import agreement

FLOAT32 = np.dtype(np.float32)
PROMPT, STEPS = "a red star", 4
CLOSE = 1e-5  # of the largest number


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    """Return the shared pipeline on two devices, with step caching."""
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        num_inference_steps=3,
        devices=jax.devices()[:2],
        step_cache=True,
        cache_dir=EXECUTABLES,
    )


def draw(pipe: SDXLPipeline, interval: int = 1, output_type: str = "latent", **more: Any) -> Any:
    given = {"num_inference_steps": STEPS, "output_type": output_type, "cache_interval": interval}
    return pipe.generate(PROMPT, "a ring", seed=7, **given, **more).images


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


@cache
def parts() -> tuple[Any, Any]:
    """Return the two parts of the UNet as functions."""
    unet = agreement.load_module(UNet, read_config(SMALLEST).networks["unet"], SMALLEST / "unet")
    return jax.jit(unet.deep), jax.jit(unet.shallow)


def by_hand(pipe: SDXLPipeline, interval: int, guided: int) -> np.ndarray:
    """Return the first picture's latents by calls of the UNet's two parts, without the sampler."""
    drawing = pipe.prepare(
        GenerateRequest(PROMPT, "a ring", seed=7, num_inference_steps=STEPS), images=1
    )
    run, start = pipe._compiled, drawing.first.start
    both = encoded(
        run, np.repeat(np.stack(start.input_ids, 3)[0], pipe.facts.images_per_request, axis=1)
    )
    contexts = [jax.tree.map(lambda leaf, half=half: leaf[half, :1], both) for half in range(2)]
    deep, shallow = parts()
    schedule = drawing.first.schedule
    table = schedule.table
    latents = noise(jnp.asarray(start.seeds), run.latents_shape)
    latents *= schedule.init_noise_sigma
    features = [jnp.zeros(0)] * 2
    for i in range(STEPS):
        row = jax.tree.map(lambda column, i=i: column[i], table)
        found = [jnp.zeros(0)] * 2
        for half in range(int(i >= guided), 2):
            given = latents * row.input_scale, jnp.full(1, row.timesteps), contexts[half]
            if i % interval == 0:
                features[half] = deep(*given)
            found[half] = shallow(*given, features[half])
        prediction = found[1] if i >= guided else found[0] + 5 * (found[1] - found[0])
        value = row.value_latents * latents + row.value_prediction * prediction
        assert not row.values[1:].any()
        assert not row.noise
        latents = row.latents * latents + row.values[0] * value
    return np.asarray(latents[0])


def test_an_interval_of_1_draws_as_without_a_step_cache(pipe: SDXLPipeline) -> None:
    without = shared_pipeline(2)
    np.testing.assert_array_equal(draw(pipe), draw(without))
    with pytest.raises(InputError, match=r"cache_interval is 2, but .*; pass step_cache=True to"):
        draw(without, 2)


@pytest.mark.slow
@pytest.mark.parametrize("until", [1.0, 0.5])
def test_pictures_equal_those_of_the_parts_by_hand(pipe: SDXLPipeline, until: float) -> None:
    drawn = {n: draw(pipe, n, guidance_until=until)[0] for n in (1, 2, 3, 5)}
    for interval, latents in drawn.items():
        assert difference(latents, by_hand(pipe, interval, round(until * STEPS))) < CLOSE
    assert difference(drawn[2], drawn[1]) > 1e-3


def test_pictures_of_several_intervals_share_the_slots(pipe: SDXLPipeline) -> None:
    with nothing_compiles():
        alone = {interval: draw(pipe, interval, images=1)[0] for interval in (1, 2, 3)}
    assert difference(alone[2], alone[1]) > 1e-3
    request = GenerateRequest(PROMPT, "a ring", seed=7, num_inference_steps=STEPS)
    drawings = {
        interval: pipe.prepare(replace(request, cache_interval=interval), 1, output_type="latent")
        for interval in alone
    }
    for drawing in drawings.values():
        pipe.begin(drawing)
        pipe.advance()
    while pipe.is_busy:
        pipe.advance()
    for interval, drawing in drawings.items():
        np.testing.assert_array_equal(drawing.pictures[0].image, alone[interval])


@pytest.mark.slow
def test_devices_that_share_a_picture_draw_the_same(pipe: SDXLPipeline) -> None:
    """Each device has the deep features of its half of guidance."""
    apart = SDXLPipeline.from_pretrained(
        SMALLEST,
        images_per_request=1,
        devices=jax.devices()[:2],
        step_cache=True,
        cache_dir=EXECUTABLES,
    )
    assert apart._compiled.mesh.shape == {"guidance": 2, "images": 1, "rows": 1}
    for until in (1.0, 0.25):
        own, right = (draw(each, 2, images=1, guidance_until=until)[0] for each in (apart, pipe))
        assert difference(own, right) < CLOSE


def test_the_pictures_name_the_interval(pipe: SDXLPipeline) -> None:
    cached, exact = (draw(pipe, interval, "pil", images=1)[0] for interval in (3, 1))
    assert "Cache interval: 3" in cached.info[metadata.KEY]
    assert metadata.from_text(cached.info[metadata.KEY]).cache_interval == 3
    assert "Cache interval" not in exact.info[metadata.KEY]


def target(**more: Any) -> Target:
    return Target(
        read_config(SMALLEST),
        FLOAT32,
        make_mesh(jax.devices()[:1], 2),
        Shapes(2, 16, 16),
        **more,
    )


def test_the_other_programs_are_the_same_with_it() -> None:
    plain, cached = target(), target(step_cache=True)
    same = [name for name in PROGRAMS if cache_key(name, plain) == cache_key(name, cached)]
    assert same == [name for name in PROGRAMS if name != "step"]


def test_the_command_line_refuses_an_interval_without_a_step_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.main([PROMPT, "--cache-interval", "2"])
    assert "--cache-interval 2 needs --step-cache" in capsys.readouterr().err
