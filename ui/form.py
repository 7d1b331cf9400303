"""Validation of input from visitors and programs, and its conversion into a request.

The page's own fields cannot leave their ranges, but a program can send anything.
"""

from dataclasses import dataclass
from typing import TypeGuard

import gradio as gr

from pipeline.request import MAX_GUIDANCE_SCALE, MAX_SEED
from serving.generator import (
    MAX_CHARACTERS,
    Model,
    Request,
    RequestError,
    random_seed,
)
from serving.messages import Code, Message, Param
from ui import sizes
from ui.styles import Style

# Longest id of a session that is kept. The page's own are shorter; a program may send any.
_MAX_SESSION = 64


@dataclass(frozen=True)
class Visitor:
    """The sender of a request: one open page, or a program."""

    session: str
    address: str

    @classmethod
    def behind(cls, request: gr.Request) -> "Visitor":
        """Return the visitor whose browser or program sent `request`."""
        session = (request.session_hash or "")[:_MAX_SESSION]
        return cls(session, request.client.host if request.client else "")


def to_request(
    model: Model,
    styles: dict[str, Style],
    *,
    prompt: object,
    style: object,
    negative_prompt: object,
    guidance_scale: object,
    steps: object,
    seed: object,
    several: object = False,
    guidance_until: object = 1.0,
    variation_strength: object = 0.0,
    variation_seed: object = None,
    size: object = sizes.USUAL,
    visitor: Visitor,
    keep: bool = False,
    previews: bool = False,
    unblurred: bool = False,
) -> Request:
    """Check every value, and return a request with the style's words around the prompt.

    With `several`, every line of the prompt becomes a picture of its own. A seed that is None
    becomes a random one.

    Raises:
        RequestError: if a value cannot be used; the message is about the first such value.
    """
    prompts = split(_text("prompt", prompt), several)
    if not prompts:
        raise RequestError(Message(Code.BLANK_PROMPT))
    if len(prompts) > model.images_per_request:
        params = {"lines": len(prompts), "limit": model.images_per_request}
        raise RequestError(Message(Code.TOO_MANY_LINES, params))
    if not isinstance(style, str) or style not in styles:
        raise _refused(Code.UNKNOWN_CHOICE, "style", value=_sent(style), choices=list(styles))
    negative = _text("negative_prompt", negative_prompt)
    styled = [styles[style].apply(each, negative) for each in prompts]
    full_prompts = tuple(prompt for prompt, _ in styled)
    return Request(
        prompt=full_prompts if several else full_prompts[0],
        negative_prompt=styled[0][1] or None,
        images=len(prompts) if several else None,
        guidance_scale=_number("guidance_scale", guidance_scale, MAX_GUIDANCE_SCALE),
        num_inference_steps=_whole("num_inference_steps", steps, 1, model.max_inference_steps),
        seed=_seed("seed", seed),
        guidance_until=_number("guidance_until", guidance_until, 1),
        variation_strength=_number("variation_strength", variation_strength, 1),
        variation_seed=_seed("variation_seed", variation_seed),
        size=_size(model, size),
        visitor=visitor.session,
        address=visitor.address,
        keep=keep,
        previews=previews,
        unblurred=unblurred,
    )


def split(prompt: str, several: object) -> list[str]:
    """Return the prompts: every line with `several`, else the whole text. Drop blank ones."""
    prompts = prompt.splitlines() if several else [prompt]
    return [each.strip() for each in prompts if each.strip()]


def _text(field: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _refused(Code.NOT_TEXT, field)
    if len(value) > MAX_CHARACTERS:
        raise _refused(Code.TOO_LONG, field, length=len(value), limit=MAX_CHARACTERS)
    return value.strip()


def _number(field: str, value: object, high: float) -> float:
    if not _is_number(value) or not 0 <= value <= high:  # refuses NaN as well
        raise _refused(Code.OUT_OF_RANGE, field, value=_sent(value), low=0, high=high)
    return float(value)


def _whole(field: str, value: object, low: int, high: int) -> int:
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise _refused(Code.NOT_WHOLE, field, value=_sent(value), low=low, high=high)
    return int(value)


def _size(model: Model, value: object) -> tuple[int, int] | None:
    try:
        return sizes.parse(model, _text("size", value))
    except KeyError:
        known = [sizes.name(size) for size in model.sizes]
        raise _refused(Code.UNKNOWN_CHOICE, "size", value=_sent(value), choices=known) from None


def _seed(field: str, value: object) -> int:
    return random_seed() if value is None else _whole(field, value, 0, MAX_SEED)


def _refused(code: Code, field: str, **params: Param) -> RequestError:
    return RequestError(Message(code, {"field": field, **params}), field=field)


def _sent(value: object) -> Param:
    """Return a value for a message; a value that is neither a number nor a text becomes text."""
    return value if value is None or isinstance(value, int | float) else str(value)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
