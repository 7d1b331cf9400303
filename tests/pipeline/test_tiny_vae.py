"""A pipeline with a tiny VAE: previews, pictures on request, and what it costs."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from pipeline import InputError, SDXLPipeline, metadata
from pipeline import __main__ as command
from pipeline.families import FamilyReader
from pipeline.families.reader import fetch_tiny_vae
from pipeline.runtime.compiled import make_mesh
from pipeline.runtime.programs import PROGRAMS, Shapes, Target, cache_key, program_names
from pipeline.schedulers.table import State
from tests.checkpoints import EXECUTABLES, GOLDEN, SMALLEST, nothing_compiles, shared_pipeline

TINY = GOLDEN / "tiny_vae"
FLOAT32 = np.dtype(np.float32)
PROMPT = "a red star"


def target(*, tiny: bool) -> Target:
    component = fetch_tiny_vae(TINY) if tiny else None
    config = FamilyReader(tiny_vae=component).read(SMALLEST)
    return Target(config, FLOAT32, make_mesh(jax.devices()[:1], 2), Shapes(2, 16, 16))


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    """Return the shared pipeline on two devices with a tiny VAE beside it."""
    return SDXLPipeline.from_pretrained(
        SMALLEST,
        num_inference_steps=3,
        devices=jax.devices()[:2],
        tiny_vae=TINY,
        cache_dir=EXECUTABLES,
    )


def test_previews_and_pictures_compile_nothing(pipe: SDXLPipeline) -> None:
    looks: list[np.ndarray] = []
    with nothing_compiles():
        tiny = pipe.generate(
            PROMPT, output_type="np", decoder="tiny", on_preview=lambda look: looks.append(look())
        )
        full = pipe.generate(PROMPT, output_type="np", decoder="full")
    assert pipe.facts.tiny_vae == "tiny_vae"
    assert tiny.images.shape == full.images.shape
    assert np.abs(tiny.images - full.images).max() > 0.01
    # Two preview pixels per latent pixel, along each side.
    assert [(each.shape, each.dtype) for each in looks] == [((4, 16, 16, 3), np.uint8)] * 2
    assert not np.array_equal(looks[0], looks[1])


def test_a_preview_is_the_picture_of_what_the_step_predicts(pipe: SDXLPipeline) -> None:
    sampler = pipe._compiled
    rng = np.random.default_rng(3)
    before, value = (
        rng.normal(size=(4, *sampler.latents_shape)).astype(np.float32) for _ in range(2)
    )
    history = np.array(sampler.blank_state.history)
    history[0] = value
    placed = jax.device_put(history, sampler.blank_state.history.sharding)
    after = State(sampler.put_columns(before), placed)
    rows, wanted = np.array([[0.25, -0.5], [1, 0], [0.5, 0.5], [1, 1]]), np.ones(4, bool)
    found = sampler.preview(after.latents, after, rows, wanted)
    weights = rows.T[:, :, None, None, None]
    mixed = (weights[0] * before + weights[1] * value).astype(np.float32)
    _, pixels = sampler.tiny_decode(sampler.put_columns(mixed), wanted)
    assert np.abs(found.astype(int) - np.asarray(pixels).astype(int)).max() <= 1
    alone = sampler.preview(after.latents, after, rows, np.array([False, False, True, False]))
    np.testing.assert_array_equal(alone[2], found[2])
    assert not alone[[0, 1, 3]].any()


def test_the_pictures_name_the_decoder(pipe: SDXLPipeline) -> None:
    tiny, full = (
        pipe.generate(PROMPT, num_inference_steps=1, decoder=decoder).images[0]
        for decoder in ("tiny", "full")
    )
    assert "Decoder: tiny" in tiny.info[metadata.KEY]
    assert metadata.from_text(tiny.info[metadata.KEY]).decoder == "tiny"
    assert "Decoder" not in full.info[metadata.KEY]


@pytest.mark.slow
def test_the_full_decoder_draws_as_without_a_tiny_vae(pipe: SDXLPipeline) -> None:
    without = shared_pipeline(2)
    with_it, own = (each.generate(PROMPT, output_type="np").images for each in (pipe, without))
    np.testing.assert_array_equal(with_it, own)
    with pytest.raises(InputError, match="decoder is 'tiny', but the pipeline has no tiny VAE"):
        without.generate(PROMPT, decoder="tiny")


@pytest.mark.slow
def test_other_sizes_have_the_program_too(pipe: SDXLPipeline) -> None:
    pipe.add_size(16, 24)
    pipe.warm_up(16, 24)
    with nothing_compiles():
        wide = pipe.generate(PROMPT, decoder="tiny", width=24, num_inference_steps=1)
    assert wide.images[0].size == (24, 16)


def test_the_other_programs_are_the_same_with_it() -> None:
    """Cached programs serve pipelines with a tiny VAE and without; only its own needs it."""
    plain, tiny = target(tiny=False), target(tiny=True)
    assert program_names(tiny) == [
        name for name in PROGRAMS if name in ("tiny_decode", *program_names(plain))
    ]
    for name in program_names(plain):
        assert cache_key(name, plain) == cache_key(name, tiny)
    other = replace(tiny.config.networks["tiny_vae"], decoder_width=12)
    networks = {**tiny.config.networks, "tiny_vae": other}
    changed = replace(tiny, config=replace(tiny.config, networks=networks))
    assert cache_key("tiny_decode", changed) != cache_key("tiny_decode", tiny)


@jax.numpy_dtype_promotion("standard")  # in the attention of text encoders, which is JAX's
def test_a_plan_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", str(SMALLEST), "--tiny-vae", str(TINY), "--images", "2")
    assert command.main(["--plan", *model]) == 0
    assert re.search(r"\n  tiny_vae +0\.\d MB", capsys.readouterr().out)


def test_the_command_line_refuses_a_decoder_without_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.main([PROMPT, "--decoder", "tiny"])
    assert "--decoder tiny needs --tiny-vae" in capsys.readouterr().err
