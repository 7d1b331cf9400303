"""Packing of the pictures' evaluations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.families import read_config
from pipeline.runtime.work import no_work, pack, unpack
from pipeline.schedulers.methods import make_schedule
from tests.checkpoints import SMALLEST


def test_packed_work_is_unpacked_to_the_same() -> None:
    schedule = make_schedule(read_config(SMALLEST, "heun").scheduler, 4)
    rng = np.random.default_rng(0)
    table = jax.tree.map(lambda each: rng.random(each.shape, np.float32), schedule.table)
    schedule = replace(schedule, table=table, noised=rng.random((8, 2)))
    packed = pack(schedule, 5.5, 0.25, 3, 2**32 - 1, cache_interval=3)
    tasks = unpack(jax.tree.map(jnp.asarray, packed))
    jax.tree.map(np.testing.assert_array_equal, tasks.row, table)
    assert tasks.guidance_scale.tolist() == [5.5] * 7
    assert tasks.guidance_rescale.tolist() == [0.25] * 7
    np.testing.assert_allclose(tasks.noised, schedule.noised[1:])
    assert tasks.seed.tolist() == [2**32 - 1] * 7
    assert tasks.evaluation.tolist() == [*range(7)]
    assert tasks.halves.tolist() == [2, 2, 2, 1, 1, 1, 1]
    assert tasks.shallow.tolist() == [False, True, True, False, True, True, False]


def test_no_work_needs_no_half() -> None:
    assert unpack(jax.tree.map(jnp.asarray, no_work(3))).halves.tolist() == [0, 0, 0]
