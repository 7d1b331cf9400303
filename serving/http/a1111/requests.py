"""Requests that the bodies of AUTOMATIC1111's API ask for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastapi import HTTPException

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.request import SETTINGS, with_own_names
from pipeline.schedulers.config import ALIGNED, DEFAULT_SIGMAS, SCHEDULERS, SchedulerClass
from pipeline.schedulers.names import (
    SAMPLERS,
    SCHEDULE_TYPES,
    find_scheduler,
    find_sigma_schedule,
    folded,
    nearest_scheduler,
)
from pipeline.setting_kinds import Seed
from pipeline.text.controls import format_controls
from pipeline.text.loras import drop_tags, take_tags
from pipeline.text.prompt_syntax import A1111, without_comments
from serving.generator import Request, new_id
from serving.http.a1111 import bodies, checkpoints, controlnet
from serving.http.a1111.bodies import DrawBody, Img2ImgBody, Txt2ImgBody
from serving.http.calls import drawn_size
from serving.requests.inputs import ControlFiles, Input, Size

AUTOMATIC = "automatic"
# The sigma schedules that AUTOMATIC1111 chooses for a sampler; the others have their own.
_AUTOMATIC = {
    "dpmsolver++": "karras",
    "dpmsolver++-sde": "karras",
    "dpmsolver++-2m-sde": "exponential",
}
# AUTOMATIC1111's name of a schedule that is a spacing of timesteps here, and its settings.
SGM_UNIFORM = "sgm_uniform"
_TRAILING = {"sigma_schedule": DEFAULT_SIGMAS, "timestep_spacing": "trailing"}
LABELS = {AUTOMATIC: "Automatic", **SCHEDULE_TYPES, SGM_UNIFORM: "SGM Uniform"}
_EXACT = {"automatic": AUTOMATIC, "sgmuniform": SGM_UNIFORM}
# The schedules that come nearest to those of other programs, by their folded names.
_NEAREST = {
    "alignyoursteps11": ALIGNED,
    "alignyoursteps32": ALIGNED,
    "alignyourstepsgits": ALIGNED,
    "bongtangent": "beta",
    "ddim": DEFAULT_SIGMAS,
    "ddimuniform": DEFAULT_SIGMAS,
    "kloptimal": "karras",
    "linearquadratic": SGM_UNIFORM,
    "normal": DEFAULT_SIGMAS,
    "polyexponential": "exponential",
    "simple": SGM_UNIFORM,
    "turbo": SGM_UNIFORM,
}
_FORMATS: dict[str, Literal["png", "jpeg", "webp"]] = {
    "png": "png",
    "jpg": "jpeg",
    "jpeg": "jpeg",
    "webp": "webp",
}
_FRAMES: tuple[Literal["stretch", "crop", "fill"], ...] = ("stretch", "crop", "fill", "stretch")
_CLIP_SKIP = "CLIP_stop_at_last_layers"  # option
STRENGTH = 0.75  # default of `denoising_strength`
_NO_REFINER = (None, "", "None")  # values of `refiner_checkpoint`
_FILL = 0  # value of `inpainting_fill`: colours around the mask
_ORIGINAL = 1


@dataclass(frozen=True)
class Asked:
    """The request of a call, for all its pictures, and what else the call asks for.

    Attributes:
        request: the request; its `images` are not set.
        facts: the facts about all models when the call begins.
        images: number of pictures.
        output: format of the files.
        quality: of JPEG and WebP files, from 0 to 100.
        size: width and height that the files get; None for those of the request.
        ignored: names of the parameters whose values change nothing here.
        replaced: what is used in place of a value that cannot be, by the name of the parameter.
        followed: the pictures of the request's controls, which it has not yet; None for those that
            follow the picture to start from.
    """

    request: Request
    facts: Facts
    images: int
    output: Literal["png", "jpeg", "webp"] = "png"
    quality: int = metadata.QUALITY
    size: Size | None = None
    ignored: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    followed: tuple[ControlFiles | None, ...] = ()

    @property
    def model(self) -> Facts:
        """The facts that hold for the request's model."""
        return self.facts.for_known(self.request.model)


def asked_of(body: DrawBody, facts: Facts, model: str, *, visitor: str, address: str) -> Asked:
    """Return what a body asks for, without its pictures to start from.

    The body does not keep its scripts, which have the pictures to follow.

    Args:
        body: the body.
        facts: the facts about all models.
        model: the name of the model for a body that names none.
        visitor: identifier of the visitor.
        address: network address of the visitor.

    Raises:
        HTTPException: if it names a script, a network or a format that is not here.
        RequestValidationError: if a script has a wrong value.
        RequestError: if its size is too small or too large.
    """
    if body.script_name:
        raise HTTPException(422, f"Script '{body.script_name}' not found")
    override = dict(body.override_settings or {})
    output = _format(override.pop("samples_format", "png"))
    quality = _quality(override.pop("jpeg_quality", metadata.QUALITY))
    of_model, ignored = _of_model(body, override, facts, model)
    all_facts, facts = facts, facts.for_known(of_model["model"])
    eta = override.pop("eta_ddim", None) if body.eta is None else body.eta
    scripts, body.alwayson_scripts = body.alwayson_scripts or {}, {}
    has_image = isinstance(body, Img2ImgBody)
    controls, ignored_fields = controlnet.read_units(scripts, facts, has_image=has_image)
    ignored += ignored_fields
    # Clients send the settings of a second run whether they want one or not.
    has_second_run = getattr(body, "enable_hr", False)
    ignored += [name for name in body.ignored if has_second_run or not name.startswith("hr_")]
    ignored += [f"override_settings.{name}" for name in override]

    values = {name: setting.absent_value() for name, setting in SETTINGS.items()}
    settings = {name: getattr(body, field) for field, name in bodies.SETTINGS.items()}
    values |= {name: value for name, value in settings.items() if not _is_absent(name, value)}
    values |= {"prompt_syntax": A1111, "controls": format_controls(controls)}
    # Without its tags, a prompt may be short enough.
    prompt, values["loras"] = take_tags(without_comments(body.prompt or ""), facts.lora_names)
    values["prompt"], tags = drop_tags(prompt)
    ignored += tags
    values["denoising_end"], ignored_settings = _refined(body, facts)
    ignored += ignored_settings
    sampling, replaced = _sampling(body, facts)
    scheduler = sampling["scheduler"] or facts.scheduler
    if scheduler in SCHEDULERS and SCHEDULERS[scheduler].options["eta"]:
        values["eta"] = _number(eta)
    elif eta not in (None, 0, 1):  # 1 is what ancestral samplers do
        ignored.append("eta")
    size, second_run, file_size, replaced_sizes = _sizes(body, facts)
    request = Request(
        **with_own_names(values | sampling | second_run | of_model),
        size=size,
        visitor=visitor,
        address=address,
        previews=True,
    )
    replaced |= replaced_sizes
    return Asked(
        request,
        all_facts,
        body.images,
        output,
        quality,
        file_size,
        tuple(ignored),
        replaced,
        tuple(control.image for control in controls),
    )


def inputs_of(body: Img2ImgBody, asked: Asked) -> tuple[list[Input], dict[str, Any], list[str]]:
    """Return the pictures of a body, which it does not keep, for what it asks for.

    Returns:
        The pictures to start from, the settings of a request with them, and the names of the
        parameters that are ignored.

    Raises:
        HTTPException: if there is no picture.
    """
    files, mask = body.init_images or [], body.mask
    body.init_images, body.mask = None, None
    if not files:
        raise HTTPException(404, "Init image not found")
    padding = body.inpaint_full_res_padding or 0 if mask and body.inpaint_full_res else None
    fill = body.inpainting_fill or _FILL
    pictures = [
        Input(
            file,
            mask,
            "opaque",
            inverted=bool(body.inpainting_mask_invert),
            spread=fill == _FILL,
            any_mask=True,
            frame=_FRAMES[body.resize_mode or 0],
            shape=asked.size,
            followed=() if i else asked.followed,  # of all pictures
        )
        for i, file in enumerate(files)
    ]
    ignored = ["inpainting_fill"] if mask and fill not in (_FILL, _ORIGINAL) else []
    return (
        pictures,
        {"strength": _strength(body, body.steps, asked.model), "padding": padding},
        ignored,
    )


def single(request: Request, index: int, **changes: Any) -> Request:
    """Return a request for one picture of another request, which is the same picture."""
    values = request.of_picture(index)
    seeds = {name: values[name] for name, kind in SETTINGS.items() if isinstance(kind, Seed)}
    return replace(request, **{"id": new_id(), "images": 1} | seeds | changes)


def _refined(body: DrawBody, facts: Facts) -> tuple[float | None, list[str]]:
    """Return where the refiner goes on, and what is ignored without one; None is the default.

    There is one refiner at most, whatever its name is.
    """
    name = body.refiner_checkpoint
    if facts.refiner is None:
        return None, [] if name in _NO_REFINER else ["refiner_checkpoint"]
    if name in _NO_REFINER:
        return None if name is None else 1.0, []
    return body.refiner_switch_at or None, []


def _of_model(
    body: DrawBody, override: dict[str, Any], facts: Facts, model: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that choose the model and its clip skip, and what is ignored.

    They leave the options of the call, `override`.
    """
    text = str(override.pop("sd_model_checkpoint", None) or "")
    chosen = checkpoints.find(text, facts)
    ignored = ["override_settings.sd_model_checkpoint"] if text and chosen is None else []
    settings: dict[str, Any] = {"model": chosen or model}
    name = f"override_settings.{_CLIP_SKIP}" if _CLIP_SKIP in override else "clip_skip"
    clip_skip = override.pop(_CLIP_SKIP, body.clip_skip)
    has_layers = facts.for_known(settings["model"]).max_clip_skip > 0
    if has_layers and isinstance(clip_skip, int | float):
        settings["clip_skip"] = int(clip_skip)
    elif clip_skip not in (None, 0, 1):
        ignored.append(name)
    return settings, ignored


def _format(name: Any) -> Literal["png", "jpeg", "webp"]:
    if (output_format := _FORMATS.get(str(name).lower())) is None:
        raise HTTPException(500, "Invalid image format")
    return output_format


def _quality(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
        raise HTTPException(422, "jpeg_quality is no whole number from 0 to 100")
    return value


def _number(value: Any) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise HTTPException(422, "eta_ddim is not a number")


def _is_absent(name: str, value: Any) -> bool:
    """Return whether a value stands for the server's own: null, or a negative seed."""
    return value is None or (isinstance(SETTINGS[name], Seed) and value < 0)


def _sampling(body: DrawBody, facts: Facts) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that a sampler and a schedule stand for, and what replaces them."""
    sampler, replaced = body.sampler_name or body.sampler_index or "", {}
    named, contained_schedule = find_scheduler(sampler)
    if named is None:
        named, contained_schedule = nearest_scheduler(sampler)
    scheduler = named if named in facts.schedulers else facts.scheduler if sampler else ""
    if scheduler not in (find_scheduler(sampler)[0], ""):
        replaced["sampler_name"] = SAMPLERS.get(scheduler, scheduler)

    name = scheduler or facts.scheduler
    options = SCHEDULERS.get(name, SchedulerClass(name)).options
    available = {AUTOMATIC, DEFAULT_SIGMAS}
    if options["sigma_schedule"]:
        available |= {*facts.sigma_schedules}
    if options["timestep_spacing"]:
        available.add(SGM_UNIFORM)
    text = body.scheduler or AUTOMATIC
    schedule = _EXACT.get(folded(text)) or find_sigma_schedule(text)
    near = schedule or _NEAREST.get(folded(text), AUTOMATIC)
    used = near if near in available else AUTOMATIC
    if used != schedule:
        replaced["scheduler"] = LABELS[used]
    if used == AUTOMATIC:
        automatic = contained_schedule or _AUTOMATIC.get(scheduler, "")
        used = automatic if automatic in available else ""
    settings = _TRAILING if used == SGM_UNIFORM else {"sigma_schedule": used}
    return {"scheduler": scheduler, **settings}, replaced


def _strength(body: DrawBody, steps: int | None, facts: Facts) -> float:
    """Return how far a run redraws a picture; as in AUTOMATIC1111, it takes one step at least."""
    strength = STRENGTH if body.denoising_strength is None else body.denoising_strength
    return max(strength, 0.01, math.ceil(1000 / max(steps or facts.num_inference_steps, 1)) / 1000)


def _sizes(
    body: DrawBody, facts: Facts
) -> tuple[Size | None, dict[str, Any], Size | None, dict[str, str]]:
    """Return the sizes that a body asks for, as far as the model draws them.

    Returns:
        The size of the first run, None for the model's own; the settings of the second run; the
        size that the files get, None if the last run has it; and what replaces which size.

    Raises:
        RequestError: if one is too small or too large.
    """
    asked: dict[str, Size] = {}
    if body.width or body.height:
        asked["size"] = body.width or facts.width, body.height or facts.height
    if isinstance(body, Txt2ImgBody) and body.enable_hr:
        asked["hr_resize"] = _second_size(body, *asked.get("size", facts.sizes[0]))
    drawn = {name: drawn_size(size, facts) for name, size in asked.items()}
    replaced = {name: "{}x{}".format(*size) for name, size in drawn.items() if size != asked[name]}
    last = next(reversed(asked), "")
    second_run = {}
    if isinstance(body, Txt2ImgBody) and body.enable_hr:
        second_run = _second_run(body, drawn["hr_resize"], facts)
    return drawn.get("size"), second_run, asked[last] if last in replaced else None, replaced


def _second_size(body: Txt2ImgBody, width: int, height: int) -> Size:
    """Return the size of the second run that a body asks for; one side may follow from the other.

    `width` and `height` are those that it asks for in the first run.
    """
    x, y, scale = body.hr_resize_x or 0, body.hr_resize_y or 0, body.hr_scale or 2.0
    if x or y:
        return x or round(width * y / height), y or round(height * x / width)
    return int(width * scale), int(height * scale)


def _second_run(body: Txt2ImgBody, size: Size, facts: Facts) -> dict[str, Any]:
    """Return the settings of the second run that a body asks for, in a size that is drawn."""
    steps = body.hr_second_pass_steps or None
    return {
        "enlarge": "{}x{}".format(*size),
        "enlarge_strength": _strength(body, steps or body.steps, facts),
        "enlarge_steps": steps,
    }
