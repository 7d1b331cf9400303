"""A step over slots in which some pictures use deep features of an earlier step."""

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.families import latent_unet, read_config
from pipeline.runtime import sampler
from pipeline.runtime.work import Work, no_work, pack, unpack
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import REMEMBERED, State
from tests.checkpoints import SMALLEST

SLOTS, SHAPE, WIDTH = 4, (2, 2, 3), 5
FORMS = [*sampler.FORMS]
EVALUATIONS = 4
Slots = dict[int, tuple[int, int]]  # by slot: the halves that a picture needs, and its interval


class Network:
    """A stand-in for a UNet, which counts the runs of its deep part by their batch."""

    def __init__(self) -> None:
        self.deep_runs: Counter[int] = Counter()

    def deep(self, latents: jax.Array, timesteps: jax.Array, context: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: self.deep_runs.update([len(latents)]))
        found = jnp.sin(latents.sum(-1) * context[:, None, None] + timesteps[:, None, None])
        return jnp.repeat(found[..., None], WIDTH, axis=-1)

    def shallow(
        self, latents: jax.Array, timesteps: jax.Array, context: jax.Array, deep: jax.Array
    ) -> jax.Array:
        scale = context[:, None, None, None] + timesteps[:, None, None, None] / 1000
        return jnp.cos(latents * scale) + deep.mean(-1, keepdims=True)


def work_of(pictures: Slots, evaluation: int) -> Work[np.ndarray]:
    work = no_work(SLOTS)
    schedule = make_schedule(read_config(SMALLEST, "euler-ancestral").scheduler, EVALUATIONS)
    for slot, (halves, interval) in pictures.items():
        guided = EVALUATIONS * (halves - 1)
        row = pack(schedule, 5.0, 0.0, guided, seed=slot, cache_interval=interval)
        work.numbers[slot], work.integers[slot] = (part[evaluation] for part in row)
    return work


def draw(form: str, pictures: Slots) -> tuple[np.ndarray, sampler.Deep, list[dict[int, int]]]:
    """Return the latents and the deep features after a run, and the deep part's runs by step."""
    rng, network, runs = np.random.default_rng(0), Network(), []
    latents, context, deep = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((SLOTS, *SHAPE), (2, SLOTS), (2, SLOTS, *SHAPE[:2], WIDTH))
    )
    state = State(latents, jnp.zeros((REMEMBERED, SLOTS, *SHAPE)))
    predict: Any = partial(latent_unet.predict_cached, {"unet": network})

    @jax.jit
    def step(state: State, deep: sampler.Deep, work: Work[jax.Array]) -> sampler.Stepped:
        return sampler.step(sampler.FORMS[form], predict, state, context, unpack(work), deep=deep)

    for evaluation in range(EVALUATIONS):
        network.deep_runs.clear()
        work = jax.tree.map(jnp.asarray, work_of(pictures, evaluation))
        state, deep = step(state, deep, work)
        jax.block_until_ready(state)
        jax.effects_barrier()
        runs.append(dict(network.deep_runs))
    return np.asarray(state.latents), deep, runs


def by_hand(slot: int, halves: int, interval: int) -> np.ndarray:
    """Return a picture's latents after a run, as `draw` does, without sampler and slots."""
    rng, network = np.random.default_rng(0), Network()
    latents = jnp.asarray(rng.normal(size=(SLOTS, *SHAPE)), jnp.float32)[slot]
    context = jnp.asarray(rng.normal(size=(2, SLOTS)), jnp.float32)[:, slot]
    table = make_schedule(read_config(SMALLEST, "euler-ancestral").scheduler, EVALUATIONS).table
    seed, features = jnp.array([slot], jnp.uint32), [jnp.zeros(0)] * 2
    for i in range(EVALUATIONS):
        row = jax.tree.map(lambda column, i=i: column[i], table)
        found = [jnp.zeros(0)] * 2
        for half in range(2 - halves, 2):
            given = (
                (latents * row.input_scale)[None],
                jnp.full(1, row.timesteps),
                context[half : half + 1],
            )
            if i % interval == 0:
                features[half] = network.deep(*given)
            found[half] = network.shallow(*given, features[half])[0]
        guided = found[1] if halves == 1 else found[0] + 5 * (found[1] - found[0])
        value = row.value_latents * latents + row.value_prediction * guided
        noise = sampler.step_noise(seed, i, SHAPE)[0]
        latents = row.latents * latents + row.values[0] * value + row.noise * noise
    return np.asarray(latents)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_equals_that_of_the_parts_by_hand(form: str) -> None:
    pictures = {0: (2, 2), 1: (1, 3), 3: (2, 1)}
    latents, _, _ = draw(form, pictures)
    for slot, picture in pictures.items():
        np.testing.assert_allclose(latents[slot], by_hand(slot, *picture), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("form", "pictures", "runs"),
    [
        ("picture", {0: (2, 2), 1: (1, 3)}, [{2: 1, 1: 1}, {}, {2: 1}, {1: 1}]),
        ("half", {0: (2, 2), 1: (1, 3)}, [{1: 3}, {}, {1: 2}, {1: 1}]),
        # All pictures share the deep part: it runs for all if one of them needs it.
        ("slots", {0: (2, 2), 1: (2, 3)}, [{4: 1}, {}, {4: 1}, {4: 1}]),
        ("slots", {0: (1, 4), 2: (1, 4)}, [{2: 1}, {}, {}, {}]),
        ("slots", {3: (2, 2)}, [{2: 1}, {}, {2: 1}, {}]),
    ],
)
def test_the_deep_part_runs_where_it_is_due(
    form: str, pictures: Slots, runs: list[dict[int, int]]
) -> None:
    assert draw(form, pictures)[2] == runs


@pytest.mark.parametrize("form", ["picture", "half"])
def test_a_picture_does_not_depend_on_its_neighbours(form: str) -> None:
    alone, deep, _ = draw(form, {2: (2, 3)})
    beside, other, _ = draw(form, {0: (2, 1), 1: (1, 2), 2: (2, 3), 3: (2, 2)})
    np.testing.assert_array_equal(alone[2], beside[2])
    assert deep is not None
    assert other is not None
    np.testing.assert_array_equal(deep[:, 2], other[:, 2])
