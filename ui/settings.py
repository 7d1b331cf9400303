"""A picture's settings as text to read and to copy."""

from dataclasses import asdict, replace
from html import escape
from typing import Any

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.images.metadata import Settings
from pipeline.request import CHOICES, SETTINGS, VALUES, effective
from pipeline.resolve import with_recipe
from pipeline.schedulers.config import DEFAULT_SIGMAS, SCHEDULERS
from serving.generator import MAX_CHARACTERS, Image, Request
from ui import i18n
from ui.fields import FIELDS
from ui.styles import NONE, Typed


def of_image(image: Image) -> Settings:
    """Return the settings that came with a picture."""
    return Settings(**image.settings)


def of_request(request: Request, index: int, facts: Facts) -> Settings:
    """Return the settings of an unfinished picture of a request."""
    facts = facts.for_known(request.model)
    if request.recipe in facts.recipe_names:  # its LoRA may be gone by now
        request = with_recipe(request, facts.recipes)
    values = request.of_picture(index) | _drawn_with(request, facts)
    effective_values = effective({setting.name: values[setting.name] for setting in VALUES})
    width, height = request.size or facts.sizes[0]
    return Settings(
        prompt=values["prompt"],
        negative_prompt=values["negative_prompt"] or "",
        **effective_values | {"model": request.model or facts.name},
        width=width,
        height=height,
        vae=facts.vae,
        unet=facts.unet,
        refiner=None if values["denoising_end"] == 1 else facts.refiner,
        quantization=facts.quantization,
    )


def _drawn_with(request: Request, facts: Facts) -> dict[str, str]:
    """Return the scheduler and the sigma schedule that draw a request, "" for the default one."""
    name = request.scheduler or facts.scheduler
    spaces_sigmas = name in SCHEDULERS and SCHEDULERS[name].sigma_schedules
    default_sigmas = facts.sigma_schedule if spaces_sigmas and not request.timesteps else ""
    sigmas = request.sigma_schedule or default_sigmas
    return {
        "scheduler": name if name in SCHEDULERS else "",
        "sigma_schedule": "" if sigmas == DEFAULT_SIGMAS else sigmas,
    }


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
    text = metadata.to_text(bounded(settings))
    return f"<dl>{rows}</dl>{_copies('copy', text, i18n.COPY_SETTINGS)}"


def link_button(query: str) -> str:
    """Return a button that copies a link, made of the page's address and this query."""
    return _copies("link", query, i18n.COPY_LINK)


def _copies(kind: str, content: str, label: str) -> str:
    content, label, copied = map(escape, (content, label, i18n.COPIED))
    return f'<button type="button" data-{kind}="{content}" data-copied="{copied}">{label}</button>'
