"""Compatibility with diffusers' Flax pipelines, against pictures drawn by diffusers 0.39.

`tests/reference/incumbent.py` made the golden files: one with that version unchanged, and one with
two of its constants replaced by those of torch's networks. The default model of the tests is SDXL.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.jax_utils import replicate

from pipeline import CheckpointError, InputError
from pipeline.compat import (
    FlaxDiffusionPipeline,
    FlaxStableDiffusionPipeline,
    FlaxStableDiffusionXLPipeline,
)
from tests import flax_calls
from tests.checkpoints import GOLDEN, PLAIN, nothing_compiles

XL = GOLDEN / "flax/checkpoint"
SD = GOLDEN / "flax_sd/checkpoint"
INCUMBENT_BOUND = 2 / 255
SAME_CONSTANTS_BOUND = 0.05 / 255
# Device counts tested for each model.
DEVICES = {"flax": (1, 8), "flax_sd": (4,)}
NAMES = {
    model: ("defaults", "negative", *(f"devices_{count}" for count in counts))
    for model, counts in DEVICES.items()
}

Params = dict[str, Any]


@cache
def loaded(model: str = "flax") -> tuple[FlaxDiffusionPipeline, Params]:
    return FlaxDiffusionPipeline.from_pretrained(GOLDEN / model / "checkpoint", split_head_dim=True)


@cache
def pictures(model: str) -> dict[str, np.ndarray]:
    return flax_calls.pictures(*loaded(model), DEVICES[model])


def golden(model: str, name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / model / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


DRAWN = [
    # The second model differs in its text encoders and conditions alone.
    pytest.param(model, name, marks=pytest.mark.slow if model == "flax" else pytest.mark.rare)
    for model, names in NAMES.items()
    for name in names
]


@pytest.mark.parametrize(("model", "name"), DRAWN)
def test_pictures_are_those_of_diffusers(model: str, name: str) -> None:
    theirs, ours = golden(model, "incumbent")[name], pictures(model)[name]
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert np.abs(ours - theirs).max() <= INCUMBENT_BOUND


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES["flax"])
def test_only_two_constants_differ(name: str) -> None:
    theirs = golden("flax", "incumbent_torch_constants")[name]
    assert np.abs(pictures("flax")[name] - theirs).max() <= SAME_CONSTANTS_BOUND


@pytest.mark.parametrize("name", ["ids", "negative_ids"])
@pytest.mark.parametrize("model", DEVICES)
def test_ids_are_those_of_diffusers(model: str, name: str) -> None:
    ids = flax_calls.ids(loaded(model)[0])
    np.testing.assert_array_equal(ids[name], golden(model, "incumbent")[name])


def test_the_refiner_had_no_flax_pipeline() -> None:
    with pytest.raises(CheckpointError, match="is a Stable Diffusion XL refiner, for which"):
        FlaxDiffusionPipeline.from_pretrained(GOLDEN / "refiner/checkpoint")


def test_the_kind_follows_the_checkpoint() -> None:
    assert type(loaded("flax")[0]) is FlaxStableDiffusionXLPipeline
    assert type(loaded("flax_sd")[0]) is FlaxStableDiffusionPipeline
    for kind, other in ((FlaxStableDiffusionXLPipeline, SD), (FlaxStableDiffusionPipeline, XL)):
        with pytest.raises(CheckpointError, match=f"is for Flax.*, not for {kind.__name__}"):
            kind.from_pretrained(other)


def inputs(prompts: int = 1) -> tuple[jax.Array, jax.Array]:
    pipeline, _ = loaded()
    return pipeline.prepare_inputs(["a red star"] * prompts), jax.random.PRNGKey(0)


@pytest.mark.slow
def test_latents_in_and_out_have_channels_first() -> None:
    pipeline, params = loaded()
    ids, key = inputs(2)
    noise = jax.random.normal(key, (2, 4, 8, 8))
    drawn, given = (
        pipeline(ids, params, key, 2, latents=latents, output_type="latent").images
        for latents in (None, noise)
    )
    assert drawn.shape == (2, 4, 8, 8)
    np.testing.assert_allclose(drawn, given, atol=1e-3)
    other = pipeline(ids, params, key, 2, latents=-noise, output_type="latent").images
    assert np.abs(other - drawn).max() > 0.1


def test_nothing_compiles_for_another_prompt_key_or_guidance_scale() -> None:
    pipeline, params = loaded()
    ids, key = inputs()
    first = pipeline(ids, params, key, 1)[0]
    others = pipeline.prepare_inputs("night"), jax.random.PRNGKey(1)
    with nothing_compiles():
        second = pipeline(others[0], params, others[1], 1, guidance_scale=3).images
    assert np.abs(first - second).max() > 0.01


@pytest.mark.slow
def test_a_program_may_map_generate_itself() -> None:
    """`pmap` of `_generate` works as in the guide, with positional defaults, and as in its demo.

    The pictures equal those of calls of the pipeline, on one device.
    """
    (pipeline, params), drawn = loaded(), pictures("flax")
    [*on_device] = replicate((params, jax.random.PRNGKey(flax_calls.SEED)), jax.devices()[:1])
    images = jax.pmap(pipeline._generate)(drawn["ids"][None, :2], *on_device).block_until_ready()
    assert images.shape == (1, 2, 16, 16, 3)
    np.testing.assert_allclose(images[0], drawn["defaults"], atol=1e-4)

    arguments = drawn["ids"][None, :1], *on_device
    guidance, negative = jnp.full((1, 1), 5.0), drawn["negative_ids"][None]
    mapped = jax.pmap(pipeline._generate, static_broadcasted_argnums=[3, 4, 5, 9])
    steps = flax_calls.STEPS
    compiled = mapped.lower(*arguments, steps, 24, 16, guidance, None, negative, False).compile()
    images = compiled(*arguments, guidance, None, negative)
    np.testing.assert_allclose(images[0], drawn["negative"], atol=1e-4)


def test_parameters_are_a_plain_dict_in_the_dtype_they_are_given() -> None:
    pipeline, params = loaded()
    params = dict(params)
    scheduler_state = params.pop("scheduler")
    params = jax.tree_util.tree_map(lambda x: x.astype(jnp.bfloat16), params)
    params["scheduler"] = scheduler_state
    ids, key = inputs()
    rough = pipeline(ids, params, key, 1).images
    exact = pipeline(ids, loaded()[1], key, 1).images
    assert rough.dtype == exact.dtype == jnp.float32
    assert 1e-4 < np.abs(rough - exact).max() < 0.2

    # On CPUs only the parameters are rounded to bfloat16; computations are in float32.
    upcast = jax.tree_util.tree_map(lambda x: x.astype(jnp.float32), params)
    np.testing.assert_allclose(rough, pipeline(ids, upcast, key, 1).images, atol=1e-6)

    _, at_once = FlaxStableDiffusionXLPipeline.from_pretrained(XL, dtype=jnp.bfloat16)
    jax.tree.map(np.testing.assert_array_equal, at_once, params)
    assert type(at_once["unet"]["down_blocks"]["0"]) is dict


@pytest.mark.slow
def test_a_blank_prompt_is_one_without_words() -> None:
    pipeline, params = loaded()
    ids, key = pipeline.prepare_inputs(""), jax.random.PRNGKey(0)
    blank, words = (pipeline(each, params, key, 1).images for each in (ids, inputs()[0]))
    assert np.abs(blank - words).max() > 0.01
    # Without guidance the negative prompt has no effect. Where none is given, it is zeroed.
    alone, negated = (
        pipeline(ids, params, key, 1, guidance_scale=1, neg_prompt_ids=each).images
        for each in (None, ids)
    )
    np.testing.assert_allclose(alone, negated, atol=1e-6)
    assert np.abs(blank - alone).max() > 0.01


def test_output_is_also_a_tuple() -> None:
    pipeline, params = loaded()
    ids, key = inputs()
    output = pipeline(ids, params, key, 1)
    assert output[0] is output.images
    [image] = pipeline.numpy_to_pil(output.images)
    assert image.size == (16, 16)
    np.testing.assert_array_equal(image, np.round(np.asarray(output.images[0]) * 255))


@pytest.mark.parametrize("revision", ["flax", "bf16"])
def test_branches_with_flax_weights_stand_for_the_main_branch(
    revision: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def fetch(model: str, revision: str | None, reader: Any, prefer_fp16: bool) -> Any:
        asked.append((model, revision, prefer_fp16))
        raise CheckpointError("far enough")

    monkeypatch.setattr("pipeline.compat.fetch", fetch)
    with pytest.raises(CheckpointError, match="far enough"):
        FlaxStableDiffusionXLPipeline.from_pretrained("a/b", revision=revision, dtype=jnp.bfloat16)
    assert asked == [("a/b", None, True)]
    assert revision in caplog.text


def test_a_dtype_that_overflows_is_refused() -> None:
    with pytest.raises(InputError, match="float16"):
        FlaxStableDiffusionXLPipeline.from_pretrained(XL, dtype=jnp.float16)


def test_a_safety_checker_of_ones_own_is_refused() -> None:
    FlaxStableDiffusionPipeline.from_pretrained(SD, safety_checker=None)
    with pytest.raises(InputError, match="safety_checker is given; pass None or leave it out"):
        FlaxStableDiffusionPipeline.from_pretrained(SD, safety_checker=object())  # type: ignore[arg-type]


def test_prompts_must_be_text() -> None:
    with pytest.raises(InputError, match="prompt is int; expected a str or a list of str"):
        loaded()[0].prepare_inputs(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": np.zeros((1, 77), np.int32)}, r"prompt_ids are \[1, 77\].*\[B, 2, 77\]"),
        ({"neg_prompt_ids": np.zeros((2, 2, 77), np.int32)}, r"neg_prompt_ids are .*\[1, 2, 77\]"),
        ({"latents": np.zeros((1, 8, 8, 4), np.float32)}, r"latents are .*\[1, 4, 8, 8\]"),
        ({"guidance_scale": np.ones(2)}, r"guidance_scale is \[2\].*one number"),
        ({"num_inference_steps": 0}, "num_inference_steps is 0; expected 1 to 1000"),
        ({"height": 18}, "height is 18; expected a multiple of 4"),
        ({"height": 0}, "height is 0; expected 4 to 8192"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(change: Params, message: str) -> None:
    pipeline, params = loaded()
    ids, key = inputs()
    arguments = {"prompt_ids": ids, "params": params, "prng_seed": key, "num_inference_steps": 1}
    with pytest.raises(InputError, match=message):
        pipeline(**(arguments | change))


def test_without_an_axis_of_devices_jit_says_which_argument_lacks_it() -> None:
    pipeline, params = loaded()
    ids, key = inputs(2)
    keys = jax.random.split(key, 2)
    with pytest.raises(
        InputError, match=r"params\.text_encoder\..* is .*; .* expected \[2, \.\.\.\]"
    ):
        pipeline(ids[:, None], params, keys, jit=True)
    copies = replicate(params, jax.devices()[:2])
    with pytest.raises(InputError, match=r"prng_seed is \[1, 2\];.*\[2, \.\.\.\]"):
        pipeline(ids[:, None], copies, keys[:1], jit=True)
    with pytest.raises(InputError, match="for 9 devices; there are 8"):
        pipeline(np.zeros((9, 1, 2, 77)), copies, keys, jit=True)
    with pytest.raises(InputError, match="wrong number of axes"):
        pipeline(ids, copies, key)


@pytest.mark.slow
def test_parameters_of_another_model_are_refused() -> None:
    pipeline, params = loaded()
    ids, key = inputs()
    _, others = FlaxStableDiffusionXLPipeline.from_pretrained(PLAIN)
    with pytest.raises(InputError, match=r"params\['unet'\]: .* another model"):
        pipeline(ids, params | {"unet": others["unet"]}, key, 1)
    with pytest.raises(InputError, match="params lack 'vae'"):
        pipeline(ids, {name: params[name] for name in params if name != "vae"}, key, 1)
    mixed = {**params["vae"], "more": {"kernel": np.zeros(3, np.float32)}}
    with pytest.raises(InputError, match=r"params\['vae'\]: more\.kernel is unknown"):
        pipeline(ids, params | {"vae": mixed}, key, 1)
    half = jax.tree.map(lambda x: x.astype(np.float16), params["vae"])
    with pytest.raises(InputError, match=r"params\['vae'\] are float16; expected one dtype"):
        pipeline(ids, params | {"vae": half}, key, 1)
