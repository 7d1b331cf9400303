"""Check of a request before it is queued, the same for the page and every API."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pipeline.errors import InputError
from pipeline.facts import Facts, digest_of
from pipeline.request import (
    TINY,
    GenerateRequest,
    Misfit,
    faults,
    misfits,
)
from pipeline.resolve import all_loras, resolve
from pipeline.text.controls import parse_controls
from pipeline.text.loras import MAX_LORAS, parse_loras
from pipeline.text.prompt_syntax import MAX_TEXTS, texts_of
from serving.generator import MAX_CHARACTERS, ErrorKind, Request, RequestError
from serving.messages import Code, Message, Param
from serving.requests.blocked_words import BlockedWords


def expand(request: Request, facts: Facts) -> Request:
    """Resolve a request for a model, with its size and number of pictures.

    A live one becomes the quickest that the model draws.

    Raises:
        RequestError: if there is no such model, if it has no such recipe or draws no live pictures,
            or if the request has too many LoRAs.
    """
    facts = _facts_for(request, facts)
    if request.live:
        request = _as_live(request, facts)
    images = facts.images_per_request if request.images is None else request.images
    request = replace(request, images=images, size=request.size or facts.sizes[0])
    choices = list(facts.recipe_names)
    if request.recipe not in ("", *choices):
        if choices:
            raise wrong(Code.UNKNOWN_CHOICE, "recipe", value=request.recipe, choices=choices)
        raise wrong(Code.MISSING_RECIPE, "recipe", value=request.recipe)
    try:
        return resolve(request, facts, has_image=request.image is not None)
    except InputError as error:
        count = len(all_loras(request, facts.lora_names)) + (request.recipe != "")
        params: dict[str, Param] = {"count": count, "limit": MAX_LORAS}
        raise RequestError(Message(Code.TOO_MANY_LORAS, params), field="loras") from error


def _facts_for(request: Request, facts: Facts) -> Facts:
    """Return the facts that hold for a request's model.

    Raises:
        RequestError: if there is no such model, or it cannot be used.
    """
    try:
        return facts.for_model(request.model)
    except InputError as error:
        for model in facts.models:
            if model.name == request.model:
                params: dict[str, Param] = {"value": model.name, "reason": model.fault}
                raise wrong(Code.UNUSABLE_MODEL, "model", **params) from error
        choices = list(facts.model_names)
        refusal = wrong(Code.UNKNOWN_CHOICE, "model", value=request.model, choices=choices)
        raise refusal from error


def _as_live(request: Request, facts: Facts) -> Request:
    """Return a live request for a single picture by the quickest way that the model has."""
    # A change of the model takes too long for a picture while one types.
    if request.model not in ("", facts.name) or not facts.live or facts.live_recipe is None:
        raise RequestError(Message(Code.NOT_LIVE), field="live")
    decoder = request.decoder if facts.tiny_vae is None else TINY
    return replace(request, images=1, recipe=facts.live_recipe, decoder=decoder, enlarge="")


def check_fields(request: Request, facts: Facts) -> None:
    """Check that a model can draw a resolved request, whatever its words.

    Raises:
        RequestError: for the first field that cannot be used; the message says what would be right.
    """
    facts, images = _facts_for(request, facts), request.images or 0
    _check_range("images", images, 1, facts.images_per_request)
    for field in ("prompt", "negative_prompt"):
        _check_texts(field, getattr(request, field), images)
    # A picture can be varied without words.
    if request.image is None and any(not text.strip() for text in _texts(request.prompt)):
        raise RequestError(Message(Code.BLANK_PROMPT), field="prompt")
    for fault in faults(request, facts):
        code = Code(fault.code)
        value = fault.value if code is Code.OUT_OF_RANGE else str(fault.value)
        reasons = dict(facts.refused_schedulers) if fault.setting.name == "scheduler" else {}
        if reason := reasons.get(value):
            raise wrong(Code.UNFIT_SCHEDULER, fault.setting.name, value=value, reason=reason)
        raise wrong(code, fault.setting.name, value=value, **fault.setting.limits)
    for misfit in misfits(request, facts.scheduler):
        raise _misfit(misfit)
    check_input(request, facts)
    check_size(request, facts)
    check_named(request, facts)


def check_digest(request: Request, facts: Facts) -> None:
    """Check that a request which was passed on would be drawn here with what it was checked with.

    Raises:
        RequestError: if not; another instance may draw it.
    """
    if request.digest and request.digest != digest_of(request, facts):
        raise RequestError(Message(Code.UNAVAILABLE), ErrorKind.UNAVAILABLE)


def check_words(request: GenerateRequest, blocked: BlockedWords) -> None:
    """Check that prompts have no blocked words, as they are written and as they are read.

    Raises:
        RequestError: if a prompt has one, or has too many different texts.
    """
    prompts = _texts(request.prompt)
    try:
        texts = [
            text
            for prompt in prompts
            for text in texts_of(prompt, request.prompt_syntax, request.steps)
        ]
    except InputError as error:
        message = Message(Code.TOO_MANY_TEXTS, {"limit": MAX_TEXTS})
        raise RequestError(message, field="prompt") from error
    if word := next(filter(None, map(blocked.find, (*prompts, *texts))), ""):
        message = Message(Code.BLOCKED, {"word": word})
        raise RequestError(message, ErrorKind.BLOCKED, field="prompt")


def check_input(request: Request, facts: Facts) -> None:
    """Check that a model can draw from the picture and the mask of a request, or without them.

    Raises:
        RequestError: if one is missing, or cannot be used; the message says which.
    """
    if facts.needs_mask and request.mask is None:
        raise wrong(Code.MASK_NEEDED, "image" if request.image is None else "mask")
    if facts.needs_image and request.image is None:
        raise wrong(Code.IMAGE_NEEDED, "image")
    for field, required_field in (("mask", "image"), ("strength", "image"), ("padding", "mask")):
        if getattr(request, field) is not None and getattr(request, required_field) is None:
            raise wrong(Code.WITHOUT, field, other=required_field)
    if facts.needs_mask and request.enlarge:
        raise wrong(Code.ONE_OF_TWO, "enlarge", other="mask")
    for field, (steps, share) in zip(("strength", "enlarge_strength"), request.runs, strict=False):
        if not int(steps * share):
            low = math.ceil(1000 / steps) / 1000
            raise wrong(Code.OUT_OF_RANGE, field, value=share, low=low, high=1)


def check_size(request: Request, facts: Facts) -> None:
    """Check that a model draws in the size of a request.

    Raises:
        RequestError: if it does not, or not yet.
    """
    if request.size not in (None, *facts.sizes):
        value, *choices = (f"{width}x{height}" for width, height in (request.size, *facts.sizes))
        coming = request.size in facts.coming_sizes
        code = Code.NOT_READY if coming else Code.UNKNOWN_CHOICE
        raise wrong(code, "size", value=value, choices=choices)


def check_named(request: Request, facts: Facts) -> None:
    """Check that the model, the LoRAs and the ControlNets of a request are there.

    Raises:
        RequestError: for the first one that is not, or that several files could be.
    """
    model_facts = _facts_for(request, facts)
    loras = {lora.name: lora for lora in facts.loras}
    for name in parse_loras(request.loras):
        if name not in loras:
            raise RequestError(Message(Code.UNKNOWN_LORA, {"value": name}), field="loras")
        if files := loras[name].doubled:
            params: dict[str, Param] = {"value": name, "files": list(files)}
            raise RequestError(Message(Code.DOUBLED_LORA, params), field="loras")
    controls = {control.name for control in model_facts.controls}
    for control in parse_controls(request.controls):
        if control.name not in controls:
            raise wrong(Code.UNKNOWN_CONTROL, "controls", value=control.name)


def _misfit(misfit: Misfit) -> RequestError:
    field, other_field = misfit.setting.name, misfit.other.name
    if not misfit.choices:
        return wrong(Code.ONE_OF_TWO, field, other=other_field)
    return wrong(
        Code.NOT_WITH,
        field,
        value=str(misfit.value),
        other=other_field,
        its=str(misfit.other_value),
        choices=list(misfit.choices),
    )


def _texts(value: str | Sequence[str] | None) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value or ()


def _check_texts(field: str, value: str | Sequence[str] | None, images: int) -> None:
    if isinstance(value, tuple) and len(value) != images:
        raise wrong(Code.WRONG_COUNT, field, count=len(value), images=images)
    longest = max(map(len, _texts(value)), default=0)
    if longest > MAX_CHARACTERS:
        raise wrong(Code.TOO_LONG, field, length=longest, limit=MAX_CHARACTERS)


def _check_range(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise wrong(Code.OUT_OF_RANGE, field, value=value, low=low, high=high)


def wrong(code: Code, field: str, **params: Param) -> RequestError:
    """Return the refusal of a request for the value of a field."""
    return RequestError(Message(code, {"field": field, **params}), field=field)
