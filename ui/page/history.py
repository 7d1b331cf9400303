"""The history: this browser's own requests, which are kept in the browser.

A filmstrip under the gallery shows the pictures of this visit's requests, and a list shows all
requests. This module tells both about requests, and restores the settings of an entry that is
chosen. An entry holds its settings as the query of a link, which is read like any other link.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from pipeline.facts import Facts
from ui import i18n, scripts, status
from ui.form import link
from ui.form.fields import Fields
from ui.samples.styles import NONE, Style
from ui.wiring import Call, Updates, Wiring

# Texts that the markup has in English, and `repairs.js` translates.
TEXTS = ("HISTORY", "HISTORY_INFO", "CLEAR_HISTORY", "HISTORY_CLEARED", "UNDO")


def layout(wiring: Wiring) -> None:
    """Lay out the filmstrip and the closed list, which are hidden until there is a choice."""
    title, info, clear, cleared, undo = (escape(getattr(i18n, name)) for name in TEXTS)
    part = gr.HTML(
        html_template='<div data-strip hidden><div role="toolbar" aria-labelledby="history-open">'
        '</div><button type="button" id="history-open" aria-expanded="false" '
        f'aria-controls="history-list" data-named>{title}</button></div>'
        f'<div id="history-list" data-list hidden><p data-named>{info}</p><ol></ol>'
        f'<button type="button" data-clear data-named>{clear}</button></div>'
        f'<p data-cleared role="status" hidden><span data-named>{cleared}</span> '
        f'<button type="button" data-undo data-named>{undo}</button></p>',
        js_on_load=scripts.part("history"),
        apply_default_css=False,
        elem_id="history",
    )
    wiring.add("history", part)


def asked(request_id: str, fields: Fields) -> dict[str, Any]:
    """Return the new entry of the list for a request that was sent."""
    return {"id": request_id, "link": link.to_query(fields), "said": _summary(fields)}


def _summary(fields: Fields) -> str:
    """Return a request's settings in one line."""
    guidance = float(f"{fields.guidance_scale:g}")
    values: dict[str, Any] = {"seed": fields.seed}
    if fields.recipe:  # it sets the others
        values["recipe"] = fields.recipe
    else:
        values["num_inference_steps"] = fields.steps
        values["guidance_scale"] = int(guidance) if guidance.is_integer() else guidance
    parts = [f"{i18n.SETTINGS[name].label} {i18n.written(value)}" for name, value in values.items()]
    style = [] if fields.style == NONE else [i18n.STYLES[fields.style]]
    return " · ".join([*style, *parts])


def drawn(request_id: str, files: Sequence[Path]) -> dict[str, Any]:
    """Return the message that tells the list which files hold a request's finished pictures."""
    return {"id": request_id, "drawn": [f"{file.parent.name}/{file.name}" for file in files]}


def restored(call: Call, facts: Facts, styles: Mapping[str, Style]) -> tuple[Updates, str]:
    """Return updates with the settings of a chosen entry, and the id of its request."""
    query, request_id = _chosen(call.data)
    result = link.from_query(dict(parse_qsl(query)), facts, styles)
    if result is None:
        return {}, ""
    values, notes = result
    updates = values.shown() | {"gallery": gr.Gallery(selected_index=None)}
    return updates | {"status": status.taken_over(notes)}, request_id


def _chosen(data: object) -> tuple[str, str]:
    """Return the query and the id of the entry that a browser chose; `data` may be anything."""
    values = data if isinstance(data, dict) else {}
    query, request_id = (str(values.get(name) or "") for name in ("link", "id"))
    return query.removeprefix("?"), request_id
