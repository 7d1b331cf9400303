"""Layouts over devices: all give the same pictures, and nothing is compiled after startup."""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.platforms import PLATFORMS
from pipeline.runtime import compiled
from pipeline.runtime.compiled import choose_layout, make_mesh
from tests.checkpoints import SMALLEST, encoded, shared_pipeline

PROMPTS = ["a red star", "a blue circle", "a large green square", "two yellow rings"]
NEGATIVE = ["", "red", "blue, blurry", ""]
BOUND = 1 / 255
CLOSE = 1e-4  # tolerance for pictures in 0..1; the order of additions differs


@pytest.mark.parametrize(
    ("devices", "images", "layout"),
    [
        (1, 4, (1, 1)),
        (2, 4, (2, 1)),
        (3, 4, (2, 1)),
        *((n, 4, (4, 1)) for n in range(4, 8)),
        *((n, 4, (4, 2)) for n in range(8, 17)),
        (1, 1, (1, 1)),
        (2, 1, (1, 2)),
        (16, 1, (1, 2)),
        (3, 3, (3, 1)),
        (2, 3, (1, 2)),
        (5, 3, (3, 1)),
        (6, 3, (3, 2)),
        (4, 6, (2, 2)),
        (4, 5, (1, 2)),
        (8, 12, (4, 2)),
        (16, 8, (8, 2)),
        (15, 8, (8, 1)),
    ],
)
def test_layout(devices: int, images: int, layout: tuple[int, int]) -> None:
    assert choose_layout(devices, images) == (*layout, 1)


@pytest.mark.parametrize("devices", range(1, 17))
@pytest.mark.parametrize("images", range(1, 17))
def test_layouts_share_equally(devices: int, images: int) -> None:
    split, halves, rows = choose_layout(devices, images)
    assert images % split == 0
    assert rows == 1
    used = split * halves
    assert 1 <= used <= devices
    others = [n * h for n in range(1, images + 1) if images % n == 0 for h in (1, 2)]
    assert used == max(n for n in others if n <= devices)


def test_unused_devices_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pipeline"):
        mesh = make_mesh(jax.devices()[:3], 4)
    assert caplog.messages == ["3 devices found; 4 pictures use 2 of them"]
    assert list(mesh.devices.flat) == jax.devices()[:2]


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_nothing_is_logged_if_all_devices_are_used(
    devices: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="pipeline"):
        mesh = make_mesh(jax.devices()[:devices], 4)
    assert caplog.messages == []
    assert mesh.devices.size == devices


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "used"), [(2, 2), (3, 2), (4, 4), (8, 8)])
def test_every_number_of_devices_draws_the_same(devices: int, used: int) -> None:
    draw = partial(np.stack, axis=0)
    alone, several = (
        draw(shared_pipeline(n).generate(PROMPTS, NEGATIVE, seed=7, output_type="np").images)
        for n in (1, devices)
    )
    assert shared_pipeline(devices).facts.num_devices == used
    assert np.abs(alone - several).max() <= BOUND
    # The pictures must differ from each other; otherwise the comparison would prove nothing.
    assert all(np.abs(alone[i] - alone[i - 1]).max() > 10 * BOUND for i in range(4))


def test_halves_of_guidance_run_on_different_devices() -> None:
    run = shared_pipeline(8)._compiled
    for array in jax.tree.leaves(encoded(run, np.zeros((2, 4, 2, 77), np.int32))):
        held = {shard.device.id: shard.index[:2] for shard in array.addressable_shards}
        assert held == {
            half * 4 + picture: (slice(half, half + 1), slice(picture, picture + 1))
            for half in range(2)
            for picture in range(4)
        }


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow), 4, 8])
def test_every_device_computes_one_picture_at_a_time(devices: int) -> None:
    """No network in a device's programs sees more than one picture, and the halves there."""
    run = shared_pipeline(devices)._compiled
    halves = 1 if devices == 8 else 2
    shapes = {"step": (halves, "8,8,16"), "encode": (halves, "77,64"), "decode": (1, "16,16,16")}
    for name, (batch, shape) in shapes.items():
        program = run.executables[name].as_text() or ""
        assert max(n for n in (1, 2, 4, 8) if f"f32[{n},{shape}]" in program) == batch, name


def test_pictures_are_spread_over_the_devices() -> None:
    run = shared_pipeline(4)._compiled
    latents = run.initial_latents(np.arange(4, dtype=np.uint32), 1.0)
    held = {shard.device.id: shard.index[0] for shard in latents.addressable_shards}
    assert held == {picture: slice(picture, picture + 1) for picture in range(4)}
    pictures, _ = run.decode(latents, np.ones(4, bool))
    assert pictures.sharding.is_equivalent_to(latents.sharding, pictures.ndim)
    assert len({shard.device for shard in pictures.addressable_shards}) == 4


def test_weights_are_on_every_device() -> None:
    for leaves in shared_pipeline(4)._compiled.parameters.leaves.values():
        assert all(leaf.sharding.is_fully_replicated for leaf in leaves)
        assert all(leaf.devices() == set(jax.devices()[:4]) for leaf in leaves)


def test_initial_latents_are_scaled_noise() -> None:
    run = shared_pipeline(1)._compiled
    seeds = np.array([5, 6, 2**32 - 1, 0], np.uint32)
    one, three = (np.asarray(run.initial_latents(seeds, sigma)) for sigma in (1.0, 3.0))
    np.testing.assert_allclose(three, 3 * one, rtol=1e-6)
    assert len({row.tobytes() for row in one}) == 4
    assert abs(one.mean()) < 0.1
    assert abs(one.std() - 1) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "form"), [(1, "half"), (8, "half"), (1, "slots"), (2, "slots"), (8, "slots")]
)
def test_every_form_of_the_forward_passes_draws_the_same(
    devices: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forms of other platforms draw the pictures of a CPU's, whatever fills the slots."""
    usual = shared_pipeline(devices)  # made before the CPU's form is another one
    monkeypatch.setitem(PLATFORMS, "cpu", replace(PLATFORMS["cpu"], forward=form))
    pipe = SDXLPipeline.from_pretrained(
        SMALLEST, num_inference_steps=3, devices=jax.devices()[:devices]
    )
    requests: list[dict[str, Any]] = [
        {},
        {"guidance_scale": 1.0},
        {"images": 1},
        {"guidance_until": 0.5, "guidance_rescale": 0.7, "scheduler": "euler-ancestral"},
    ]
    for request in requests:
        drawn, right = (
            each.generate(PROMPTS[0], seed=7, output_type="np", **request).images
            for each in (pipe, usual)
        )
        assert np.abs(drawn - right).max() <= CLOSE


def test_new_pictures_are_encoded_into_the_memory_of_the_others() -> None:
    run = shared_pipeline(2)._compiled
    ids = np.random.default_rng(0).integers(0, 500, (2, 4, 2, 77)).astype(np.int32)
    every, zeroed = np.ones(4, bool), np.zeros((2, 4), bool)
    new = np.array([False, True, False, False])
    chosen, guidance = np.zeros((2, 4), np.int32), np.zeros(4, np.float32)
    rows = [*np.moveaxis(ids, 2, 0)]  # of each text encoder
    embeds, context = run.encode(run.blank_embeds(), every, rows, zeroed), encoded(run, ids)
    kept = jax.tree.map(np.array, (embeds, context))
    others = run.encode(embeds, new, [row[:, ::-1] for row in rows], zeroed)
    after = others, run.condition(context, new, [others], chosen, guidance)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((embeds, context)))
    for ours, old in zip(jax.tree.leaves(after), jax.tree.leaves(kept), strict=True):
        np.testing.assert_array_equal(ours[:, [0, 2, 3]], old[:, [0, 2, 3]])
        np.testing.assert_array_equal(ours[:, 1], old[:, 2])  # the prompt of slot 2


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_each_prompt_has_the_context_of_its_text(devices: int) -> None:
    run = shared_pipeline(devices)._compiled
    ids = np.random.default_rng(2).integers(0, 500, (3, 2, 4, 2, 77)).astype(np.int32)
    every, zeroed, guidance = np.ones(4, bool), np.zeros((2, 4), bool), np.zeros(4, np.float32)
    rows = np.moveaxis(ids, 3, 1)  # [texts, encoders, ...]
    texts = [run.encode(run.blank_embeds(), every, [*row], zeroed) for row in rows]
    chosen = np.array([[0, 2, 1, 0], [1, 2, 0, 0]], np.int32)
    found = run.condition(run.blank_context(), every, texts, chosen, guidance)
    contexts = [encoded(run, each) for each in ids]
    for ours, *alone in zip(*map(jax.tree.leaves, (found, *contexts)), strict=True):
        for half, slot in np.ndindex(2, 4):
            right = alone[chosen[half, slot]][half, slot]
            np.testing.assert_array_equal(ours[half, slot], right)


@pytest.mark.parametrize("devices", [1, 2])
def test_pictures_with_the_same_prompts_are_encoded_once(devices: int) -> None:
    run = shared_pipeline(devices)._compiled
    ids = np.random.default_rng(1).integers(0, 500, (2, 4, 2, 77)).astype(np.int32)
    same = ids[:, [0, 1, 0, 0]]
    for new, old in zip(
        *map(jax.tree.leaves, (encoded(run, same), encoded(run, ids))), strict=True
    ):
        for slot, alone in enumerate([0, 1, 0, 0]):
            np.testing.assert_array_equal(new[:, slot], old[:, alone])


@pytest.mark.parametrize(
    ("per_device", "sources"), [(4, [0, -1, 2, 0]), (2, [0, -1, 0, 1]), (1, [0, -1, 0, 0])]
)
def test_the_source_of_a_context_is_on_the_same_device(per_device: int, sources: list[int]) -> None:
    new, values = np.array([True, False, True, True]), np.array([5, 5, 6, 5])
    assert compiled._sources(new, per_device, [values]).tolist() == sources


def test_only_wanted_pictures_are_decoded() -> None:
    run = shared_pipeline(2)._compiled
    latents = run.initial_latents(np.arange(4, dtype=np.uint32), 1.0)
    everything, some = (
        np.asarray(run.decode(latents, np.array(wanted))[0])
        for wanted in ([True] * 4, [False, True, True, False])
    )
    np.testing.assert_array_equal(some[1:3], everything[1:3])
    assert not some[[0, 3]].any()
