"""The work of a step: for every slot, the data of the next evaluation of its picture.

The host packs it into two arrays, because each array that is copied to devices takes time.
"""

from typing import Generic, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.schedulers.table import REMEMBERED, Schedule, Table

A = TypeVar("A", np.ndarray, Array)

# Columns of numbers: those of a row of the table, the guidance scale, its rescaling, and a row of
# `Schedule.noised`.
_SCALARS = [name for name in Table._fields if name != "values"]
NUMBERS = len(_SCALARS) + 1 + REMEMBERED + 2 + 2
INTEGERS = 4


class Task(NamedTuple, Generic[A]):
    """One evaluation of the network for one picture, scalars, or for B pictures, arrays `[B]`.

    `row`: the evaluation's row of the table.
    `guidance_scale`, `guidance_rescale`: float32.
    `noised`: the row of `Schedule.noised` after the evaluation, `[2]` or `[B, 2]`.
    `seed`: uint32; the noise that some schedulers add depends on it.
    `evaluation`: int32, counted from the first one of the picture.
    `halves`: int32, the halves of guidance that it needs: 2, 1 for the prompt alone, or 0 if there
    is nothing to do.
    `shallow`: bool, whether the shallow part of the network runs alone; see
    `Family.predict_cached`.
    """

    row: Table[A]
    guidance_scale: A
    guidance_rescale: A
    noised: A
    seed: A
    evaluation: A
    halves: A
    shallow: A


class Work(NamedTuple, Generic[A]):
    """The packed tasks of B slots: `[B, NUMBERS]` float32, and `[B, INTEGERS]` uint32."""

    numbers: A
    integers: A


def no_work(slots: int) -> Work[np.ndarray]:
    """Return work for a number of slots that are all empty."""
    return Work(np.zeros((slots, NUMBERS), np.float32), np.zeros((slots, INTEGERS), np.uint32))


def pack(
    schedule: Schedule,
    guidance_scale: float,
    guidance_rescale: float,
    guided: int,
    seed: int,
    cache_interval: int = 1,
) -> Work[np.ndarray]:
    """Return the work of all N evaluations of a picture, arrays `[N, ...]`.

    The first `guided` evaluations have guidance. The noise that they add is drawn as if those that
    another model has made came before. The whole network runs in one of `cache_interval`
    evaluations.
    """
    table, count = schedule.table, len(schedule.table.timesteps)
    scales = np.broadcast_to([guidance_scale, guidance_rescale], (count, 2))
    columns = [getattr(table, name)[:, None] for name in _SCALARS]
    evaluations = np.arange(count)
    halves = np.where(evaluations < guided, 2, 1)
    numbered, shallow = schedule.first + evaluations, evaluations % cache_interval > 0
    integers = np.stack([np.full(count, seed), numbered, halves, shallow], axis=1)
    numbers = np.concatenate([*columns, table.values, scales, schedule.noised[1:]], axis=1)
    return Work(numbers.astype(np.float32), integers.astype(np.uint32))


def unpack(work: Work[Array]) -> Task[Array]:
    """Return packed work as tasks, arrays `[B]`."""
    numbers, integers = work
    scalars = {name: numbers[:, i] for i, name in enumerate(_SCALARS)}
    row = Table(values=numbers[:, len(_SCALARS) : -4], **scalars)
    seed, evaluation, halves, shallow = (integers[:, i] for i in range(INTEGERS))
    return Task(
        row,
        guidance_scale=numbers[:, -4],
        guidance_rescale=numbers[:, -3],
        noised=numbers[:, -2:],
        seed=seed,
        evaluation=evaluation.astype(jnp.int32),
        halves=halves.astype(jnp.int32),
        shallow=shallow > 0,
    )
