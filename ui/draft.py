"""Values that the page keeps for its tab.

They are those of the fields, the id of the newest request, and the picture to start from.

Reloads, Back and Forward find them again, but no other tab does. A duplicated tab begins with them.

Most visits need nothing of the server when the page is opened. The parts tell of those that do, by
their event `select`: every call makes Gradio render all components that it could change.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import gradio as gr

from pipeline.facts import Facts
from pipeline.request import VALUES
from pipeline.setting_kinds import Choice, Number, OwnNumber, Whole
from serving.generator import MAX_CHARACTERS
from ui import form, link
from ui.events import AT_ONCE
from ui.fields import highest
from ui.form import ALL, USUAL, Fields
from ui.styles import Style

SCRIPT = Path(__file__).parent / "static" / "draft.js"


def kept_in_tab(name: str, tells: Literal["kept", "linked"]) -> gr.HTML:
    """Return an invisible part of the page whose value the tab keeps under this name.

    Its value is None at first, and again when the page is opened by a link with settings. Do not
    lay it out in a part that may stay closed.

    Args:
        name: what the value is kept under.
        tells: when the event `select` follows the opening of the page: if a value was `kept`, or
            if none was and the page was opened by a link with settings.
    """
    return gr.HTML(
        html_template="<div data-kept></div>",
        js_on_load=SCRIPT.read_text(encoding="utf-8"),
        visible="hidden",
        elem_id=name,
        storage_key=f"sdxl-{name}",
        settings=link.NAMES,
        tells=tells,
    )


def connect(
    page: gr.Blocks,
    draft: gr.HTML,
    kept_parts: Sequence[gr.HTML],
    fields: Sequence[Any],
    message: gr.HTML,
    strip: gr.HTML,
    facts: Facts,
    styles: Mapping[str, Style],
) -> None:
    """Put the kept values into the fields when the page is opened, and keep every change.

    Only the browser handles these events, so that nobody can type before the values are there.
    Then `draft` and the other `kept_parts` may tell the server about the values that the tab kept.
    """
    outputs = [*fields, draft, *kept_parts]
    js = _restore(facts, styles, len(kept_parts) + 1)
    page.load(None, draft, outputs, js=js, **AT_ONCE)
    # Fields out of sight do not report that the page has filled them; the messages tell of that.
    changes = [part.change for part in (*fields, message, strip)]
    gr.on(changes, None, fields, draft, js=_KEEP, **AT_ONCE)


_TYPES = {str: "string", bool: "boolean", int: "number", float: "number"}  # the browser's
_NAMES = json.dumps(Fields._fields)
_KEEP = f"(...values) => Object.fromEntries({_NAMES}.map((name, i) => [name, values[i]]))"


def _restore(facts: Facts, styles: Mapping[str, Style], parts: int) -> str:
    """Return the browser's function that puts kept values into the fields that can take them.

    The tab may have kept the values from an older version of the page, or for another model. After
    the values, the function tells as many `parts` as given here that the page is opened.
    """
    return f"""(kept) => {{
      const fits = (value, {{ type, among, low, high, whole }}) => among
        ? among.includes(value)
        : typeof value === type && !(value < low || value > high)
          && !(value.length > {MAX_CHARACTERS}) && !(whole && !Number.isInteger(value));
      const possible = {json.dumps(_possible(facts, styles))};
      const fields = Object.keys(possible).map((name) => (
        fits(kept?.[name], possible[name]) ? kept[name] : {{ __type__: "update" }}
      ));
      const opened = {{ __type__: "update", props: {{ opened: true }} }};
      return [...fields, ...Array({parts}).fill(opened)];
    }}"""


def _possible(facts: Facts, styles: Mapping[str, Style]) -> dict[str, dict[str, Any]]:
    """Return which values each field can have."""
    sizes = map("{0[0]}x{0[1]}".format, (*facts.more_sizes, *facts.coming_sizes))
    numbers = [
        setting.for_model(facts)
        for setting in VALUES
        if isinstance(setting, Number) and not isinstance(setting, OwnNumber)
    ]
    return {
        **{
            name: {"type": _TYPES[type(default)] if default is not None else "string"}
            for name, default in Fields()._asdict().items()
        },
        **{
            setting.link: {
                "type": "number",
                "low": form.as_shown(setting, setting.low),
                "high": form.as_shown(setting, highest(setting)),
                "whole": isinstance(setting, Whole),
            }
            for setting in numbers
        },
        **{
            setting.link: {"among": ["", *setting.for_model(facts).choices]}
            for setting in VALUES
            if isinstance(setting, Choice)
        },
        "style": {"among": [*styles]},
        "size": {"among": [USUAL, *sizes]},
        "images": {"among": [ALL, *range(1, facts.images_per_request)]},
    }
