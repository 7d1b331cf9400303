"""The table of coefficients that every scheduler fills; `stepping` runs it.

All schedulers are linear multistep methods. Evaluation i of the network, at latents x, gives a
prediction e, from which the method computes

    value   v_i = value_latents * x + value_prediction * e
    next    x'  = latents * x + sum over k of values[k] * v_(i-k) + noise * (standard normal noise)

The schedulers differ only in the coefficients. So each scheduler is one function that makes a
`Table` of coefficients, on the host in float64. The device runs every table with the same few lines
in float32, by index, and its program is compiled without knowing the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from jax import Array

REMEMBERED = 4  # number of values kept from earlier evaluations, as many as PNDM needs


A = TypeVar("A", np.ndarray, "Array")


class Table(NamedTuple, Generic[A]):
    """Coefficients of a run, float32, with one row for each evaluation of the network.

    The network gets `timesteps`, and the latents times `input_scale`. `values` is
    `[N, 1 + REMEMBERED]`, the latest value first; the other fields are `[N]`. One row is a `Table`
    too, without the axis N.
    """

    timesteps: A
    input_scale: A
    value_latents: A
    value_prediction: A
    latents: A
    values: A
    noise: A


class State(NamedTuple):
    """Arrays that one evaluation hands to the next, float32, of B pictures or of one.

    `latents`: `[B, h, w, C]`, or `[h, w, C]`.
    `history`: the values of earlier evaluations, `[REMEMBERED, ...]` of the latents' shape, latest
    first.
    """

    latents: Array
    history: Array


class Kept(NamedTuple):
    """The parts of pictures that a run keeps, float32, of B pictures or of one.

    `x0`: the pictures' latents, `[B, h, w, C]`, or `[h, w, C]`. For networks that take a mask they
    are those of the pictures with their masked parts in grey.
    `noise`: the standard normal noise that the run began with, likewise.
    `mask`: `[B, h, w, 1]`, or `[h, w, 1]`; 1 where the picture is redrawn and 0 where it is kept.
    """

    x0: Array
    noise: Array
    mask: Array


@dataclass(frozen=True)
class Schedule:
    """Schedule of a run with `num_inference_steps`.

    `init_noise_sigma`: the standard deviation of the latents that the first step expects.
    `stops`: for every step, the number of evaluations after which it is done.
    `pred_x0`: `[N, 2]`, for each evaluation the coefficients of the latents before it and of its
    value, whose weighted sum is the network's prediction of the noise-free latents (pred_x0).
    `noised`: `[N + 1, 2]`, before each evaluation and at the end of the run the coefficients of x0
    and of standard normal noise whose weighted sum has the latents' noise level; see `add_noise`.
    `first`: the number of evaluations that another model has made before.
    """

    table: Table[np.ndarray]
    init_noise_sigma: float
    stops: Sequence[int]
    pred_x0: np.ndarray
    noised: np.ndarray
    first: int = 0

    @property
    def timesteps(self) -> np.ndarray:
        """Timesteps of every evaluation of the network, `[N]` float32, noisiest first."""
        return self.table.timesteps

    def part(self, first: int, end: int) -> Schedule:
        """Return the schedule of the evaluations from `first` to `end - 1` alone."""
        stops = [min(stop, end) - first for stop in self.stops if stop > first]
        return Schedule(
            table=Table(*(column[first:end] for column in self.table)),
            init_noise_sigma=self.init_noise_sigma,
            stops=[*dict.fromkeys(stops)],
            pred_x0=self.pred_x0[first:end],
            noised=self.noised[first : end + 1],
        )


def make_table(
    timesteps: np.ndarray,
    *,
    value_latents: np.ndarray | float,
    value_prediction: np.ndarray | float,
    latents: np.ndarray | float,
    values: list[np.ndarray] | np.ndarray,
    input_scale: np.ndarray | float = 1,
    noise: np.ndarray | float = 0,
) -> Table[np.ndarray]:
    """Make a table from columns; one number stands for all rows.

    `values` are at most `1 + REMEMBERED` columns, the latest value's first; the rest is 0.
    """
    count = len(timesteps)
    looking_back = np.zeros((count, 1 + REMEMBERED))
    looking_back[:, : len(values)] = np.transpose(values)

    def column(value: np.ndarray | float) -> np.ndarray:
        return np.broadcast_to(value, count).astype(np.float32)

    return Table(
        timesteps=column(timesteps),
        input_scale=column(input_scale),
        value_latents=column(value_latents),
        value_prediction=column(value_prediction),
        latents=column(latents),
        values=looking_back.astype(np.float32),
        noise=column(noise),
    )
