"""Requests that the bodies of AUTOMATIC1111's API ask for."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from fastapi import HTTPException

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.request import SETTINGS, with_own_names
from pipeline.schedulers.config import DEFAULT_SIGMAS, SCHEDULERS
from pipeline.schedulers.names import SCHEDULE_TYPES, find_scheduler, find_sigma_schedule
from pipeline.setting_kinds import Seed
from pipeline.text.loras import without_unknown_tags
from pipeline.text.prompt_syntax import A1111
from serving.generator import Request, new_id
from serving.http.a1111 import bodies
from serving.http.a1111.bodies import DrawBody, Img2ImgBody, Txt2ImgBody
from serving.requests.inputs import Input

AUTOMATIC = "automatic"
# The sigma schedules that AUTOMATIC1111 chooses for a sampler; the others have their own.
_AUTOMATIC = {
    "dpmsolver++": "karras",
    "dpmsolver++-sde": "karras",
    "dpmsolver++-2m-sde": "exponential",
}
# AUTOMATIC1111's name of a schedule that is a spacing of timesteps here.
SGM_UNIFORM = "sgm_uniform"
_SGM_UNIFORM = (SGM_UNIFORM, "sgmuniform", "sgm uniform")
_FORMATS: dict[str, Literal["png", "jpeg", "webp"]] = {
    "png": "png",
    "jpg": "jpeg",
    "jpeg": "jpeg",
    "webp": "webp",
}
_FRAMES: tuple[Literal["stretch", "crop", "fill"], ...] = ("stretch", "crop", "fill", "stretch")
STRENGTH = 0.75  # default of `denoising_strength`
_NO_REFINER = (None, "", "None")  # values of `refiner_checkpoint`
_FILL = 0  # value of `inpainting_fill`: colours around the mask
_ORIGINAL = 1


@dataclass(frozen=True)
class Asked:
    """The request of a call, for all its pictures, and what else the call asks for.

    Attributes:
        request: the request; its `images` are not set.
        facts: the facts about the model that draws when the call begins.
        images: number of pictures.
        output: format of the files.
        quality: of JPEG and WebP files, from 0 to 100.
        ignored: names of the parameters whose values change nothing here.
    """

    request: Request
    facts: Facts
    images: int
    output: Literal["png", "jpeg", "webp"] = "png"
    quality: int = metadata.QUALITY
    ignored: tuple[str, ...] = ()


def asked_of(body: DrawBody, facts: Facts, *, visitor: str, address: str) -> Asked:
    """Return what a body asks for, without its pictures.

    Raises:
        HTTPException: if it names a script, a sampler or a format that is not here.
    """
    _refuse_scripts(body)
    override = dict(body.override_settings or {})
    output = _format(override.pop("samples_format", "png"))
    quality = _quality(override.pop("jpeg_quality", metadata.QUALITY))
    if override.get("sd_model_checkpoint") == facts.name:
        del override["sd_model_checkpoint"]
    eta = override.pop("eta_ddim", None) if body.eta is None else body.eta
    ignored = [*body.ignored, *(f"override_settings.{name}" for name in override)]

    values = {name: setting.absent_value() for name, setting in SETTINGS.items()}
    settings = {name: getattr(body, field) for field, name in bodies.SETTINGS.items()}
    values |= {name: value for name, value in settings.items() if not _is_absent(name, value)}
    values["prompt_syntax"] = A1111
    # AUTOMATIC1111 draws without LoRAs that it does not have, and says so.
    known_loras = {lora.name for lora in facts.loras}
    values["prompt"], missing_loras = without_unknown_tags(body.prompt or "", known_loras)
    ignored += [f"<lora:{name}>" for name in missing_loras]
    values["denoising_end"], ignored_settings = _refined(body, facts)
    ignored += ignored_settings
    sampling, unknown_fields = _sampling(body, facts)
    ignored += unknown_fields
    scheduler = sampling["scheduler"] or facts.scheduler
    if scheduler in SCHEDULERS and SCHEDULERS[scheduler].options["eta"]:
        values["eta"] = _number(eta)
    elif eta not in (None, 0, 1):  # 1 is what ancestral samplers do
        ignored.append("eta")
    size = None
    if body.width or body.height:
        size = body.width or facts.width, body.height or facts.height
    if isinstance(body, Txt2ImgBody) and body.enable_hr:
        values |= _second_run(body, *(size or facts.sizes[0]))
    request = Request(
        **with_own_names(values | sampling),
        size=size,
        visitor=visitor,
        address=address,
        previews=True,
    )
    return Asked(request, facts, body.images, output, quality, tuple(ignored))


def inputs_of(body: Img2ImgBody) -> tuple[list[Input], dict[str, Any], list[str]]:
    """Return the pictures of a body, which it does not keep.

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
            frame=_FRAMES[body.resize_mode or 0],
        )
        for file in files
    ]
    ignored = ["inpainting_fill"] if mask and fill not in (_FILL, _ORIGINAL) else []
    return pictures, {"strength": _strength(body), "padding": padding}, ignored


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


def _refuse_scripts(body: DrawBody) -> None:
    if body.script_name:
        raise HTTPException(422, f"Script '{body.script_name}' not found")
    for name in body.alwayson_scripts or ():
        raise HTTPException(422, f"always on script {name} not found")


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


def _sampling(body: DrawBody, facts: Facts) -> tuple[dict[str, str], list[str]]:
    """Return the settings that a sampler and a schedule stand for, and what is ignored.

    Raises:
        HTTPException: if there is no such sampler.
    """
    sampler = body.sampler_name or body.sampler_index
    scheduler, contained_schedule = find_scheduler(sampler) if sampler else ("", None)
    if scheduler is None:
        raise HTTPException(400, "Sampler not found")
    schedule = (body.scheduler or AUTOMATIC).lower()
    if schedule in _SGM_UNIFORM:
        spacing = {"sigma_schedule": DEFAULT_SIGMAS, "timestep_spacing": "trailing"}
        return {"scheduler": scheduler, **spacing}, []
    if schedule == AUTOMATIC:
        automatic = contained_schedule or _AUTOMATIC.get(scheduler, "")
        sigma_schedule = automatic if automatic in facts.sigma_schedules else ""
        return {"scheduler": scheduler, "sigma_schedule": sigma_schedule}, []
    sigma_schedule = find_sigma_schedule(schedule)
    settings = {
        "scheduler": scheduler,
        "sigma_schedule": sigma_schedule or contained_schedule or "",
    }
    return settings, [] if sigma_schedule in SCHEDULE_TYPES else ["scheduler"]


def _strength(body: DrawBody) -> float:
    return STRENGTH if body.denoising_strength is None else body.denoising_strength


def _second_run(body: Txt2ImgBody, width: int, height: int) -> dict[str, Any]:
    """Return the settings of the second run that a body asks for.

    One side of its size may follow from the other. `width` and `height` are those of the first run.
    """
    x, y, scale = body.hr_resize_x or 0, body.hr_resize_y or 0, body.hr_scale or 2.0
    if x or y:
        size = x or round(width * y / height), y or round(height * x / width)
    else:
        size = int(width * scale), int(height * scale)
    return {
        "enlarge": "{}x{}".format(*size),
        "enlarge_strength": _strength(body),
        "enlarge_steps": body.hr_second_pass_steps or None,
    }
