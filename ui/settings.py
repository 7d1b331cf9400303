"""A picture's settings: as text to read, and as values for the page's fields."""

from dataclasses import asdict, replace
from html import escape
from typing import NamedTuple

from pipeline.images import metadata
from pipeline.images.metadata import Settings
from pipeline.request import MAX_SEED
from serving.generator import MAX_CHARACTERS, Image, Model
from ui import i18n, sizes
from ui.styles import NONE

MAX_GUIDANCE = 20.0  # the end of the page's slider


class Fields(NamedTuple):
    """The values of the page's fields, in the order of `Drawing.for_page`'s arguments."""

    prompt: str
    style: str
    negative_prompt: str
    guidance_scale: float
    steps: int
    randomise: bool
    seed: int
    several: bool = False
    guidance_until: float = 1.0
    variation_strength: float = 0.0
    variation_seed: int = 0
    size: str = sizes.USUAL


def of_image(image: Image) -> Settings:
    """Return the settings that came with a picture."""
    return Settings(**image.settings)  # type: ignore[arg-type]


def bounded(settings: Settings) -> Settings:
    """Return the settings with every text cut to one character more than the page takes.

    The extra character lets `is_shortened` and `as_fields` report the cut. Lone surrogates are
    replaced, because no answer to a browser can hold them.
    """
    texts = {name: value for name, value in asdict(settings).items() if isinstance(value, str)}
    return replace(settings, **{name: _cut(value) for name, value in texts.items()})


def _cut(text: str) -> str:
    return text[: MAX_CHARACTERS + 1].encode("utf-8", "replace").decode()


def is_shortened(settings: Settings) -> bool:
    """Return whether a prompt is longer than the page takes."""
    return max(len(settings.prompt), len(settings.negative_prompt)) > MAX_CHARACTERS


def described(settings: Settings) -> list[tuple[str, str]]:
    """Return the names and values of a picture's settings, without those that have no value."""
    found = [(name, getattr(settings, field)) for field, name in i18n.SETTINGS.items()]
    if settings.width is not None and settings.height is not None:
        found.insert(-1, (i18n.SIZE, i18n.size((settings.width, settings.height))))
    return [(name, i18n.written(value)) for name, value in found if value not in (None, "")]


def as_html(settings: Settings, link: str | None = None) -> str:
    """Return HTML with a picture's settings, escaped, and with buttons that copy them.

    `link` is the query of a link, to which the browser adds the page's address.
    """
    settings = bounded(settings)
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in described(settings)
    )
    buttons = _copies("copy", metadata.to_text(settings), i18n.COPY_SETTINGS)
    if link is not None:
        buttons += _copies("link", link, i18n.COPY_LINK)
    return f"<dl>{rows}</dl>{buttons}"


def _copies(what: str, content: str, label: str) -> str:
    content, label, copied = map(escape, (content, label, i18n.COPIED))
    return f'<button type="button" data-{what}="{content}" data-copied="{copied}">{label}</button>'


def as_fields(settings: Settings, model: Model) -> tuple[Fields, list[str]]:
    """Return values for the page's fields, and notes on what differs when they are used here."""
    notes: list[str] = []

    def within(field: str, value: float | None, low: float, high: float, default: float) -> float:
        if value is None or value != value:  # NaN
            return default
        used = min(max(value, low), high)
        if used != value:
            notes.append(i18n.adjusted(field, value, used))
        return used

    guidance = within(i18n.GUIDANCE, settings.guidance_scale, 0, MAX_GUIDANCE, 5.0)
    most, usual = model.max_inference_steps, model.num_inference_steps
    steps = within(i18n.STEPS, settings.num_inference_steps, 1, most, usual)
    seed = within(i18n.SEED, settings.seed, 0, MAX_SEED, 0)
    until = within(i18n.GUIDANCE_UNTIL, settings.guidance_until, 0, 1, 1.0)
    strength = within(i18n.VARIATION_STRENGTH, settings.variation_strength, 0, 1, 0.0)
    variation = within(i18n.VARIATION_SEED, settings.variation_seed, 0, MAX_SEED, 0)
    notes += _differences(settings, model)
    fields = Fields(
        prompt=settings.prompt[:MAX_CHARACTERS],
        style=NONE,
        negative_prompt=settings.negative_prompt[:MAX_CHARACTERS],
        guidance_scale=guidance,
        steps=int(steps),
        randomise=settings.seed is None,
        seed=int(seed),
        guidance_until=until,
        variation_strength=strength,
        variation_seed=int(variation),
        size=_size(settings, model),
    )
    return fields, notes


def _size(settings: Settings, model: Model) -> str:
    """Return the value for the choice of sizes: the picture's size, else the model's own."""
    size = settings.width, settings.height
    return next((sizes.name(each) for each in model.more_sizes if each == size), sizes.USUAL)


def _differences(settings: Settings, model: Model) -> list[str]:
    """Return notes on why the picture would not come out the same here."""
    size = settings.width, settings.height
    notes = []
    if None not in size and size not in model.sizes:
        notes.append(i18n.other_size(*size, model))
    if settings.model and settings.model != model.name:
        notes.append(i18n.other_model(settings.model, model))
    if is_shortened(settings):
        notes.append(i18n.shortened(MAX_CHARACTERS))
    return notes
