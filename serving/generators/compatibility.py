"""What another instance may say, and whether it draws what this one would."""

import dataclasses
import math

from pydantic import TypeAdapter, ValidationError

from pipeline.images.metadata import Settings
from pipeline.request import picture_seeds
from serving.generator import Done, Event, Image, Model, Preview, Step
from serving.generators.client import BackendError
from serving.requests.record import Record

_SETTINGS = TypeAdapter(Settings)
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"


def check(event: Event, record: Record, model: Model) -> None:
    """Passes what a request like this one can hear of.

    Raises:
        BackendError: it is something else.
    """
    wanted = record.request.images or model.images_per_request
    steps = record.request.num_inference_steps
    match event:
        case Step(done, total) if not 1 <= done <= total == steps:
            raise BackendError(f"has done {done} of {total} steps, not {steps}", "nonsense")
        case Image():
            _check_image(event, record, wanted, model)
        case Preview(jpegs) if not (
            1 <= len(jpegs) <= wanted and all(jpeg.startswith(_JPEG) for jpeg in jpegs)
        ):
            raise BackendError("sends a preview that is none", "nonsense")
        case Done() if record.images < wanted:
            raise BackendError(f"ends with {record.images} of {wanted} pictures", "nonsense")


def _check_image(image: Image, record: Record, wanted: int, model: Model) -> None:
    """Passes one of the pictures that this request is to have."""
    request = record.request
    seeds = picture_seeds(request.seed, wanted, request.variation_strength)
    if not (0 <= image.index < wanted and image.png.startswith(_PNG)):
        raise BackendError(f"sends a picture {image.index} that is none", "nonsense")
    if not _may_be_unblurred(image, record):
        raise BackendError("sends a picture unblurred that is not to be", "nonsense")
    if image.seed != seeds[image.index] or not _are_settings(image.settings):
        raise BackendError("sends a picture of another seed, or without settings", "nonsense")
    # An instance may be replaced between two looks at it.
    drawn_with = image.settings["model"], image.settings["revision"]
    if drawn_with != (model.name, model.revision):
        raise BackendError(f"sends a picture that {drawn_with[0]!r} drew", "other")


def _may_be_unblurred(image: Image, record: Record) -> bool:
    """Whether what came with a picture, if anything, is a picture that was asked for."""
    unblurred = image.unblurred
    return unblurred is None or (record.request.unblurred and unblurred.startswith(_PNG))


def _are_settings(found: dict[str, str | int | float | None]) -> bool:
    """Whether these are of a picture, each of its kind; None is what an older instance left out."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in found.values()):
        return False
    try:
        read = _SETTINGS.validate_python(found)
    except ValidationError:
        return False
    return found.items() <= dataclasses.asdict(read).items()


# What decides, beside the request, what the pictures are, to the bit.
_DRAWN_WITH = (
    "name",
    "revision",
    "scheduler",
    "version",
    "device",
    "num_devices",
    "height",
    "width",
    "images_per_request",
    "max_inference_steps",
    "safety_checker",
    "screened",
)


def differences(one: Model, other: Model) -> str:
    """Why an instance draws other pictures of the same request than another; "" if it does not."""
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in _DRAWN_WITH]
    return ", ".join(f"{name} {own!r}, not {its!r}" for name, own, its in pairs if own != its)
