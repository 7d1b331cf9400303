"""Bodies of calls of AUTOMATIC1111's API.

As there, every field may be left out or null, and an unknown one is ignored. A null setting is the
server's own: AUTOMATIC1111's 50 steps and guidance scale of 7 suit few models.

Also as there, a number may be a text, a text a number, and a fraction stands for a whole number.
"""

from math import isfinite
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pipeline.text.controls import MAX_CONTROLS, MAX_SCALE
from serving.generator import MAX_CHARACTERS
from serving.http.bodies import File, Lenient

MAX_PICTURES = 16  # of a call, which is answered when all of them are drawn
_MAX_NAME = 200  # characters
_Name = Annotated[str, Field(max_length=_MAX_NAME)]
# More than a request may have, because tags of LoRAs that are not here are taken out.
_Prompt = Annotated[str, Field(max_length=10 * MAX_CHARACTERS)]


def _without_fraction(value: Any) -> Any:
    return int(value) if isinstance(value, float) and isfinite(value) else value


_Integer = Annotated[int, BeforeValidator(_without_fraction)]
_Whole = Annotated[_Integer, Field(ge=-(2**31), lt=2**31)]
_Count = Annotated[_Whole, Field(ge=1, le=MAX_PICTURES)]
_Side = Annotated[_Whole, Field(ge=0, le=2**16)]
_Mode = Annotated[_Whole, Field(ge=0, le=3)]
# As PyTorch's generator on CPUs, only 32 bits of a seed count. -1 is a random one.
_Seed = Annotated[_Integer, AfterValidator(lambda seed: seed if seed == -1 else seed % 2**32)]
_Strength = Annotated[float, Field(ge=0, le=1)]
_OneFile = Annotated[File | None, BeforeValidator(lambda value: value or None)]

# AUTOMATIC1111's name of each setting, and the name in `pipeline.request.SETTINGS`.
SETTINGS = {
    "prompt": "prompt",
    "negative_prompt": "negative_prompt",
    "steps": "num_inference_steps",
    "cfg_scale": "guidance_scale",
    "seed": "seed",
    "subseed": "variation_seed",
    "subseed_strength": "variation_strength",
}
# Values of further fields that change nothing. Any other value is ignored too, and reported.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "comments": ({},),
    "disable_extra_networks": (False,),
    "do_not_save_grid": (False, True),
    "do_not_save_samples": (False, True),
    "firstpass_image": (),
    "firstphase_height": (0,),
    "firstphase_width": (0,),
    "force_task_id": ("",),
    "hr_additional_modules": ([],),
    "hr_checkpoint_name": ("", "Use same checkpoint"),
    "hr_negative_prompt": ("",),
    "hr_prompt": ("",),
    "hr_sampler_name": ("", "Use same sampler"),
    "hr_scheduler": ("", "Use same scheduler"),
    "hr_square_aspect": (False,),
    "hr_upscaler": ("", "None", "Lanczos"),
    "image_cfg_scale": (1.5,),
    "include_init_images": (False,),
    "infotext": ("",),
    "initial_noise_multiplier": (1,),
    "latent_mask": (),
    "mask_blur": (4,),
    "mask_blur_x": (4,),
    "mask_blur_y": (4,),
    "mask_round": (True,),
    "restore_faces": (False,),
    "s_churn": (0,),
    "s_min_uncond": (0,),
    "s_noise": (1,),
    "s_tmax": (0,),
    "s_tmin": (0,),
    "save_images": (False,),
    "script_args": ([],),
    "seed_resize_from_h": (-1, 0),
    "seed_resize_from_w": (-1, 0),
    "styles": ([],),
    "tiling": (False,),
}


# Keys of `override_settings` that are read.
OPTIONS = (
    "CLIP_stop_at_last_layers",
    "eta_ddim",
    "jpeg_quality",
    "samples_format",
    "sd_model_checkpoint",
)


def _option(value: Any) -> Any:
    """Return the value of an option, or "" in place of one that no option has; it may be large."""
    if isinstance(value, str):
        usual = len(value) <= _MAX_NAME and value.isprintable()
    elif isinstance(value, float):
        usual = isfinite(value)
    else:
        usual = value is None or isinstance(value, int)
    return value if usual else ""


def _only_read(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a server, without the values of those that are not read."""
    return {name: _option(value) if name in OPTIONS else "" for name, value in options.items()}


_Options = Annotated[dict[_Name, Any], AfterValidator(_only_read)]


class _Body(Lenient):
    model_config = ConfigDict(
        allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )
    neutral = NEUTRAL


class DrawBody(_Body):
    """Fields of calls for pictures."""

    prompt: _Prompt | None = ""
    negative_prompt: _Prompt | None = ""
    steps: _Whole | None = None
    cfg_scale: float | None = None
    seed: _Seed | None = -1
    subseed: _Seed | None = -1
    subseed_strength: float | None = 0.0
    width: _Side | None = None
    height: _Side | None = None
    batch_size: _Count | None = 1
    n_iter: _Count | None = 1
    sampler_name: _Name | None = None
    sampler_index: _Name | None = None
    scheduler: _Name | None = None
    eta: float | None = None
    clip_skip: _Whole | None = None
    denoising_strength: _Strength | None = None
    refiner_checkpoint: _Name | None = None
    refiner_switch_at: float | None = None
    override_settings: _Options | None = None
    override_settings_restore_afterwards: bool | None = True
    send_images: bool | None = True
    script_name: _Name | None = None
    alwayson_scripts: dict[_Name, Any] | None = None

    @property
    def images(self) -> int:
        """Number of pictures to draw."""
        return (self.batch_size or 1) * (self.n_iter or 1)

    @model_validator(mode="after")
    def _few_enough(self) -> "DrawBody":
        if self.images > MAX_PICTURES:
            message = "batch_size times n_iter is {count}; at most {limit} are possible"
            context = {"count": self.images, "limit": MAX_PICTURES}
            raise PydanticCustomError("too_many_images", message, context)
        return self


class Txt2ImgBody(DrawBody):
    """A call for pictures from a prompt, and perhaps for a second run in a larger size."""

    enable_hr: bool | None = False
    hr_scale: Annotated[float, Field(ge=0, le=16)] | None = 2.0
    hr_resize_x: _Side | None = 0
    hr_resize_y: _Side | None = 0
    hr_second_pass_steps: _Whole | None = 0


class Img2ImgBody(DrawBody):
    """A call for pictures from other ones, each of which is redrawn."""

    init_images: Annotated[list[File], Field(max_length=MAX_PICTURES)] | None = Field(
        None, repr=False
    )
    mask: _OneFile = Field(None, repr=False)
    resize_mode: _Mode | None = 0
    inpainting_fill: _Mode | None = 0
    inpaint_full_res: bool | None = True
    inpaint_full_res_padding: _Whole | None = 0
    inpainting_mask_invert: _Whole | None = 0

    @property
    def images(self) -> int:
        """Number of pictures to draw; a batch has all of several pictures to start from."""
        batch = len(self.init_images or ())
        return (self.batch_size or 1 if batch < 2 else batch) * (self.n_iter or 1)


class PngInfoBody(_Body):
    """A picture whose settings are to be read."""

    image: File = Field(repr=False)


class ExtrasBody(_Body):
    """A picture, or several, to enlarge."""

    upscaler_1: _Name | None = "None"


# Other names of fields of a unit.
_ALIASES = {"guidance": "guidance_end", "input_image": "image", "mask_image": "mask"}
_ABSENT = (None, "")
# Values of further fields of a unit that change nothing.
UNIT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "advanced_weighting": ([],),
    "batch_images": ("", []),
    "effective_region_mask": ("",),
    "enabled": (True, "true", "True"),
    "hr_option": ("Both",),
    "inpaint_crop_input_image": (True, False),
    "input_mode": ("simple",),
    "is_ui": (True, False),
    "loopback": (False,),
    "low_vram": (True, False),
    "lowvram": (True, False),
    "save_detected_map": (True, False),
}
_Share = Annotated[float, Field(ge=0, le=1)]


class UnitBody(_Body):
    """A unit of AUTOMATIC1111's ControlNet extension: a picture to follow, and how."""

    neutral = UNIT_NEUTRAL

    module: _Name | None = None
    model: _Name | None = None
    weight: Annotated[float, Field(ge=0, le=MAX_SCALE)] | None = None
    image: _OneFile = Field(None, repr=False)
    mask: _OneFile = Field(None, repr=False)
    resize_mode: _Name | None = None
    processor_res: _Whole | None = None
    threshold_a: float | None = None
    threshold_b: float | None = None
    guidance_start: _Share | None = None
    guidance_end: _Share | None = None
    pixel_perfect: bool | None = None
    control_mode: _Name | None = None
    union_control_type: _Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _spelled_alike(cls, values: Any) -> Any:
        """Return the fields under one name each, and the picture and its mask apart."""
        if not isinstance(values, dict):
            return values
        plain = dict(values)
        for alias, name in _ALIASES.items():
            value = plain.pop(alias, None)
            if plain.get(name) in _ABSENT:
                plain[name] = value
        match plain["image"]:
            case [dict(image)] | dict(image):
                plain |= {"image": image.get("image"), "mask": image.get("mask") or plain["mask"]}
            case [image, mask]:
                plain |= {"image": image, "mask": mask}
        return plain


class DetectBody(_Body):
    """Pictures of which the ControlNet extension makes maps."""

    controlnet_module: _Name | None = None
    controlnet_input_images: Annotated[list[File], Field(max_length=MAX_CONTROLS)] | None = Field(
        None,
        repr=False,
        validation_alias=AliasChoices("controlnet_input_images", "controlnet_images"),
    )
    controlnet_masks: Annotated[list[File], Field(max_length=MAX_CONTROLS)] | None = Field(
        None, repr=False
    )
    controlnet_processor_res: _Whole | None = None
    controlnet_threshold_a: float | None = None
    controlnet_threshold_b: float | None = None
