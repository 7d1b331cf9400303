"""A picture's settings as text to read and to copy, and as values for the page's fields."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from typing import Any

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.images.metadata import HASH_LENGTH, Settings
from pipeline.request import CHOICES, SETTINGS, VALUES
from pipeline.schedulers.config import DEFAULT_SIGMAS, SCHEDULERS
from pipeline.schedulers.names import SAMPLERS, SCHEDULE_TYPES
from pipeline.setting_kinds import Controls, Loras, Named, Number, OwnNumber, Setting
from pipeline.text.controls import format_controls, parse_controls
from pipeline.text.loras import format_loras, parse_loras
from serving.generator import MAX_CHARACTERS, Image
from serving.messages import Code, Message, Param
from ui import controls, i18n, looks
from ui.form.fields import DEFAULTS, FIELDS, USUAL, Fields, as_shown, highest, label_of, size_of
from ui.form.requests import read_as_plain
from ui.samples.styles import NONE, Typed


def of_image(image: Image) -> Settings:
    """Return the settings that came with a picture."""
    return Settings(**image.settings)


def bounded(settings: Settings) -> Settings:
    """Return the settings with every text cut to one character more than the page takes.

    The extra character lets `is_shortened` and `form.as_fields` report the cut. Lone surrogates are
    replaced, because no answer to a browser can hold them.
    """
    texts = {name: value for name, value in asdict(settings).items() if isinstance(value, str)}
    return replace(settings, **{name: _cut(value) for name, value in texts.items()})


def as_typed(settings: Settings, typed: Typed) -> Settings:
    """Return the settings without the words of the style in the prompts."""
    return replace(settings, prompt=typed.prompt, negative_prompt=typed.negative)


def _cut(text: str) -> str:
    return text[: MAX_CHARACTERS + 1].encode("utf-8", "replace").decode()


def is_shortened(settings: Settings) -> bool:
    """Return whether a prompt is longer than the page takes."""
    return max(len(settings.prompt), len(settings.negative_prompt)) > MAX_CHARACTERS


def described(settings: Settings, style: str = NONE) -> list[tuple[str, str]]:
    """Return the names and values of a picture's settings, without those that have no value."""
    values = asdict(settings)
    if style != NONE:
        values["style"] = i18n.STYLES[style]
    if settings.width is not None and settings.height is not None:
        values["size"] = i18n.size((settings.width, settings.height))
    entries = ((name, words.label, values.get(name)) for name, words in i18n.SETTINGS.items())
    return [
        (label, _written(name, value)) for name, label, value in entries if value not in (None, "")
    ]


def _written(name: str, value: Any) -> str:
    if name in CHOICES:
        return SETTINGS[name].in_text(value)
    if name in FIELDS and FIELDS[name].in_per_cent:
        return f"{i18n.written(i18n.per_cent(value))} %"
    return i18n.written(value)


def as_html(
    settings: Settings, typed: Typed | None = None, size: tuple[int, int] | None = None
) -> str:
    """Return HTML with a picture's settings, escaped, and with a button that copies them.

    The prompts are shown as they were `typed`, if that is known, and copied as the model read them.
    In the same way `size` is shown in place of the size that was drawn.
    """
    shown_settings = bounded(as_typed(settings, typed) if typed else settings)
    if size is not None:
        shown_settings = replace(shown_settings, width=size[0], height=size[1])
    rows = "".join(
        f'<dt>{escape(name)}</dt><dd dir="auto">{escape(value)}</dd>'
        for name, value in described(shown_settings, typed.style if typed else NONE)
    )
    return f"<dl>{rows}</dl>{_copies(metadata.to_text(bounded(settings)))}"


def _copies(text: str) -> str:
    text, label, copied = map(escape, (text, i18n.COPY_SETTINGS, i18n.ACTIONS["copied"]))
    return f'<button type="button" data-copy="{text}" data-copied="{copied}">{label}</button>'


# --- values for the page's fields ---


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
        picture_settings = as_typed(picture_settings, typed)
    picture_settings = _with_model_here(picture_settings, facts)
    model_facts = facts.for_known(picture_settings.model or "")
    picture_settings = _with_scheduler_here(picture_settings, model_facts, notes)
    numbers = {setting.link: _within(setting, picture_settings, facts, notes) for setting in VALUES}
    if read_as_plain(picture_settings.prompt, picture_settings.negative_prompt):
        numbers["prompt_syntax"] = DEFAULTS["prompt_syntax"]
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
    if isinstance(model_setting, Controls):
        return _controls_here(model_setting, value, facts, notes)
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
        notes.append(i18n.text("adjusted", field=label_of(setting), value=before, used=after))
    return setting.kind(used_value)


def _with_model_here(picture_settings: Settings, facts: Facts) -> Settings:
    """Return the settings with the name that the model's file has here, if its hash is known."""
    names = {digest[:HASH_LENGTH]: name for name, digest in facts.hashes.items()}
    name = names.get((picture_settings.model_hash or "").lower(), picture_settings.model)
    return replace(picture_settings, model=name)


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


def _controls_here(setting: Controls, value: Any, facts: Facts, notes: list[str]) -> str:
    """Return the text of the controls that the model has; add a note about the missing ones."""
    wanted = () if setting.fault(value) else parse_controls(setting.checked(value))
    if missing_names := controls.unknown(wanted, facts):
        notes.append(i18n.text("missing_loras", names=missing_names))
    return format_controls([control for control in wanted if control.name not in missing_names])


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
    if picture_settings.strength is not None or picture_settings.controls:
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
    if is_shortened(picture_settings):
        notes.append(i18n.text("shortened", limit=MAX_CHARACTERS))
    return notes
