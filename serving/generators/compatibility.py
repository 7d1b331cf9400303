"""Checks of the events that another instance sends."""

import dataclasses
import math

from pydantic import TypeAdapter, ValidationError

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from serving.generator import Done, Event, Image, Preview, Step
from serving.generators.client import BackendError
from serving.requests.record import Record

_SETTINGS = TypeAdapter(Settings)
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"


def check(event: Event, record: Record, facts: Facts) -> None:
    """Check that an event is valid for this request and comes from this model.

    Raises:
        BackendError: if the event is not valid; the message says why.
    """
    num_images = record.request.images or 1
    steps = record.request.drawn_steps
    match event:
        case Step(done, total) if not 1 <= done <= total == steps:
            raise BackendError(f"has done {done} of {total} steps, not {steps}", "nonsense")
        case Image():
            _check_image(event, record, num_images, facts)
        case Preview(jpegs) if not (
            1 <= len(jpegs) <= num_images and all(jpeg.startswith(_JPEG) for jpeg in jpegs)
        ):
            raise BackendError("sends an invalid preview", "nonsense")
        case Done() if record.images < num_images and not record.request.live:
            raise BackendError(f"ends with {record.images} of {num_images} pictures", "nonsense")


def _check_image(image: Image, record: Record, num_images: int, facts: Facts) -> None:
    """Check that a picture is one of this request's."""
    request = record.request
    if not (0 <= image.index < num_images and image.png.startswith(_PNG)):
        raise BackendError(f"sends an invalid picture {image.index}", "nonsense")
    if not _may_be_unblurred(image, record):
        raise BackendError("sends an unblurred picture that was not asked for", "nonsense")
    if image.seed != request.of_picture(image.index)["seed"] or not _are_settings(image.settings):
        raise BackendError("sends a picture with a wrong seed or without settings", "nonsense")
    # An instance may be replaced between two health checks.
    drawn_with = image.settings["model"], image.settings["revision"]
    if drawn_with != ((request.model, None) if request.model else (facts.name, facts.revision)):
        raise BackendError(f"sends a picture that {drawn_with[0]!r} drew", "other")


def _may_be_unblurred(image: Image, record: Record) -> bool:
    """Return whether the unblurred original, if there is one, is a PNG file that was asked for."""
    unblurred = image.unblurred
    return unblurred is None or (record.request.unblurred and unblurred.startswith(_PNG))


def _are_settings(settings: dict[str, str | int | float | None]) -> bool:
    """Return whether these are valid settings of a picture; an older instance may omit some."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in settings.values()):
        return False
    try:
        valid_settings = _SETTINGS.validate_python(settings)
    except ValidationError:
        return False
    return settings.items() <= dataclasses.asdict(valid_settings).items()
