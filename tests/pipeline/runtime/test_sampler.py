"""The pure functions between seeds and pictures."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.families import latent_unet, read_config
from pipeline.runtime import looping, sampler
from pipeline.runtime.work import Work, no_work, pack, unpack
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import REMEMBERED, Kept, State
from tests.checkpoints import SMALLEST
from tests.networks import VAE_CONFIG, vae


def test_noise_depends_on_its_own_seed_alone() -> None:
    shape = (8, 8, 4)
    drawn = np.asarray(sampler.noise(jnp.array([0, 1, 2**32 - 1], jnp.uint32), shape))
    alone = np.asarray(sampler.noise(jnp.array([2**32 - 1], jnp.uint32), shape))
    assert (drawn.shape, drawn.dtype) == ((3, *shape), np.float32)
    np.testing.assert_array_equal(drawn[2], alone[0])
    assert len({row.tobytes() for row in drawn}) == 3
    many = np.asarray(sampler.noise(jnp.arange(64, dtype=jnp.uint32), shape))
    assert abs(many.mean()) < 0.03
    assert abs(many.std() - 1) < 0.03


def test_variations_lie_between_two_draws() -> None:
    shape = (8, 8, 4)
    seeds, others = jnp.array([3, 3, 5], jnp.uint32), jnp.array([7, 8, 5], jnp.uint32)

    own, whole = (np.asarray(sampler.noise(each, shape)) for each in (seeds, others))

    def draw(strength: float) -> np.ndarray:
        return np.asarray(sampler.vary(jnp.array(own), jnp.array(whole), jnp.float32(strength)))

    np.testing.assert_allclose(draw(0), own, atol=1e-5)
    np.testing.assert_allclose(draw(1), whole, atol=1e-5)
    half = draw(0.5)
    np.testing.assert_allclose(half[2], own[2], atol=1e-5)  # both seeds are the same
    # Half-way noise is equally far from both, and has the same length.
    for one in range(2):
        a, b, middle = (each[one].ravel() for each in (own, whole, half))
        np.testing.assert_allclose(middle @ a / (a @ a), middle @ b / (b @ b), rtol=0.1)
        assert abs(middle.std() - 1) < 0.1
    distances = [np.abs(draw(strength)[0] - own[0]).mean() for strength in (0.1, 0.3, 0.6, 1)]
    assert distances == sorted(distances)


def test_noise_does_not_follow_the_default_generator() -> None:
    def draw() -> np.ndarray:
        return np.asarray(sampler.noise(jnp.array([7], jnp.uint32), (2, 2, 4)))

    usual = draw()
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(draw(), usual)


def test_step_noise_depends_on_seed_and_evaluation_alone() -> None:
    shape, seeds = (8, 8, 4), jnp.array([0, 1, 2**32 - 1], jnp.uint32)
    drawn = [np.asarray(sampler.step_noise(seeds, i, shape)) for i in (0, 1, 40)]
    alone = np.asarray(sampler.step_noise(seeds[2:], 1, shape))
    np.testing.assert_array_equal(drawn[1][2], alone[0])
    different = [*drawn, np.asarray(sampler.noise(seeds, shape))]
    assert len({row.tobytes() for rows in different for row in rows}) == 12
    assert abs(np.mean(drawn)) < 0.05
    assert abs(np.std(drawn) - 1) < 0.05


def test_pictures_are_clipped_and_rounded() -> None:
    latents = 20 * jnp.array(np.random.default_rng(0).normal(size=(2, 4, 4, 2)), jnp.float32)
    networks = {"vae": vae(VAE_CONFIG)}

    @jax.jit
    def decode(latents: jax.Array) -> tuple[jax.Array, jax.Array]:
        return sampler.decode(partial(latent_unet.decode, networks), latents)

    as_float, as_bytes = decode(latents[0])
    assert (as_float.shape, as_float.dtype) == ((8, 8, 3), jnp.float32)
    assert (as_bytes.shape, as_bytes.dtype) == ((8, 8, 3), jnp.uint8)
    assert 0 <= as_float.min() < as_float.max() <= 1
    np.testing.assert_array_equal(as_bytes, np.round(np.asarray(as_float) * 255))


# --- a step over slots

SLOTS, SHAPE = 4, (2, 2, 3)


class Network:
    """A stand-in for a network, which counts its forward passes by their batch."""

    def __init__(self) -> None:
        self.batches: Counter[int] = Counter()

    def __call__(self, latents: jax.Array, timesteps: jax.Array, context: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: self.batches.update([len(latents)]))
        return jnp.sin(latents * context[:, None, None, None] + timesteps[:, None, None, None])


def work_of(halves: list[int]) -> Work[np.ndarray]:
    """Return work at the second of three evaluations, for slots that need so many halves."""
    work = no_work(SLOTS)
    schedule = make_schedule(read_config(SMALLEST, "euler-ancestral").scheduler, 3)
    for slot, needed in enumerate(halves):
        if needed:
            row = pack(schedule, 5.0, 0.5, 3 * (needed - 1), seed=slot)
            work.numbers[slot], work.integers[slot] = (part[1] for part in row)
    return work


def step(form: str, halves: list[int]) -> tuple[State, State, Counter[int]]:
    """Return random states before and after a step, and the forward passes that it took."""
    rng, network = np.random.default_rng(0), Network()
    latents, history = (
        jnp.asarray(rng.normal(size=(*more, SLOTS, *SHAPE)), jnp.float32)
        for more in ((), (REMEMBERED,))
    )
    context = jnp.asarray(rng.normal(size=(2, SLOTS)), jnp.float32)
    before = State(latents, history)
    run = jax.jit(partial(sampler.step, sampler.FORMS[form], sampler.uncached(network)))
    after, _ = run(before, context, unpack(jax.tree.map(jnp.asarray, work_of(halves))))
    jax.effects_barrier()
    return before, jax.block_until_ready(after), network.batches


@pytest.mark.parametrize(
    ("form", "halves", "batches"),
    [
        ("picture", [2, 0, 1, 2], {2: 2, 1: 1}),
        ("picture", [0, 0, 0, 1], {1: 1}),
        ("picture", [0, 0, 0, 0], {}),
        ("half", [2, 0, 1, 2], {1: 5}),
        ("half", [0, 0, 0, 0], {}),
        ("slots", [2, 0, 1, 2], {8: 1}),
        ("slots", [1, 0, 1, 0], {2: 1}),
        ("slots", [0, 0, 0, 2], {2: 1}),
        ("slots", [0, 1, 2, 0], {4: 1}),
        ("slots", [0, 0, 0, 0], {}),
    ],
)
def test_forward_passes(form: str, halves: list[int], batches: dict[int, int]) -> None:
    before, after, taken = step(form, halves)
    assert taken == batches
    for slot, needed in enumerate(halves):
        moved = np.abs(after.latents[slot] - before.latents[slot]).max() > 1e-3
        assert moved == (needed > 0)
        kept = np.array_equal(after.history[:, slot], before.history[:, slot])
        assert kept == (needed == 0)


@pytest.mark.parametrize(
    ("form", "halves"),
    [
        ("half", [2, 0, 1, 2]),
        ("slots", [2, 0, 1, 2]),
        ("slots", [0, 0, 2, 0]),
        ("slots", [0, 2, 0, 1]),
        ("slots", [2, 2, 1, 2]),
    ],
)
def test_every_form_computes_the_same(form: str, halves: list[int]) -> None:
    for ours, right in zip(step(form, halves)[1], step("picture", halves)[1], strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5)


def test_a_picture_does_not_depend_on_its_neighbours() -> None:
    alone, beside = step("picture", [0, 0, 2, 0])[1], step("picture", [1, 2, 2, 2])[1]
    np.testing.assert_array_equal(alone.latents[2], beside.latents[2])


def test_an_item_that_is_not_wanted_is_zero() -> None:
    wanted = jnp.array([False, True, False, True])
    found = looping.map_wanted(wanted, lambda i: (i + 5, jnp.full(2, i, jnp.float32)))
    assert found[0].tolist() == [0, 6, 0, 8]
    assert found[1].tolist() == [[0, 0], [1, 1], [0, 0], [3, 3]]


def test_a_new_picture_has_no_history() -> None:
    state = State(jnp.ones((2, *SHAPE)), jnp.full((REMEMBERED, 2, *SHAPE), jnp.nan))
    blank = jnp.zeros((2, *SHAPE))
    kept = Kept(blank, blank, jnp.zeros((2, *SHAPE[:2], 1)))
    parts = jax.tree.map(lambda each: each + 3, kept)
    new = jnp.array([True, False])
    entered, found = sampler.enter(state, kept, jnp.full((2, *SHAPE), 7.0), parts, new)
    for each in found:
        assert (each[0] == 3).all()
        assert not each[1].any()
    assert (entered.latents[0] == 7).all()
    assert (entered.latents[1] == 1).all()
    assert not entered.history[:, 0].any()
    assert jnp.isnan(entered.history[:, 1]).all()
