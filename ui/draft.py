"""Kept values of the page's fields: a reload finds what was typed and chosen.

The tab keeps them, as `static/relay.js` says.
"""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.facts import Facts
from pipeline.request import VALUES
from pipeline.setting_kinds import Choice, Number, OwnNumber, Whole
from serving.generator import MAX_CHARACTERS
from ui import form
from ui.fields import highest
from ui.form import ALL, USUAL, Fields
from ui.relay import of_app
from ui.styles import Style
from ui.wiring import Wiring

_TYPES = {str: "string", bool: "boolean", int: "number", float: "number"}  # the browser's
_KEEP = '(fields) => ({ relay: { __type__: "update", props: { draft: fields } } })'


def connect(wiring: Wiring, facts: Facts, styles: Mapping[str, Style]) -> None:
    """Put the kept values into the fields when the page is opened, and keep every change.

    Only the browser handles these events, so that nobody can type before the values are there.
    Then the relay may tell the server of other values that the tab kept.
    """
    names = Fields._fields
    updates = [*names, "relay"]
    wiring.on("page.load", reads=["relay"], updates=updates, js=_restore(facts, styles))
    # Fields out of sight do not report that the page has filled them; the messages tell of that.
    changes = " ".join(f"{name}.change" for name in (*names, "linked", "strip"))
    wiring.on(changes, reads=names, updates=["relay"], js=_KEEP)


def _restore(facts: Facts, styles: Mapping[str, Style]) -> str:
    """Return the browser's function that puts kept values into the fields that can take them.

    The tab may have kept the values from an older version of the page, or for another model.
    """
    return f"""({{ relay }}) => {{
      const fits = (value, {{ type, among, low, high, whole }}) => among
        ? among.includes(value)
        : typeof value === type && !(value < low || value > high)
          && !(value.length > {MAX_CHARACTERS}) && !(whole && !Number.isInteger(value));
      const kept = {of_app("kept.draft")};
      const fields = Object.entries({json.dumps(_possible(facts, styles))})
        .filter(([name, possible]) => fits(kept?.[name], possible))
        .map(([name]) => [name, kept[name]]);
      const opened = {{ __type__: "update", props: {{ opened: true }} }};
      return {{ ...Object.fromEntries(fields), relay: opened }};
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
