"""The work of a step: for every slot, the data of the next evaluation of its picture.

The host packs it into two arrays, because each array that is copied to devices takes time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np

from pipeline.schedulers.table import REMEMBERED, A, Schedule, Table

if TYPE_CHECKING:
    from jax import Array

# The layout of the two arrays: the names of their columns, in order. A name of several columns is
# repeated.
NUMBERS = (
    *("timesteps", "input_scale", "value_latents", "value_prediction", "latents", "noise"),
    *["values"] * (1 + REMEMBERED),
    *("guidance_scale", "guidance_rescale", "noised", "noised"),
)
INTEGERS = "seed", "evaluation", "halves", "shallow"


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
    `StepCache.predict`.
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
    """The packed tasks of B slots: `[B, columns]` float32, and `[B, columns]` uint32.

    One row is `Work` too, without the axis B.
    """

    numbers: A
    integers: A

    def column(self, name: str) -> A:
        """Return the column of this name, `[B]`; or `[B, n]` where it has n columns."""
        names, array = (NUMBERS, self.numbers) if name in NUMBERS else (INTEGERS, self.integers)
        first, count = names.index(name), names.count(name)
        return array[..., first] if count == 1 else array[..., first : first + count]


def no_work(slots: int) -> Work[np.ndarray]:
    """Return work for a number of slots that are all empty."""
    return Work(
        np.zeros((slots, len(NUMBERS)), np.float32), np.zeros((slots, len(INTEGERS)), np.uint32)
    )


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
    count = len(schedule.table.timesteps)
    evaluations, work = np.arange(count), no_work(count)
    columns = {
        **schedule.table._asdict(),
        "guidance_scale": guidance_scale,
        "guidance_rescale": guidance_rescale,
        "noised": schedule.noised[1:],
        "seed": seed,
        "evaluation": schedule.first + evaluations,
        "halves": np.where(evaluations < guided, 2, 1),
        "shallow": evaluations % cache_interval > 0,
    }
    for name, values in columns.items():
        work.column(name)[:] = values
    return work


def unpack(work: Work[Array]) -> Task[Array]:
    """Return packed work as tasks, arrays `[B]`."""
    _, *names = Task._fields
    task = Task(Table(*map(work.column, Table._fields)), *map(work.column, names))
    return task._replace(
        evaluation=task.evaluation.astype(np.int32),
        halves=task.halves.astype(np.int32),
        shallow=task.shallow > 0,
    )
