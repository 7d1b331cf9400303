"""Check of a request before it is queued, the same for the page and every API."""

import math

from pipeline.request import MAX_GUIDANCE_SCALE, MAX_SEED
from serving import messages
from serving.generator import (
    MAX_CHARACTERS,
    ErrorKind,
    Model,
    Request,
    RequestError,
)
from serving.requests.blocked_words import BlockedWords


def check(request: Request, model: Model, blocked: BlockedWords) -> None:
    """Check that `model` can draw a request, and that its prompt has no blocked words.

    Raises:
        RequestError: for the first field that cannot be used; the message says what would be right.
    """
    images = model.images_per_request if request.images is None else request.images
    _check_range("images", images, 1, model.images_per_request)
    for field in ("prompt", "negative_prompt"):
        _check_texts(field, getattr(request, field), images)
    if any(not text.strip() for text in _texts(request.prompt)):
        raise _wrong("prompt", "is blank; say what the picture should show")
    for field, high in (
        ("guidance_scale", MAX_GUIDANCE_SCALE),
        ("guidance_until", 1),
        ("variation_strength", 1),
    ):
        if not math.isfinite(value := getattr(request, field)):
            raise _wrong(field, "is not a finite number")
        _check_range(field, value, 0, high)
    _check_range("num_inference_steps", request.num_inference_steps, 1, model.max_inference_steps)
    for field in ("seed", "variation_seed"):
        _check_range(field, getattr(request, field), 0, MAX_SEED)
    if request.size not in (None, *model.sizes):
        wanted, *right = (f"{width}x{height}" for width, height in (request.size, *model.sizes))
        soon = ", not ready yet" if request.size in model.coming_sizes else ""
        raise _wrong("size", f"is {wanted}{soon}; here it can only be {' or '.join(right)}")
    if found := next(filter(None, map(blocked.find, _texts(request.prompt))), ""):
        raise RequestError(messages.blocked(found), ErrorKind.BLOCKED, field="prompt")


def _texts(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value or ()


def _check_texts(field: str, value: str | tuple[str, ...] | None, images: int) -> None:
    if isinstance(value, tuple) and len(value) != images:
        raise _wrong(field, f"has {len(value)} texts; expected one, or one for each of {images}")
    longest = max(map(len, _texts(value)), default=0)
    if longest > MAX_CHARACTERS:
        raise _wrong(field, f"has {longest} characters; at most {MAX_CHARACTERS} are possible")


def _check_range(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise _wrong(field, f"is {_in_full(value)}; expected {low:g} to {high:.0f}")


def _in_full(value: float) -> str:
    """Return a number as text; a large whole one without an exponent: 10000000000, not 1e+10."""
    is_large = isinstance(value, float) and value.is_integer() and abs(value) >= 10**6
    return f"{value:.0f}" if is_large else str(value)


def _wrong(field: str, what: str) -> RequestError:
    return RequestError(f"{field} {what}", field=field)
