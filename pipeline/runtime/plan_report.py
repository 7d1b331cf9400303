"""The plan of a model for this machine and for others, as a text: `python -m pipeline --plan`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.families.family import Config
from pipeline.platforms import network_dtype, worth_a_copy, worth_bfloat16
from pipeline.runtime.compiled import choose_layout
from pipeline.runtime.device_kinds import MACHINES
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.memory import budget_of
from pipeline.runtime.model_size import SAFETY_CHECKER, ModelSize, model_size
from pipeline.runtime.plan import Budget, Plan, PlannedProgram, Size, gigabytes, sizes_text


class Report(NamedTuple):
    """Plans as a text, and the reason why this machine's does not fit; None if it fits."""

    text: str
    refusal: str | None


def measure(config: Config, quantization: str | None = None) -> ModelSize:
    """Return the sizes of a checkpoint's networks in bfloat16, without reading any weights.

    Args:
        config: the checkpoint's configuration.
        quantization: one of `pipeline.models.quantized.QUANTIZATIONS`, or None.
    """
    traced = trace_networks(config, np.dtype(jnp.bfloat16), quantization=quantization)
    return model_size(config, traced)


def report(
    model: ModelSize,
    sizes: Sequence[Size],
    images: int,
    tokens: int,
    devices: Sequence[jax.Device],
    dtype: str | None = None,
    refiner: ModelSize | None = None,
    step_cache: bool = False,
    per_picture: int = 1,
) -> Report:
    """Plan a model for this machine's devices and for those of `device_kinds.MACHINES`.

    Nothing is compiled.

    Args:
        model: sizes of the checkpoint's networks.
        sizes: sizes of the pictures.
        images: pictures per request.
        tokens: tokens of a prompt.
        devices: the devices of this machine.
        dtype: the networks' dtype; each machine's default where None.
        refiner: sizes of the refiner's networks; None without one.
        step_cache: whether the slots hold deep features.
        per_picture: devices that draw a picture together, on machines that have as many.
    """
    parameters = sum(network.parameters for network in model.networks.values())
    own = network_dtype(dtype, devices)
    if dtype is None and worth_bfloat16(devices[0], parameters):
        own = np.dtype(jnp.bfloat16)
    used = worth_a_copy(devices, parameters)
    budget = budget_of(model, used, images, tokens, refiner, per_picture, step_cache)
    here = _budget_in_dtype(budget, own)
    plan = here.plan(sizes)
    parts = [_described(f"This machine, {devices[0].device_kind}", here, plan, own)]
    usual = np.dtype(dtype or jnp.bfloat16)
    elsewhere = _budget_in_dtype(budget, usual)
    for kind in MACHINES:
        together = per_picture if per_picture <= kind.devices else 1
        layout = partial(choose_layout, kind.devices, per_picture=together)
        there = replace(elsewhere, kind=kind, memory=kind.memory, layout=layout)
        title = f"{kind.name}, {kind.devices} device{'s' * (kind.devices > 1)}"
        parts.append(_described(title, there, there.plan(sizes), usual))
    return Report("\n\n".join(parts), None if plan.fits else here.refusal(plan, sizes))


def _budget_in_dtype(budget: Budget, dtype: np.dtype[Any]) -> Budget:
    refiner = None if budget.refiner is None else _in_dtype(budget.refiner, dtype)
    return replace(budget, model=_in_dtype(budget.model, dtype), refiner=refiner)


def _in_dtype(model: ModelSize, dtype: np.dtype[Any]) -> ModelSize:
    """Return a model's sizes with its networks in a dtype, except for the safety checker."""
    networks = {
        name: size if name == SAFETY_CHECKER else size._replace(itemsize=dtype.itemsize)
        for name, size in model.networks.items()
    }
    return replace(model, networks=networks)


def _described(title: str, budget: Budget, plan: Plan, dtype: np.dtype[Any]) -> str:
    return "\n  ".join([*_lines(title, budget, plan, dtype)])


def _lines(title: str, budget: Budget, plan: Plan, dtype: np.dtype[Any]) -> Iterator[str]:
    kind = plan.kind
    unit = "this machine's memory" if plan.is_shared else "memory of one device"
    yield f"{title}: {budget.images} pictures per request on {plan.devices} of them, {dtype}"
    yield _row("program", "size", "code", "temporaries", "compiling")
    yield from map(_program, plan.programs)
    least, most = map(gigabytes, plan.range)
    yield f"weights {gigabytes(plan.weights)}, other arrays {gigabytes(plan.arrays)}"
    yield f"LoRAs, once loaded: {_loras(budget, plan)}"
    yield f"all code {gigabytes(plan.code)}, largest temporaries {gigabytes(plan.temporaries)}"
    yield f"sum {gigabytes(plan.total)}, {least} to {most}"
    yield f"{unit} {_memory(plan)}"
    soon, late = (_duration(factor * plan.seconds) for factor in kind.rates.time_spread)
    took = f"{_duration(plan.seconds)}, {soon} to {late}"
    yield f"compiling {took}, the programs of one size in parallel"
    yield f"weights: exact; code, temporaries and times: {kind.rates_source}"
    yield f"memory: {kind.memory_source}"


def _loras(budget: Budget, plan: Plan) -> str:
    """Return the memory that LoRAs need at most, beside that of the plan."""
    most = replace(budget, pristine=budget.most_pristine, unchanged=budget.most_unchanged)
    there = most.plan([size for program in plan.programs if (size := program.size)]).pristine
    if plan.is_shared:
        return f"up to {gigabytes(there)} more, and their files"
    host = f"{gigabytes(most.pristine)} of the host's memory"
    return f"up to {gigabytes(there)} more" if there else f"none here, but up to {host}"


def _memory(plan: Plan) -> str:
    if plan.memory is None:
        return "is not known"
    room = plan.memory - plan.total
    verdict = "does not fit" if plan.is_hopeless else "fits" if plan.fits else "may not fit"
    left = f"{gigabytes(room)} of room" if room >= 0 else f"{gigabytes(-room)} too little"
    return f"{gigabytes(plan.memory)}, {left}: {verdict}"


def _program(program: PlannedProgram) -> str:
    size = "any" if program.size is None else sizes_text([program.size])
    cells = gigabytes(program.code), gigabytes(program.temporaries)
    return _row(program.name, size, *cells, _duration(program.seconds))


def _row(name: str, size: str, *cells: str) -> str:
    return f"{name:16}{size:11}" + "".join(f"{cell:>13}" for cell in cells)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
