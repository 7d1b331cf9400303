"""The page: its layout and its events."""

import inspect
import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import gradio as gr

from pipeline.facts import Facts
from pipeline.request import SETTINGS
from serving.generator import MAX_CHARACTERS, Generator
from ui import i18n, live, looks, relay, scripts
from ui.form import components, link
from ui.form.fields import FIELDS, Fields
from ui.gradio_compat.programs import offer
from ui.gradio_compat.progress import leave_out_progress
from ui.i18n.numbers import hardware
from ui.page import beginning, chips, history, reading, restore
from ui.page.generation import UPDATED, Drawing
from ui.pictures import embedding, picture_panel
from ui.relay import RELAY, of_app
from ui.samples import sample_pictures
from ui.samples.examples import hint_for
from ui.samples.model_kind import Kind, kind_of
from ui.samples.styles import styles_for
from ui.wiring import Call, Wiring

_LICENCES = {
    Kind.MINIATURE: ("Apache 2.0", "https://www.apache.org/licenses/LICENSE-2.0"),
    Kind.SDXL: (
        "CreativeML Open RAIL++-M",
        "https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0/blob/main/LICENSE.md",
    ),
}
# Names of the published model: on the Hub, and in a local folder.
_PUBLISHED = ("stabilityai/stable-diffusion-xl-base-1.0", "stable-diffusion-xl-base-1.0")
# All other fields are for experts.
_ADVANCED = ("recipe", "negative_prompt", "model", "prompt_syntax", "guidance_scale", "steps")

_LINE = '<div data-line></div><p class="note" role="status" data-aside></p>'
# With one line Enter sends; with several it begins a new line.
_LINES = "({ several }) => ({ prompt: { __type__: 'update', lines: several ? 4 : 1 } })"
_SENDS = "prompt.submit generate.click"


def build_page(generator: Generator, *, programs: bool = True, guarded: bool = False) -> gr.Blocks:
    """Return the page for one generator. Requests wait in the generator's queue, not in Gradio's.

    With `programs`, programs may call one function of the page, `/generate`. With `guarded`,
    visitors have signed in and can sign out.
    """
    kind = kind_of(generator.facts)
    title = i18n.text("title", family=generator.facts.family)
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        wiring, drawing = Wiring(page), Drawing(generator, kind)
        _layout(wiring, generator.facts, kind, guarded)
        _connect(wiring, drawing, generator, kind)
        if programs:
            names = ", ".join(styles_for(kind))
            description = f"{inspect.getdoc(drawing.for_programs)}\n\nStyles: {names}."
            offer(page, drawing.for_programs, "generate", description)
    leave_out_progress(page)
    # With "auto" Gradio would tell every waiting call about every call that begins, and keep these
    # messages in memory for pages that do not listen.
    return page.queue(default_concurrency_limit=None, status_update_rate=60, api_open=programs)


def _layout(wiring: Wiring, facts: Facts, kind: Kind, guarded: bool) -> None:
    gr.HTML(_header(facts, kind, guarded), elem_id="header", padding=False)
    with gr.Row(elem_id="studio"):
        with gr.Column(elem_id="words"):
            with gr.Column(elem_id="ask"):
                prompt = gr.Textbox(
                    label=i18n.PROMPT_LABEL,
                    placeholder=hint_for(kind),
                    max_lines=8,  # `lines` stays 1, so that Enter sends
                    max_length=MAX_CHARACTERS,
                    elem_id="prompt",
                )
                wiring.add("prompt", prompt)
                beginning.die(wiring)
                reading.layout(wiring, "length")
                restore.layout_offer(wiring)
                components.create(wiring, facts, styles_for(kind))
                chips.layout(wiring, facts)
            with gr.Column(elem_id="act"):
                large: dict[str, Any] = {"size": "lg"}
                generate = gr.Button(i18n.GENERATE, variant="primary", elem_id="generate", **large)
                wiring.add("generate", generate)
                wiring.add("stop", gr.Button(i18n.STOP, elem_id="stop", **large))
                line = gr.HTML(
                    html_template=_LINE,
                    js_on_load=scripts.part("status", "next"),
                    apply_default_css=False,
                    padding=False,
                    elem_id="status",
                )
                wiring.add("status", line)
            with gr.Column(elem_id="more"):
                _advanced(wiring)
        with gr.Column(elem_id="pictures"):
            with gr.Column(elem_id="stage"):
                gr.HTML(elem_id="previews", padding=False)  # `network.js` fills it
                gallery = gr.Gallery(
                    label=i18n.GALLERY,
                    show_label=False,
                    columns=2,
                    height="auto",
                    object_fit="cover",
                    format="png",
                    interactive=False,
                    buttons=["download_all"],
                    elem_id="gallery",
                )
                wiring.add("gallery", gallery)
                wiring.add("pictures", gr.State([]))  # the `ui.pictures.saved.Picture`s there
                gr.HTML(picture_panel.arrows(), elem_id="walk", padding=False)
                beginning.cards(kind)
            with gr.Column(elem_id="side"):
                picture_panel.layout(wiring)
                history.layout(wiring)
    gr.HTML(_footer(facts, kind), elem_id="footer", padding=False)
    wiring.add(RELAY, relay.layout(link.NAMES))


def _advanced(wiring: Wiring) -> None:
    """Lay out the fields that few visitors need."""
    with gr.Accordion(i18n.ADVANCED, open=False, elem_id="advanced"):
        recipe, negative_prompt, *other_names = _ADVANCED
        wiring[recipe].render()
        wiring[negative_prompt].render()
        reading.layout(wiring, "negative-length")
        for name in other_names:
            wiring[name].render()
        looks.layout_all()
        with gr.Accordion(i18n.EXPERT, open=False, elem_id="expert"):
            for name in (*(SETTINGS[name].link for name in FIELDS), "several"):
                if name not in (*_ADVANCED, *chips.FIELDS):
                    wiring[name].render()
            embedding.layout(wiring)
    wiring["timer"].render()


def _connect(wiring: Wiring, drawing: Drawing, generator: Generator, kind: Kind) -> None:
    styles, fields = styles_for(kind), Fields._fields
    # Events that only the browser handles come first, because Gradio runs events in this order.
    components.connect_draft(wiring, generator.facts, styles)
    embedding.connect(wiring, generator)
    undo = f"({{ relay }}) => {of_app('undo()')}"
    wiring.on("status.undo", reads=[RELAY], updates=fields, js=undo)
    # Only the browser handles this event, so that it applies to the very next key.
    wiring.on("several.change", reads=["several"], updates=["prompt"], js=_LINES)

    def draws(
        triggers: Any,
        handler: Callable[[Call], Any],
        reads: Sequence[str] = (),
        tells: Sequence[str] = (),
        **options: Any,
    ) -> None:
        tells = ["press", *tells]
        wiring.on(triggers, handler, reads=reads, tells=tells, updates=UPDATED, **options)

    draws(_SENDS, drawing.for_page, fields, ["start"])
    reading.connect(wiring, generator, styles)
    components.hide_unused(wiring)
    beginning.connect(wiring, kind)
    restore.connect_offer(wiring, generator, styles)
    restore.connect(wiring, generator, styles)
    picture_panel.connect(wiring, generator)
    for event, handler in (
        ("new_seed", drawing.new_seed),
        ("vary", drawing.vary),
        ("larger", drawing.larger),
        ("finish", drawing.finish),
    ):
        draws(f"bar.{event}", handler, ["pictures"], ["began"])
    link.connect(wiring, generator, styles)
    # Another may follow before the last has ended.
    several: dict[str, Any] = {"trigger_mode": "multiple"}
    wiring.on("history.select", drawing.chosen, tells=(), updates=UPDATED, **several)
    history.connect(wiring, generator, styles)
    components.connect(wiring, generator)
    chips.connect(wiring, generator)
    wiring.on("relay.request_kept", drawing.again, tells=(), updates=UPDATED)
    wiring.on("status.select", drawing.ended, tells=(), updates=UPDATED, **several)
    draws("status.next", drawing.waited, fields, ["start"], **several)
    wiring.on("stop.click", drawing.stop, tells=())


def _header(facts: Facts, kind: Kind, guarded: bool) -> str:
    # `lang` tells the scripts which language the browser chose. `data-page` holds what they add to
    # Gradio's page: some translated names, the styles' pictures and the largest file size.
    # `data-masks` says that requests need a picture and a mask.
    pictures = sample_pictures.STYLES.addresses(kind)
    page_data = {"names": i18n.CONTROLS, "pictures": pictures, "most": restore.MOST_BYTES}
    page_data |= {"looks": looks.texts(), "live": live.texts(), "prompt": i18n.PROMPT_BUTTONS}
    data = json.dumps(page_data | {"actions": i18n.ACTIONS, "status": i18n.STATUS})
    title = i18n.text("title", family=facts.family)
    line = i18n.DEMO if kind is Kind.MINIATURE else facts.name
    title, line, data = map(escape, (title, line, data))
    masks = " data-masks" if facts.needs_mask else ""
    button = (
        f'<form method="post" action="sign-out"><button>{escape(i18n.SIGN_OUT)}</button></form>'
    )
    return (
        f'<h1 lang="{i18n.language()}" data-page="{data}"{masks}>{title}</h1><p>{line}</p>'
        f"{button if guarded else ''}"
    )


def _footer(facts: Facts, kind: Kind) -> str:
    limits = escape(i18n.MINIATURE_LIMITS if kind is Kind.MINIATURE else i18n.LIMITS)
    line = i18n.text(
        "model_line",
        model=i18n.MINIATURE if kind is Kind.MINIATURE else facts.name,
        size=i18n.size(facts.sizes[0]),
        hardware=hardware(facts),
    )
    return f"<p>{limits}</p><p>{escape(line)} · {_licence(facts, kind)}</p>"


def _licence(facts: Facts, kind: Kind) -> str:
    # Models that are made from SDXL and named after it may have other licences.
    is_published = kind is Kind.MINIATURE or facts.name in _PUBLISHED
    if kind not in _LICENCES or not is_published:
        return escape(i18n.OWN_LICENCE)
    name, address = _LICENCES[kind]
    text = escape(i18n.text("licence", name=name))
    return f'<a href="{address}" target="_blank" rel="noopener">{text}</a>'
