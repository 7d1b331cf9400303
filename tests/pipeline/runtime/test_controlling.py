"""Residuals of networks that guide the denoiser: one picture at a time, and in batches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pipeline.runtime import controlling
from pipeline.runtime.controlling import Following, Prompts
from pipeline.runtime.work import Work, no_work, unpack
from pipeline.text.controls import UNION_TYPES

SLOTS, SHAPES = 5, ((4, 6, 3), (2, 3, 2))
RNG = np.random.default_rng(0)


def draw(*shape: int) -> Array:
    return jnp.asarray(RNG.standard_normal(shape, np.float32))


def predict(latents: Array, timesteps: Array, context: Any, hints: Array) -> tuple[Array, ...]:
    """Stand in for a network: what it returns depends on all that it is given."""
    x = latents * context["text"][:, None] + timesteps[:, None, None, None] + hints.mean()
    return x, x[:, ::2, ::2, :2].sum() * x[:, ::2, ::2, :2] + context["types"].sum()


def predict_one_by_one(
    latents: Array, timesteps: Array, context: Any, hints: Array
) -> tuple[Array, ...]:
    """Keep the pictures of a batch apart, as a network does."""
    parts = jax.vmap(lambda *one: predict(*jax.tree.map(lambda leaf: leaf[None], one)))(
        latents, timesteps, context, hints
    )
    return tuple(part[:, 0] for part in parts)


def condition(prompts: Prompts[Array]) -> Any:
    def of_chunk(embeds: Array, prompts: Prompts[Array], room: int) -> Any:
        types = jnp.broadcast_to(prompts.types, (2, *prompts.types.shape))
        return {"text": embeds, "types": types}

    return controlling.context(of_chunk, prompts, 1, 2)


def following(scales: np.ndarray, adds: np.ndarray, halves: np.ndarray) -> Following:
    work = no_work(SLOTS)
    work.column("halves")[:] = halves
    for name in ("timesteps", "input_scale"):
        work.column(name)[:] = RNG.uniform(size=SLOTS)
    prompts = Prompts(
        texts=tuple(draw(2, SLOTS, 1, 6, 3) for _ in range(2)),
        numbers=jnp.asarray(RNG.integers(2, size=(2, SLOTS))),
        chunks=jnp.ones((2, SLOTS), jnp.int32),
        types=draw(SLOTS, len(UNION_TYPES)),
    )
    tasks = unpack(Work(*map(jnp.asarray, work)))
    inputs = draw(SLOTS, *SHAPES[0]), tasks, prompts, draw(SLOTS, *SHAPES[0])
    return Following(*inputs, jnp.asarray(scales, jnp.float32), jnp.asarray(adds))


@pytest.mark.parametrize("count", range(SLOTS + 1))
def test_batches_have_the_residuals_of_pictures_in_turn(count: int) -> None:
    slot_mask = np.isin(np.arange(SLOTS), RNG.permutation(SLOTS)[:count])
    scales = RNG.uniform(size=(2, SLOTS, 2))
    scales[0, 1] = 0  # for the prompt alone
    adds, halves = RNG.integers(2, size=SLOTS) > 0, np.full(SLOTS, 2)
    given = following(scales, adds, halves)
    before = tuple(draw(2, SLOTS, *shape) for shape in SHAPES)
    in_turn, batched = (
        jax.jit(controlling.FORMS[form], static_argnums=(0, 1))(
            predict_one_by_one, condition, before, given, jnp.asarray(slot_mask)
        )
        for form in ("picture", "slots")
    )
    for one, other, old in zip(in_turn, batched, before, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(one[:, ~slot_mask], old[:, ~slot_mask])
        expected = np.where(adds[1], old[0, 1], 0) if slot_mask[1] else old[0, 1]
        np.testing.assert_array_equal(one[0, 1], expected)


def test_a_picture_without_guidance_needs_one_half() -> None:
    given = following(np.ones((2, SLOTS, 2)), np.zeros(SLOTS, bool), np.ones(SLOTS))
    zeros = tuple(jnp.zeros((2, SLOTS, *shape)) for shape in SHAPES)
    after = controlling.FORMS["half"](
        predict_one_by_one, condition, zeros, given, jnp.ones(SLOTS, bool)
    )
    for residual in after:
        np.testing.assert_array_equal(residual[0], 0)
        assert (residual[1] != 0).any((1, 2, 3)).all()


def test_clear_empties_slots() -> None:
    slot_mask = np.arange(SLOTS) % 2 == 0
    before = tuple(draw(2, SLOTS, *shape) for shape in SHAPES)
    after = controlling.clear(before, jnp.asarray(slot_mask))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new, np.where(slot_mask[:, None, None, None], 0, old))
