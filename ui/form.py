"""The page's fields: their components, their values, and checks of what visitors and programs send.

The components of numbers are made from their declarations in `pipeline.request`. The page cannot
send a number out of its range, but a program can send anything.
"""

import inspect
from collections import namedtuple
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

import gradio as gr
from gradio.components import Component

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from pipeline.request import (
    GUIDANCE_SCALE,
    NUM_INFERENCE_STEPS,
    SETTINGS,
    VALUES,
    with_own_names,
)
from pipeline.schedulers.config import DEFAULT_SIGMAS, SCHEDULERS
from pipeline.schedulers.names import SAMPLERS, SCHEDULE_TYPES
from pipeline.schedulers.recipes import RECIPE_SETS
from pipeline.setting_kinds import (
    Choice,
    Loras,
    Named,
    Number,
    OwnNumber,
    Seed,
    Setting,
    Timesteps,
    Variations,
    Whole,
)
from pipeline.text.explanation import reads_as_plain
from pipeline.text.loras import MAX_LORAS, format_loras, parse_loras, take_tags
from pipeline.text.prompt_syntax import A1111, PLAIN
from serving.generator import MAX_CHARACTERS, Generator, Request, RequestError
from serving.messages import Code, Message, Param
from ui import i18n, looks, settings, start
from ui.fields import FIELDS, highest
from ui.styles import NONE, Style, Typed
from ui.wiring import Call, Updates, Wiring

T = TypeVar("T")
Method: TypeAlias = Callable[..., Coroutine[Any, Any, T]]

# Longest id of a session that is kept. The page's own are shorter; a program may send any.
_MAX_SESSION = 64
USUAL = ""  # the size's value for the model's own size
ALL = 0  # the count's value for as many pictures as the model draws at once
# Time between two checks for sizes that are not available yet.
POLL_SECONDS = 5.0

# Fields whose values are not used beside a recipe, by their names.
_SET_BY_RECIPE = [
    setting.link
    for setting in VALUES
    if setting.name in RECIPE_SETS and not FIELDS[setting.name].if_set
]
_OWN_NUMBERS = [setting.link for setting in VALUES if isinstance(setting, OwnNumber)]
_IN_PER_CENT = [setting.link for setting in VALUES if FIELDS[setting.name].in_per_cent]
# Ids of the elements of fields that have another name there, by the name in a `RequestError`.
_ELEMENTS = {
    "negative_prompt": "negative",
    **{setting.name: setting.flag for setting in VALUES},
    **start.ELEMENTS,
}
_DEFAULTS: dict[str, Any] = {
    "prompt": "",
    "style": NONE,
    "negative_prompt": "",
    "several": False,
    "size": USUAL,
    "images": ALL,
    "randomise": True,
    **{setting.link: setting.default for setting in VALUES},
    "steps": NUM_INFERENCE_STEPS,
    "guidance_scale": GUIDANCE_SCALE,
    "prompt_syntax": A1111,  # programs send plain text unless they say otherwise
}


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


def _share(per_cent: object) -> object:
    """Return the share for a number in per cent; `to_request` refuses anything else."""
    if isinstance(per_cent, int | float) and abs(per_cent) <= 100:
        return per_cent / 100
    return per_cent


def _own_number(text: object) -> object:
    """Return the number in a text, or None if it is blank; `to_request` refuses anything else."""
    if not isinstance(text, str):
        return text
    try:
        return float(text) if text.strip() else None
    except ValueError:
        return text


class Fields(namedtuple("Fields", [*_DEFAULTS], defaults=[*_DEFAULTS.values()])):
    """The values of the page's fields, in the order in which the page sends them.

    Shares are from 0 to 1 here; their components have them in per cent. A number that is None here
    is an empty text in its component.
    """

    __slots__ = ()

    @classmethod
    def for_model(cls, facts: Facts) -> "Fields":
        """Return the fields that nobody has set, with the model's defaults for its own choices."""
        return cls(
            **{
                setting.link: setting.absent_value()
                if isinstance(setting, Seed)
                else setting.for_model(facts).default
                for setting in VALUES
                if setting.absent_note
            }
        )

    @classmethod
    def sent(cls, values: Mapping[str, Any]) -> "Fields":
        """Return the fields for the values of the components, by name; others have defaults."""
        # A text field that was never in view may be sent as None.
        fields = {
            name: "" if values[name] is None and default == "" else values[name]
            for name, default in _DEFAULTS.items()
            if name in values
        }
        shares = {name: _share(fields[name]) for name in _IN_PER_CENT if name in fields}
        numbers = {name: _own_number(fields[name]) for name in _OWN_NUMBERS if name in fields}
        return cls(**fields | shares | numbers)

    def shown(self) -> dict[str, Any]:
        """Return the values for the components, by name."""
        shares = {name: i18n.per_cent(getattr(self, name)) for name in _IN_PER_CENT}
        numbers = {name: getattr(self, name) for name in _OWN_NUMBERS}
        texts = {name: "" if value is None else f"{value:g}" for name, value in numbers.items()}
        return self._asdict() | shares | texts


# --- components ---


def create(wiring: Wiring, facts: Facts, styles: Mapping[str, Style]) -> None:
    """Create the components of all fields but the prompt; `ui.page` lays them out."""
    words = i18n.SETTINGS
    style_choices = [(i18n.STYLES[name], name) for name in styles]
    max_images = facts.images_per_request
    count_choices = [*((str(i), i) for i in range(1, max_images)), (str(max_images), ALL)]
    for name, choices, value, elem_id in (
        ("style", style_choices, NONE, "style"),
        ("size", _sizes(facts), USUAL, "size"),
        ("images", count_choices, ALL, "count"),
    ):
        options = {"label": words[name].label, "elem_id": elem_id, "render": False}
        wiring.add(name, gr.Radio(choices, value=value, **options))
    label, info = words["negative_prompt"]
    options = {"label": label, "info": info, "elem_id": "negative", "render": False}
    wiring.add("negative_prompt", gr.Textbox(max_length=MAX_CHARACTERS, **options))
    for name in FIELDS:
        wiring.add(SETTINGS[name].link, _component(SETTINGS[name], facts))
    for name in ("randomise", "several"):
        label, info = words[name]
        options = {"label": label, "info": info or None, "elem_id": name, "render": False}
        wiring.add(name, gr.Checkbox(_DEFAULTS[name], **options))
    wiring.add("timer", gr.Timer(POLL_SECONDS, active=bool(facts.coming_sizes), render=False))


def _component(setting: Setting, facts: Facts) -> Component:
    model_setting, field = setting.for_model(facts), FIELDS[setting.name]
    if setting.name in start.FIELDS:
        return start.field(setting)
    options: dict[str, Any] = {
        "label": _label(setting),
        "info": i18n.SETTINGS[setting.name].info,
        "elem_id": setting.flag,
        "elem_classes": ["if-set"] if field.if_set else None,
        "render": False,
    }
    if isinstance(model_setting, Variations | Timesteps):
        example, max_length = model_setting.example, MAX_CHARACTERS
        return gr.Textbox(
            model_setting.default, placeholder=example, max_length=max_length, **options
        )
    if isinstance(model_setting, Choice) and field.if_set:  # the style sheet finds empty fields
        return gr.Textbox(
            model_setting.default, placeholder=", ".join(model_setting.choices), **options
        )
    if isinstance(model_setting, Choice):
        # Without a filter, touching it opens no keyboard.
        options |= {
            "filterable": False,
            "visible": len(model_setting.choices) >= model_setting.least,
        }
        return gr.Dropdown(
            _choices(model_setting, facts), value=_DEFAULTS[model_setting.link], **options
        )
    if isinstance(model_setting, Loras):
        return looks.field(facts)
    # Gradio neither checks bounds nor rounds here, so that the strip can report such a number.
    if isinstance(model_setting, Seed):
        return gr.Number(setting.default, **options)
    if isinstance(model_setting, OwnNumber):  # Gradio's own component for numbers has 0 for none
        options["placeholder"] = i18n.text("automatic", own="")
        options["visible"] = model_setting.low < model_setting.high
        return gr.Textbox("", max_length=20, **options)
    if isinstance(model_setting, Number):
        options["visible"] = model_setting.low < model_setting.high
        # Gradio refuses a slider with a single value, even a hidden one.
        maximum = highest(model_setting if options["visible"] else cast(Number, setting))
        limits = model_setting.low, maximum, model_setting.default, field.step
        low, high, value, step = (as_shown(model_setting, number) for number in limits)
        return gr.Slider(low, high, value, step=step, **options)
    raise TypeError(f"{setting.name} has no component")


def _choices(setting: Choice, facts: Facts) -> list[tuple[str, str]]:
    """Return the texts and the values of a choice, the model's own first."""
    if setting.name == "recipe":
        return _qualities(facts)
    texts = [(setting.texts.get(name, name), name) for name in setting.choices]
    if setting.default:
        return texts
    if isinstance(setting, Named):
        titles = {model.name: model.title for model in facts.models}
        model_choices = ((titles.get(name) or name, name) for name in setting.choices[1:])
        return [(facts.name, ""), *model_choices]
    scheduler = setting.in_text(facts.scheduler) if setting.name == "scheduler" else ""
    return [(i18n.text("automatic", own=scheduler), ""), *texts]


def _label(setting: Setting) -> str:
    label = i18n.SETTINGS[setting.name].label
    return f"{label} (%)" if FIELDS[setting.name].in_per_cent else label


def as_shown(setting: Setting, number: float) -> float:
    """Return a setting's number as the page shows it."""
    return i18n.per_cent(number) if FIELDS[setting.name].in_per_cent else number


def _qualities(facts: Facts) -> list[tuple[str, str]]:
    """Return the texts and the names of the recipes, after the choice of none."""
    recipe_choices = [
        (i18n.text("quick", steps=recipe.steps[0], title=recipe.title), recipe.name)
        for recipe in facts.recipes
    ]
    return [(i18n.BEST, ""), *recipe_choices]


def hide_unused(wiring: Wiring) -> None:
    """Hide the fields that a recipe sets while one is chosen; they keep their values."""
    js = f"""({{ recipe }}) => Object.fromEntries({_SET_BY_RECIPE}.map((name) => (
      [name, {{ __type__: "update", visible: !recipe }}])))"""
    wiring.on("recipe.change", reads=["recipe"], updates=_SET_BY_RECIPE, js=js)


def connect(wiring: Wiring, generator: Generator) -> None:
    """Offer each size as soon as pictures of it can be drawn; a chip opens the choice.

    The models, the recipes and the LoRAs are those of the moment at which the page is opened. They
    are sent only if they differ from those of the layout. The choice of a model also sets the
    model's own number of steps and guidance scale.
    """
    layout_facts = generator.facts

    def sizes(_: Call) -> Updates:
        model = generator.facts
        if (model.sizes, model.coming_sizes) == (layout_facts.sizes, layout_facts.coming_sizes):
            return {}
        return {
            "size": gr.Radio(choices=_sizes(model)),
            "timer": gr.Timer(active=bool(model.coming_sizes)),
            "chip-size": gr.Button(visible=len(model.sizes) > 1),
        }

    def opened(call: Call) -> Updates:
        model, updates = generator.facts, {**sizes(call)}
        if model.models != layout_facts.models:
            choices = _choices(cast(Named, SETTINGS["model"].for_model(model)), model)
            updates["model"] = gr.Dropdown(choices=choices, visible=len(choices) > 1)
        if model.loras != layout_facts.loras:
            recipes = gr.Dropdown(choices=_qualities(model), visible=bool(model.recipes))
            updates |= {"recipe": recipes, "loras": looks.offered(model)}
        return updates

    def usual(call: Call) -> Updates:
        facts, size = generator.facts.for_known(call.values["model"]), call.values["size"]
        updates = {"steps": facts.num_inference_steps, "guidance_scale": facts.guidance_scale}
        if generator.facts.others:
            value = size if size in facts.size_names[1:] else USUAL
            updates["size"] = gr.Radio(choices=_sizes(facts), value=value)
        return updates

    of_sizes = "size", "timer", "chip-size"
    wiring.on("timer.tick", sizes, updates=of_sizes)
    wiring.on("page.load", opened, updates=[*of_sizes, "model", "recipe", "loras"])
    wiring.on(
        "model.input", usual, reads=["model", "size"], updates=["steps", "guidance_scale", "size"]
    )


def _sizes(facts: Facts) -> list[tuple[str, str]]:
    own_size, *more_sizes = facts.sizes
    return [
        (i18n.size(own_size), USUAL),
        *zip(map(i18n.size, more_sizes), facts.size_names[1:], strict=True),
    ]


def element_of(field: str | None) -> str | None:
    """Return the id of the element that shows a field of a `RequestError`."""
    return None if field is None else _ELEMENTS.get(field, field)


def size_of(size: tuple[int, int] | None, facts: Facts) -> str:
    """Return the value for the choice of sizes."""
    return USUAL if size in (None, facts.sizes[0]) else "{}x{}".format(*size)


# --- from values to a request ---


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
    prompts = split(_text("prompt", fields.prompt), fields.several)
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
    negative_prompt = _text("negative_prompt", fields.negative_prompt)
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


def split(prompt: str, several: object) -> list[str]:
    """Return the prompts: every line with `several`, else the whole text. Drop blank ones."""
    prompts = prompt.splitlines() if several else [prompt]
    return [text.strip() for text in prompts if text.strip()]


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
    if not isinstance(setting, Number):
        return _listed(setting, value)
    model_setting = setting.for_model(facts)
    is_whole = isinstance(setting, Whole)
    if is_whole and isinstance(value, float) and value.is_integer():
        value = int(value)  # browsers write 7.0 for some whole numbers
    if fault := model_setting.fault(value):
        is_kept = fault.code in ("not_whole", "missing_refiner")
        code = Code(fault.code) if is_kept else Code.OUT_OF_RANGE
        raise _refused(code, setting.name, value=_sent(value), **model_setting.limits)
    return setting.kind(value)


def _listed(setting: Setting, value: object) -> str:
    text = _text(setting.name, value)
    if fault := setting.fault(text):
        raise _refused(Code(fault.code), setting.name, value=text, **setting.limits)
    return setting.checked(text)


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


# --- from a picture's settings to values ---


def as_fields(
    picture_settings: Settings, facts: Facts, typed: Typed | None = None
) -> tuple[Fields, list[str]]:
    """Return values for the page's fields, and notes on what differs when they are used here.

    Settings without a syntax are of plain text, because the page read no other when older links
    and pictures were made. Where prompts mean the same in all syntaxes, the field keeps the page's
    own default, so that weights are understood as soon as they are added.

    The prompts and the style are those that were `typed`, if that is known.
    """
    notes: list[str] = []
    if typed is not None:
        picture_settings = settings.as_typed(picture_settings, typed)
    model_facts = facts.for_known(picture_settings.model or "")
    picture_settings = _with_scheduler_here(picture_settings, model_facts, notes)
    numbers = {setting.link: _within(setting, picture_settings, facts, notes) for setting in VALUES}
    if read_as_plain(picture_settings.prompt, picture_settings.negative_prompt):
        numbers["prompt_syntax"] = _DEFAULTS["prompt_syntax"]
    notes += _differences(picture_settings, facts)
    fields = Fields(
        prompt=picture_settings.prompt[:MAX_CHARACTERS],
        negative_prompt=picture_settings.negative_prompt[:MAX_CHARACTERS],
        style=typed.style if typed else NONE,
        randomise=picture_settings.seed is None,
        size=_size_of(picture_settings, model_facts),
        **numbers,
    )
    return fields, notes


def _within(setting: Setting, picture_settings: Settings, facts: Facts, notes: list[str]) -> Any:
    """Return a value that the setting's component takes; add a note if it had to be changed."""
    model_setting, value = setting.for_model(facts), getattr(picture_settings, setting.name)
    if isinstance(model_setting, Loras):
        return _loras_here(model_setting, value, facts, notes)
    if isinstance(model_setting, Named):
        return value if value in model_setting.choices[1:] else model_setting.default
    if value is None or value != value:  # NaN
        return model_setting.default
    is_single = isinstance(model_setting, OwnNumber) and model_setting.low == model_setting.high
    if not isinstance(model_setting, Number) or is_single:
        if (fault := model_setting.fault(value)) is None:
            return model_setting.checked(value)
        params: dict[str, Param] = {
            "field": setting.name,
            "value": str(value),
            **model_setting.limits,
        }
        notes.append(i18n.translate(Message(Code(fault.code), params)))
        return model_setting.default
    used_value = min(max(value, model_setting.low), highest(model_setting))
    if used_value != value:
        before, after = as_shown(setting, value), as_shown(setting, used_value)
        notes.append(i18n.text("adjusted", field=_label(setting), value=before, used=after))
    return setting.kind(used_value)


def _with_scheduler_here(picture_settings: Settings, facts: Facts, notes: list[str]) -> Settings:
    """Return the settings with the scheduler that draws them here; add a note if it is another.

    A sigma schedule of None, as in most pictures, is the default one; "" is the scheduler's own.
    If the model would choose the same scheduler, the choice is left to it. Other programs write
    down eta even if the scheduler does not use it.
    """
    name, sigmas = picture_settings.scheduler, picture_settings.sigma_schedule
    if picture_settings.sampler or (name and name not in facts.schedulers):
        sampler = SAMPLERS.get(facts.scheduler, facts.scheduler)
        notes.append(
            i18n.text(
                "other_sampler", name=picture_settings.sampler or SAMPLERS[name], here=sampler
            )
        )
        return replace(
            picture_settings, scheduler=None, sigma_schedule=None, eta=None, timesteps=None
        )
    if not name:
        return picture_settings
    if picture_settings.schedule_type and SCHEDULERS[name].sigma_schedules:
        wanted_sampler = f"{SAMPLERS[name]} {picture_settings.schedule_type}"
        notes.append(i18n.text("other_sampler", name=wanted_sampler, here=SAMPLERS[name]))
    if sigmas not in (None, "", DEFAULT_SIGMAS) and not SCHEDULERS[name].sigma_schedules:
        wanted_sampler = f"{SAMPLERS[name]} {SCHEDULE_TYPES[sigmas]}"
        notes.append(i18n.text("other_sampler", name=wanted_sampler, here=SAMPLERS[name]))
        sigmas = None
    sigmas = DEFAULT_SIGMAS if sigmas is None else sigmas
    is_own = sigmas in ("", facts.sigma_schedule) or not SCHEDULERS[name].sigma_schedules
    return replace(
        picture_settings,
        scheduler="" if is_own and name == facts.scheduler else name,
        sigma_schedule="" if is_own else sigmas,
        eta=picture_settings.eta if SCHEDULERS[name].options["eta"] else None,
    )


def _loras_here(setting: Loras, value: Any, facts: Facts, notes: list[str]) -> str:
    """Return the text of the LoRAs that the model has; add a note about the missing ones."""
    weights = {} if setting.fault(value) else parse_loras(setting.checked(value))
    if missing_names := looks.unknown(weights, facts):
        notes.append(i18n.text("missing_loras", names=missing_names))
    return format_loras({name: weights[name] for name in weights if name not in missing_names})


def _size_of(picture_settings: Settings, facts: Facts) -> str:
    """Return the value for the choice of sizes: the picture's size, else the model's own."""
    size = picture_settings.width, picture_settings.height
    return next(
        (size_of(model_size, facts) for model_size in facts.more_sizes if model_size == size), USUAL
    )


def _differences(picture_settings: Settings, facts: Facts) -> Sequence[str]:
    """Return notes on why the picture would not come out the same here."""
    size, model_facts = (
        (picture_settings.width, picture_settings.height),
        facts.for_known(picture_settings.model or ""),
    )
    notes = []
    if None not in size and size not in model_facts.sizes:
        notes.append(
            i18n.text("other_size", width=size[0], height=size[1], sizes=model_facts.sizes)
        )
    if picture_settings.strength is not None:
        notes.append(i18n.PICTURE_NEEDED)
    if picture_settings.model and picture_settings.model not in facts.model_names:
        notes.append(i18n.text("other_model", name=picture_settings.model, here=facts.name))
    # Settings from elsewhere that name no VAE may have been drawn with any.
    if picture_settings.vae != model_facts.vae and (
        picture_settings.vae or picture_settings.model == facts.name
    ):
        notes.append(
            i18n.text(
                "other_vae",
                name=picture_settings.vae or i18n.OWN_VAE,
                here=model_facts.vae or i18n.OWN_VAE,
            )
        )
    if settings.is_shortened(picture_settings):
        notes.append(i18n.text("shortened", limit=MAX_CHARACTERS))
    return notes
