"""Settings in the query of a link to the page, by the names that programs use for them.

The same text is what the browser's history keeps. Whoever opens a link may have typed it, so it
is read with the care that a visitor's own input gets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import gradio as gr
from gradio.components import Component

from pipeline.metadata import Settings
from serving.generator import Model
from ui import settings, status, words
from ui.events import AT_ONCE
from ui.settings import Fields
from ui.styles import NONE, Style

Value = TypeVar("Value")

_NAMES = ("prompt", "negative_prompt", "style", "guidance_scale", "steps", "seed", "several")


def to_query(fields: Fields) -> str:
    """What stands behind the page's address, with its `?`; no seed if that is left to chance."""
    values = {
        "prompt": fields.prompt,
        "negative_prompt": fields.negative_prompt,
        "style": "" if fields.style == NONE else fields.style,
        "guidance_scale": repr(float(fields.guidance_scale)).removesuffix(".0"),
        "steps": str(fields.steps),
        "seed": "" if fields.randomise else str(fields.seed),
        "several": "1" if fields.several else "",
    }
    given = {name: value for name, value in values.items() if value}
    return "?" + urlencode(given, quote_via=quote, errors="replace")


def from_query(
    query: Mapping[str, str], model: Model, styles: Mapping[str, Style]
) -> tuple[Fields, list[str]] | None:
    """Values for the page's fields, and what of the link could not be used as it stands.

    None for a link that says nothing about them; parameters of other names are nobody's business.
    """
    given = {name: query[name] for name in _NAMES if name in query}
    if not given:
        return None
    notes: list[str] = []

    def number(name: str, field: str, kind: Callable[[str], Value]) -> Value | None:
        text = given.get(name)
        if text is None:
            return None
        try:
            value = kind(text)
            if value == value:  # NaN is not
                return value
        except ValueError:
            pass
        notes.append(words.not_a_number(field, text))
        return None

    def one_of(name: str, field: str, known: list[str]) -> str:
        text = given.get(name, known[0])
        if text in known:
            return text
        notes.append(words.unknown(field, text, known))
        return known[0]

    fields, differences = settings.as_fields(
        Settings(
            prompt=given.get("prompt", ""),
            negative_prompt=given.get("negative_prompt", ""),
            seed=number("seed", words.SEED, int),
            num_inference_steps=number("steps", words.STEPS, int),
            guidance_scale=number("guidance_scale", words.GUIDANCE, float),
            width=None,
            height=None,
            model=None,
            revision=None,
        ),
        model,
    )
    style = one_of("style", words.STYLE, list(styles))
    several = one_of("several", words.SEVERAL, ["0", "1"]) == "1"
    return fields._replace(style=style, several=several), notes + differences


def layout() -> gr.HTML:
    """Where the page says that it was filled from a link."""
    return gr.HTML(status.EMPTY, elem_id="linked", padding=False)


def connect(
    page: gr.Blocks,
    said: gr.HTML,
    fields: Sequence[Component],
    model: Model,
    styles: Mapping[str, Style],
) -> None:
    """Fills the page from the query of the address under which it is opened."""

    def fill(sender: gr.Request) -> tuple[Any, ...]:
        found = from_query(sender.query_params, model, styles)
        if found is None:
            return (gr.skip(),) * (len(fields) + 1)
        values, notes = found
        return *values, _said(notes)

    page.load(fill, None, [*fields, said], **AT_ONCE)


def _said(notes: list[str]) -> str:
    if notes:
        return status.warning(" ".join([words.LINK_NOT_USED, *notes]))
    return status.note(words.TAKEN_OVER)
