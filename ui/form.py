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
from ui import i18n, sizes
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
    prompts = split(_text(i18n.PROMPT, prompt), several)
    if not prompts:
        raise RequestError(i18n.BLANK_PROMPT)
    if len(prompts) > model.images_per_request:
        raise RequestError(i18n.too_many_lines(len(prompts), model.images_per_request))
    if not isinstance(style, str) or style not in styles:
        raise RequestError(i18n.unknown(i18n.STYLE, style, list(styles)))
    negative = _text(i18n.NEGATIVE, negative_prompt)
    styled = [styles[style].apply(each, negative) for each in prompts]
    full_prompts = tuple(prompt for prompt, _ in styled)
    return Request(
        prompt=full_prompts if several else full_prompts[0],
        negative_prompt=styled[0][1] or None,
        images=len(prompts) if several else None,
        guidance_scale=_number(i18n.GUIDANCE, guidance_scale, MAX_GUIDANCE_SCALE),
        num_inference_steps=_whole(i18n.STEPS, steps, 1, model.max_inference_steps),
        seed=_seed(i18n.SEED, seed),
        guidance_until=_number(i18n.GUIDANCE_UNTIL, guidance_until, 1),
        variation_strength=_number(i18n.VARIATION_STRENGTH, variation_strength, 1),
        variation_seed=_seed(i18n.VARIATION_SEED, variation_seed),
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
        raise RequestError(i18n.not_text(field))
    if len(value) > MAX_CHARACTERS:
        raise RequestError(i18n.too_long(field, len(value), MAX_CHARACTERS))
    return value.strip()


def _number(field: str, value: object, high: float) -> float:
    if not _is_number(value) or not 0 <= value <= high:  # refuses NaN as well
        raise RequestError(i18n.out_of_range(field, value, 0, high))
    return float(value)


def _whole(field: str, value: object, low: int, high: int) -> int:
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise RequestError(i18n.not_whole(field, value, low, high))
    return int(value)


def _size(model: Model, value: object) -> tuple[int, int] | None:
    try:
        return sizes.parse(model, _text(i18n.SIZE, value))
    except KeyError:
        known = [sizes.name(size) for size in model.sizes]
        raise RequestError(i18n.unknown(i18n.SIZE, value, known)) from None


def _seed(field: str, value: object) -> int:
    return random_seed() if value is None else _whole(field, value, 0, MAX_SEED)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
