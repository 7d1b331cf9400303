"""Prepare the controls of a request for the slots in which its pictures are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from pipeline.drawing.origins import Given, Inputs, Origin, pictures_of, repeated
from pipeline.errors import InputError
from pipeline.images.inputs import Picture, read_image, resized
from pipeline.images.preparing import MASKED, find_preprocessor, prepared
from pipeline.request import Request
from pipeline.runtime.controls import ControlStart
from pipeline.text.controls import UNION_TYPES, Control, parse_controls

if TYPE_CHECKING:
    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.control_networks import ControlNetwork, Controls

# sd-webui-controlnet's factor from one residual to the one before it, for the modes in which the
# prompt or the control counts more. There are 13 residuals of Stable Diffusion 1.
_FALL, _RESIDUALS = 0.825, 13
# The modes in which the control has no effect on the negative prompt's half of guidance.
_COND_ONLY = "control", "guess"


@dataclass(frozen=True)
class Followed:
    """A control of a request: its values, its network, and a picture for each of the request's."""

    control: Control
    network: ControlNetwork
    pictures: Sequence[Picture]


def read_controls(request: Request, inputs: Inputs, controls: Controls) -> list[Followed]:
    """Return what the pictures of a checked request follow.

    Raises:
        InputError: if a network is not loaded, or a picture is missing.
    """
    wanted = parse_controls(request.controls)
    if len(inputs.controls) > len(wanted):
        raise InputError(
            f"there are {len(inputs.controls)} pictures for {len(wanted)} controls; expected one"
            " for each"
        )
    given: list[Given] = [*inputs.controls, *[None] * len(wanted)]
    followed: list[Followed] = []
    for control, value in zip(wanted, given, strict=False):
        network = controls.of_name(control.name)
        picture = inputs.image if value is None else value
        if picture is None:
            raise InputError(f"the control {control.name!r} has no picture; pass one to follow")
        pictures = pictures_of(f"the picture of {control.name!r}", picture, request.images)
        followed.append(
            Followed(_with_type(control, network), network, repeated(pictures, request.images))
        )
    return followed


def _with_type(control: Control, network: ControlNetwork) -> Control:
    """Return a control with the type of its map, if its network tells types apart.

    Raises:
        InputError: if the type is open, or the network does not know it.
    """
    types = UNION_TYPES[: network.config.control_types]
    name = control.type or find_preprocessor(control.preprocessor).type
    if types and name not in types:
        problem = f"is {name!r}" if name else "is missing"
        raise InputError(
            f"the type of the control {control.name!r} {problem}; expected one of"
            f" {', '.join(map(repr, types))}"
        )
    return replace(control, type=name if types else "")


def of_picture(followed: Followed, index: int) -> Followed:
    """Return what a single one of the request's pictures follows."""
    return replace(followed, pictures=[followed.pictures[index]])


def control_starts(
    all_followed: Sequence[Followed],
    origin: Origin | None,
    run: CompiledSampler,
    evaluations: int,
    cancelled: Event | None,
) -> list[ControlStart]:
    """Prepare what n pictures follow in a run of some evaluations.

    Controls of the union kind with one network and one range of steps share an evaluation of it.

    Raises:
        Cancelled: if `cancelled` is set.
        InputError: if a picture cannot be prepared.
    """
    groups: dict[object, list[Followed]] = {}
    for place, followed in enumerate(all_followed):
        control = followed.control
        key = followed.network, control.start, control.end, control.control_mode
        groups.setdefault(key if control.type else place, []).append(followed)
    return [_start(group, origin, run, evaluations, cancelled) for group in groups.values()]


def _start(
    group: Sequence[Followed],
    origin: Origin | None,
    run: CompiledSampler,
    evaluations: int,
    cancelled: Event | None,
) -> ControlStart:
    """Return what pictures follow through one network."""
    controls, network = [followed.control for followed in group], group[0].network
    is_single = len(group) == 1
    return ControlStart(
        network=network,
        images=[_maps(followed, origin, run, cancelled) for followed in group],
        kinds=[UNION_TYPES.index(control.type) if control.type else 0 for control in controls],
        weights=[1.0 if is_single else control.scale for control in controls],
        scales=scales_of(
            controls[0] if is_single else replace(controls[0], scale=1.0),
            evaluations,
            len(run.target.residuals_spec),
            global_pool=network.config.global_pool,
        ),
    )


def _maps(
    followed: Followed, origin: Origin | None, run: CompiledSampler, cancelled: Event | None
) -> np.ndarray:
    """Return what the network sees of all pictures, `[n, H, W, 3]` float32.

    A picture that all of them follow is prepared once, unless masks may change it.
    """
    count, is_masked = len(followed.pictures), origin is not None and origin.masks is not None
    is_single = len({*map(id, followed.pictures)}) == 1 and not is_masked
    maps = [
        _prepared(followed, i, origin, run, cancelled) for i in range(1 if is_single else count)
    ]
    return np.stack(repeated(maps, count))


def _prepared(
    followed: Followed,
    i: int,
    origin: Origin | None,
    run: CompiledSampler,
    cancelled: Event | None,
) -> np.ndarray:
    """Return what the network sees of a picture, `[H, W, 3]` float32."""
    picture, mask = followed.pictures[i], None
    if origin is not None and origin.masks is not None:
        mask, frame = origin.masks[i], origin.frames[i]
        height, width = frame.pixels.shape[:2]
        if (frame.box.height, frame.box.width) != (height, width):  # a part is drawn alone
            picture = frame.box.of(resized(read_image(picture), height, width))
    return prepared(
        followed.control,
        picture,
        run.shapes.height,
        run.shapes.width,
        mask,
        masked=0.0 if followed.control.type else MASKED,
        cancelled=cancelled,
    )


def scales_of(
    control: Control, evaluations: int, residuals: int, *, global_pool: bool = False
) -> np.ndarray:
    """Return how much each of R residuals counts, `[evaluations, 2, R]` float32.

    The first axis of two is for the negative prompt. An evaluation outside `start` to `end` has
    zeros, by diffusers' rule.

    Args:
        control: the control.
        evaluations: the number of evaluations of a run.
        residuals: the number R of residuals.
        global_pool: whether the network's residuals are means over the picture.
    """
    weights = np.full(residuals, control.scale)
    if control.control_mode == "guess" and not global_pool:
        weights *= np.logspace(-1, 0, residuals)
    if control.control_mode in ("prompt", "control"):
        weights *= _FALL ** (_RESIDUALS - 1 - np.arange(residuals))
    i = np.arange(evaluations)
    is_on = (i / evaluations >= control.start) & ((i + 1) / evaluations <= control.end)
    cond_only = global_pool or control.control_mode in _COND_ONLY
    halves = np.array([0.0 if cond_only else 1.0, 1.0])
    return np.einsum("n,h,r->nhr", is_on, halves, weights).astype(np.float32)
