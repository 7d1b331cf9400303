"""Settings in the query of a link to the page, under the names that programs use for them.

The browser's history keeps the same text. A link may have been typed by hand, so it is checked like
a visitor's own input.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from pipeline.facts import Facts
from pipeline.images.metadata import Settings
from pipeline.request import SETTINGS, VALUES, effective, with_own_names
from pipeline.setting_kinds import Choice, Number, Setting
from pipeline.text.prompt_syntax import PLAIN
from serving.generator import Generator
from serving.messages import Code, Message, Param
from ui import i18n, status
from ui.form import requests, settings
from ui.form.fields import ALL, USUAL, Fields
from ui.samples.styles import NONE, Style
from ui.wiring import Call, Updates, Wiring

NAMES = (
    "prompt",
    "negative_prompt",
    "style",
    *(setting.link for setting in VALUES),
    "several",
    "size",
    "images",
)
_TYPED = ("prompt", "negative_prompt")


def to_query(fields: Fields) -> str:
    """Return the query of a link, with its `?`; it has no seed if the seed is to be random.

    It has no syntax if the prompts mean the same in all of them.
    """
    if requests.read_as_plain(fields.prompt, fields.negative_prompt):
        fields = fields._replace(prompt_syntax=PLAIN)
    numbers = effective({setting.name: getattr(fields, setting.link) for setting in VALUES})
    values = {
        "prompt": fields.prompt,
        "negative_prompt": fields.negative_prompt,
        "style": "" if fields.style == NONE else fields.style,
        **{SETTINGS[name].link: _short(value) for name, value in numbers.items()},
        "several": "1" if fields.several else "",
        "size": fields.size,
        "images": str(fields.images or ""),
    }
    if fields.randomise:
        del values["seed"]
    parameters = {name: value for name, value in values.items() if value}
    return "?" + urlencode(parameters, quote_via=quote, errors="replace")


def _short(value: float | str) -> str:
    return str(value).removesuffix(".0")


def from_query(
    query: Mapping[str, str], facts: Facts, styles: Mapping[str, Style]
) -> tuple[Fields, list[str]] | None:
    """Return values for the page's fields, and notes on values that could not be used unchanged.

    Return None for a link without settings. Parameters of other names are ignored.
    """
    parameters = {name: query[name] for name in NAMES if name in query}
    if not parameters:
        return None
    parameters = with_own_names(parameters)
    if parameters.get("seed") == "-1":  # a random one, as in AUTOMATIC1111's texts
        del parameters["seed"]
    notes: list[str] = []

    def value(setting: Setting) -> Any:
        """Return a setting's value, which may be out of range; a text may be none at all."""
        text = parameters.get(setting.link)
        if text is None:
            return "" if isinstance(setting, Choice) else None  # the model's own
        if isinstance(setting, Number):
            with suppress(ValueError):
                number = setting.kind(text)
                if number == number:  # NaN does not equal itself
                    return number
            code = Code.NOT_A_NUMBER
        elif fault := setting.fault(text):
            code = Code(fault.code)
        else:
            return text
        params: dict[str, Param] = {**setting.limits, "field": setting.name, "value": text}
        notes.append(i18n.translate(Message(code, params)))
        return None

    def one_of(name: str, choices: list[str], usual: int = 0) -> str:
        text = parameters.get(name, choices[usual])
        if text in choices:
            return text
        params: dict[str, Param] = {"field": name, "value": text, "choices": choices}
        notes.append(i18n.translate(Message(Code.UNKNOWN_CHOICE, params)))
        return choices[usual]

    query_settings = Settings(
        prompt=parameters.get("prompt", ""),
        negative_prompt=parameters.get("negative_prompt", ""),
        **{setting.name: value(setting) for setting in VALUES},
    )
    style = one_of("style", list(styles))
    fields, differences = settings.as_fields(query_settings, facts)
    several = one_of("several", ["0", "1"]) == "1"
    sizes = facts.for_known(parameters.get("model", "")).size_names
    size = one_of("size", [*sizes])
    size = USUAL if size == sizes[0] else size
    max_images = facts.images_per_request
    count = one_of("images", [*map(str, range(1, max_images + 1))], usual=-1)
    images = ALL if count == str(max_images) else int(count)
    changes = {"style": style, "several": several, "size": size, "images": images}
    return fields._replace(**changes), notes + differences


def connect(wiring: Wiring, generator: Generator, styles: Mapping[str, Style]) -> None:
    """Fill the page's fields from the query of its address, unless the tab kept their values."""

    def fill(call: Call) -> Updates:
        query = call.sender.query_params
        result = from_query(query, generator.facts, styles)
        if result is None:
            return {}
        fields, notes = result
        # A text that was typed before this answer came is not overwritten with nothing.
        unnamed = [name for name in _TYPED if name not in query]
        values = {name: value for name, value in fields.shown().items() if name not in unnamed}
        notes = [i18n.LINK_NOT_USED, *notes] if notes else []
        return values | {"status": status.taken_over(notes)}

    wiring.on("relay.linked", fill, updates=[*Fields._fields, "status"])
