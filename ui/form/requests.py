"""Requests for pictures of the page's fields, with checks of what visitors and programs send.

The page cannot send a number out of its range, but a program can send anything.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, TypeVar

from pipeline.facts import Facts
from pipeline.request import VALUES, with_own_names
from pipeline.setting_kinds import Number, OwnNumber, Seed, Setting, Whole
from pipeline.text.explanation import reads_as_plain
from pipeline.text.loras import MAX_LORAS, format_loras, parse_loras, take_tags
from pipeline.text.prompt_syntax import A1111, PLAIN, without_comments
from serving.generator import MAX_CHARACTERS, Request, RequestError
from serving.messages import Code, Message, Param
from ui.form.fields import USUAL, Fields, Visitor
from ui.samples.styles import NONE, Style

T = TypeVar("T")


def to_request(
    facts: Facts,
    styles: Mapping[str, Style],
    fields: Fields,
    visitor: Visitor,
    *,
    tags: bool = False,
    blank: bool = False,
) -> Request:
    """Check every value, and return a request with the style's words around the prompt.

    Args:
        facts: the facts about the model.
        styles: the styles by name.
        fields: the values, which may be anything. With `several`, every line of the prompt becomes
            a picture of its own. A seed that is None becomes a random one.
        visitor: the sender.
        tags: whether the prompt may name LoRAs in any syntax, as in "<lora:pixel:0.8>". Prompts
            that mean the same in all syntaxes are then plain text, so that visitors who need no
            syntax are not told of one.
        blank: whether the prompt may be empty.

    Raises:
        RequestError: if a value cannot be used; the message is about the first such value.
    """
    if isinstance(fields.model, str):
        facts = facts.for_known(fields.model)
    prompts = split(_text("prompt", fields.prompt), fields.several, fields.prompt_syntax)
    values = with_own_names(fields._asdict())
    numbers = {setting.name: _value(setting, facts, values[setting.link]) for setting in VALUES}
    if tags:
        prompts, prompt_loras = _without_tags(prompts)
        numbers["loras"] = _with_loras(numbers["loras"], prompt_loras)
    if not prompts and not blank:
        raise RequestError(Message(Code.BLANK_PROMPT), field="prompt")
    prompts = prompts or [""]
    if len(prompts) > facts.images_per_request:
        params = {"lines": len(prompts), "limit": facts.images_per_request}
        raise RequestError(Message(Code.TOO_MANY_LINES, params), field="prompt")
    if not isinstance(fields.style, str) or fields.style not in styles:
        raise _refused(
            Code.UNKNOWN_CHOICE, "style", value=_sent(fields.style), choices=list(styles)
        )
    negative_prompt = uncommented(
        _text("negative_prompt", fields.negative_prompt), fields.prompt_syntax
    )
    styled_prompts = [styles[fields.style].apply(prompt, negative_prompt) for prompt in prompts]
    full_prompts = tuple(prompt for prompt, _ in styled_prompts)
    if tags and all(map(reads_as_plain, (*full_prompts, styled_prompts[0][1]))):
        numbers["prompt_syntax"] = PLAIN
    return Request(
        prompt=full_prompts if fields.several else full_prompts[0],
        negative_prompt=styled_prompts[0][1] or None,
        **numbers,
        images=len(prompts) if fields.several else _count(facts, fields.images),
        size=_size(facts, fields.size),
        visitor=visitor.session,
        address=visitor.address,
    )


def split(prompt: str, several: object, syntax: object) -> list[str]:
    """Return the prompts: every line with `several`, else the whole text.

    Comments, which AUTOMATIC1111's syntax has, are left out, and blank prompts.
    """
    lines = prompt.splitlines() if several else [prompt]
    prompts = [uncommented(line, syntax).strip() for line in lines]
    return [*filter(None, prompts)]


def uncommented(prompt: str, syntax: object) -> str:
    """Return a prompt without comments, which only AUTOMATIC1111's syntax has."""
    return without_comments(prompt) if syntax == A1111 else prompt


def without_tags(prompt: str) -> str:
    """Return a prompt without the tags of LoRAs, which the model does not read."""
    return take_tags(prompt)[0]


def read_as_plain(prompt: str, negative_prompt: str) -> bool:
    """Return whether prompts mean the same in all syntaxes, the tags of LoRAs aside."""
    return reads_as_plain(without_tags(prompt)) and reads_as_plain(negative_prompt)


def has_tags(prompt: str) -> bool:
    """Return whether a prompt names LoRAs."""
    return without_tags(prompt) != prompt


def _without_tags(prompts: list[str]) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """Return the prompts without the tags of LoRAs, and the weights of these LoRAs."""
    pairs = list(map(take_tags, prompts))
    weights: dict[str, tuple[float, float]] = {}
    for _, loras in pairs:
        weights |= parse_loras(loras)
    return [prompt for prompt, _ in pairs if prompt], weights


def _with_loras(chosen_loras: str, prompt_loras: Mapping[str, tuple[float, float]]) -> str:
    """Return the text of all LoRAs; weights in prompts take precedence over chosen ones."""
    weights = {**parse_loras(chosen_loras), **prompt_loras}
    if len(weights) > MAX_LORAS:
        params: dict[str, Param] = {"count": len(weights), "limit": MAX_LORAS}
        raise RequestError(Message(Code.TOO_MANY_LORAS, params), field="prompt")
    return format_loras(weights)


def _text(field: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _refused(Code.NOT_TEXT, field)
    if len(value) > MAX_CHARACTERS:
        raise _refused(Code.TOO_LONG, field, length=len(value), limit=MAX_CHARACTERS)
    return value.strip()


def _value(setting: Setting, facts: Facts, value: Any) -> Any:
    if value is None and isinstance(setting, Seed | OwnNumber):
        return setting.absent_value()
    if isinstance(setting, Number):
        setting = setting.for_model(facts)
        if isinstance(setting, Whole) and isinstance(value, float) and value.is_integer():
            value = int(value)  # browsers write 7.0 for some whole numbers
    else:
        value = _text(setting.name, value)
    if fault := setting.fault(value):
        has_no_range = fault.code not in ("not_a_number", "no_step_cache", "no_clip_skip")
        code = Code(fault.code) if has_no_range else Code.OUT_OF_RANGE
        raise _refused(code, setting.name, value=_sent(value), **setting.limits)
    return setting.checked(value)


def _size(facts: Facts, value: object) -> tuple[int, int] | None:
    size_name, sizes = _text("size", value), dict(zip(facts.size_names, facts.sizes, strict=True))
    if size_name == USUAL:
        return None
    if size_name not in sizes:
        raise _refused(Code.UNKNOWN_CHOICE, "size", value=_sent(value), choices=list(sizes))
    return sizes[size_name]


def _count(facts: Facts, value: object) -> int | None:
    """Return how many pictures to draw; None for as many as the model draws at once."""
    max_images = facts.images_per_request
    if isinstance(value, bool) or value not in range(max_images + 1):
        raise _refused(Code.NOT_WHOLE, "images", value=_sent(value), low=1, high=max_images)
    return int(value) or None  # type: ignore[call-overload]


def _refused(code: Code, field: str, **params: Param) -> RequestError:
    return RequestError(Message(code, {"field": field, **params}), field=field)


def _sent(value: object) -> Param:
    """Return a value for a message; a value that is neither a number nor a text becomes text."""
    return value if value is None or isinstance(value, int | float) else str(value)


# --- programs ---


def _passed(setting: Setting) -> tuple[str, Any, Any]:
    if setting.absent_note:
        return setting.link, setting.kind | None, None
    return setting.link, setting.kind, setting.default


FILES = ("image", "mask")  # that programs may upload
# Numbers that come before the size in a program's call. Settings that are declared later follow it,
# so that no argument changes its place.
_BEFORE_SIZE = [setting.name for setting in VALUES].index("variation_seed") + 1
# Name, type and default of what programs may pass; `...` stands for no default.
_PASSED: list[tuple[str, Any, Any]] = [
    ("prompt", str, ...),
    ("negative_prompt", str, ""),
    ("style", str, NONE),
    *map(_passed, VALUES[:_BEFORE_SIZE]),
    ("size", str, USUAL),
    *map(_passed, VALUES[_BEFORE_SIZE:]),
    *((name, dict[str, Any] | None, None) for name in FILES),
]


def for_programs(
    draw: Callable[..., Coroutine[Any, Any, T]],
) -> Callable[..., Coroutine[Any, Any, T]]:
    """Give the method `draw(self, sender, **values)` the signature that programs see.

    Gradio reads names, types, defaults and descriptions from a function's signature and docstring.
    A number or a file that is None, and may be, is left out of `values`.
    """
    draw_signature = inspect.signature(draw)
    first_parameters = [*draw_signature.parameters.values()][:2]
    call_parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if default is ... else default,
            annotation=kind,
        )
        for name, kind, default in _PASSED
    ]
    signature = draw_signature.replace(parameters=[*first_parameters, *call_parameters])
    may_be_none = {*FILES, *(setting.link for setting in VALUES if setting.absent_note)}

    @wraps(draw)
    async def call(*args: Any, **kwargs: Any) -> T:
        bound_arguments = signature.bind(*args, **kwargs)
        bound_arguments.apply_defaults()
        values = bound_arguments.arguments.items()
        return await draw(**{k: v for k, v in values if v is not None or k not in may_be_none})

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = draw.__annotations__ | {name: kind for name, kind, _ in _PASSED}
    descriptions = (
        f"{setting.link}: {setting.help} {setting.absent_note}".rstrip() for setting in VALUES
    )
    numbers = "\n    ".join(descriptions)
    call.__doc__ = (inspect.getdoc(draw) or "").format(numbers=numbers)
    return call
