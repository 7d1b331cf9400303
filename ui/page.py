"""The page: its layout and its events."""

import inspect
import json
from dataclasses import dataclass
from html import escape

import gradio as gr
from gradio.components import Component

from pipeline.facts import Facts
from serving.generator import MAX_CHARACTERS, Generator
from ui import (
    app_name,
    beginning,
    chips,
    draft,
    form,
    history,
    i18n,
    link,
    live,
    looks,
    network,
    reading,
    restore,
    sample_pictures,
    start,
    status,
    waiting,
)
from ui.chips import Chips
from ui.events import AT_ONCE, IN_THE_STRIP
from ui.examples import hint_for
from ui.form import Form
from ui.generation import Drawing, Update
from ui.gradio_compat.programs import offer
from ui.gradio_compat.progress import leave_out_progress
from ui.model_kind import Kind, kind_of
from ui.pictures import embedding, picture_panel
from ui.pictures.embedding import Embedding
from ui.pictures.picture_panel import Panel
from ui.restore import Offer, Restorer
from ui.styles import styles_for

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

# Runs when the events of a request end. If they broke off, the strip still shows the request as
# running: it is resumed, and Stop stays in place of Generate.
_GENERATE_AGAIN = f"""(strip) => {{
  const running = strip.startsWith('{status.RUNNING}');
  return [!running, running].map((visible) => ({{ __type__: "update", visible }}));
}}"""

# Removes a refusal that names a field from the strip.
_DROP_REFUSAL = """(strip) => (
  strip.includes('data-field=') ? '' : { __type__: "update" }
)"""


@dataclass(frozen=True)
class Parts:
    """The components that events read and write."""

    prompt: gr.Textbox
    reading: gr.HTML
    negative_reading: gr.HTML
    surprise: gr.Button
    form: Form
    chips: Chips
    linked: gr.HTML
    offer: Offer
    generate: gr.Button
    stop: gr.Button
    strip: gr.HTML
    network: gr.HTML
    waiting: gr.HTML
    previews: gr.HTML
    gallery: gr.Gallery
    pictures: gr.State  # the `ui.pictures.saved.Picture`s in the gallery
    panel: Panel
    restorer: Restorer
    history: gr.HTML
    embedding: Embedding
    draft: gr.HTML  # the values of the fields, which the tab keeps
    request: gr.HTML  # the id of the newest request, so that a reload finds it again
    started: gr.HTML  # the picture to start from; the tab keeps it, and no request reads it here
    asked: gr.Textbox  # never in view; `history.WITH_LINK` fills it with that request's link
    app: gr.HTML  # the name of the element that the page is in; see `ui.app_name`

    @property
    def updated(self) -> list[Component]:
        """The components that a `ui.generation.Update` updates, in its order."""
        update = Update(
            strip=self.strip,
            previews=self.previews,
            gallery=self.gallery,
            pictures=self.pictures,
            panel=self.panel.column,
            texts=self.panel.texts,
            seed=self.form.parts["seed"],
            request_id=self.request,
            history=self.history,
            generate=self.generate,
            stop=self.stop,
        )
        return list(update)


def build_page(generator: Generator, *, programs: bool = True) -> gr.Blocks:
    """Return the page for one generator. Requests wait in the generator's queue, not in Gradio's.

    With `programs`, programs may call one function of the page, `/generate`.
    """
    kind = kind_of(generator.facts)
    title = i18n.title(generator.facts)
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        parts = _layout(generator.facts, kind)
        drawing = Drawing(generator, kind)
        _events(page, parts, drawing, generator)
        if programs:
            names = ", ".join(styles_for(kind))
            description = f"{inspect.getdoc(drawing.for_programs)}\n\nStyles: {names}."
            offer(page, drawing.for_programs, "generate", description)
    leave_out_progress(page)
    # With "auto" Gradio would tell every waiting call about every call that begins, and keep these
    # messages in memory for pages that do not listen.
    return page.queue(default_concurrency_limit=None, status_update_rate=60, api_open=programs)


def _layout(facts: Facts, kind: Kind) -> Parts:
    gr.HTML(_header(facts, kind), elem_id="header", padding=False)
    with gr.Row(elem_id="studio"):
        with gr.Column(elem_id="words"):
            with gr.Column(elem_id="ask"):
                prompt = gr.Textbox(
                    label=i18n.PROMPT_LABEL,
                    placeholder=hint_for(kind),
                    max_lines=8,  # `lines` stays 1, so that Enter sends
                    max_length=MAX_CHARACTERS,
                    autofocus=True,
                    elem_id="prompt",
                )
                prompt_reading = reading.layout("length")
                linked = link.layout()
                offer = restore.layout_offer()
                fields = form.create(facts, styles_for(kind), prompt)
                chip_buttons, restorer = chips.layout(facts, fields)
            with gr.Column(elem_id="act"):
                generate = gr.Button(
                    i18n.GENERATE, variant="primary", size="lg", elem_id="generate"
                )
                stop = gr.Button(i18n.STOP, size="lg", visible=False, elem_id="stop")
                strip = gr.HTML(status.EMPTY, elem_id="status", padding=False)
                network_note = network.layout()
                waiting_prompt = waiting.layout()
            with gr.Column(elem_id="more"):
                beginning.examples(kind)
                surprise_button = gr.Button(i18n.SURPRISE, size="sm", elem_id="surprise")
                embed, negative_reading = _advanced(fields)
        with gr.Column(elem_id="pictures"):
            with gr.Column(elem_id="stage"):
                previews = gr.HTML(status.EMPTY, elem_id="previews", padding=False)
                gallery = gr.Gallery(
                    label=i18n.GALLERY,
                    show_label=False,
                    columns=2,
                    height="auto",
                    object_fit="cover",
                    format="png",
                    interactive=False,
                    buttons=["download", "download_all", "fullscreen"],
                    elem_id="gallery",
                )
                gr.HTML(picture_panel.arrows(), elem_id="walk", padding=False)
                beginning.cards(kind)
            panel = picture_panel.layout(facts)
            requests = history.layout()
    gr.HTML(_footer(facts, kind), elem_id="footer", padding=False)
    return Parts(
        prompt=prompt,
        reading=prompt_reading,
        negative_reading=negative_reading,
        surprise=surprise_button,
        form=fields,
        chips=chip_buttons,
        linked=linked,
        offer=offer,
        generate=generate,
        stop=stop,
        strip=strip,
        network=network_note,
        waiting=waiting_prompt,
        previews=previews,
        gallery=gallery,
        pictures=gr.State([]),
        panel=panel,
        restorer=restorer,
        history=requests,
        embedding=Embedding(embed, embedding.kept()),
        draft=draft.kept_in_tab("draft", tells="linked"),
        request=draft.kept_in_tab("request", tells="kept"),
        started=draft.kept_in_tab("started", tells="kept"),
        asked=gr.Textbox(visible=False),
        app=app_name.layout(),
    )


def _advanced(fields: Form) -> tuple[gr.Checkbox, gr.HTML]:
    """Lay out the fields that few visitors need.

    Returns:
        The choice to save settings in the files, and the line under the negative prompt.
    """
    with gr.Accordion(i18n.ADVANCED, open=False, elem_id="advanced"):
        recipe, negative_prompt, *other_names = _ADVANCED
        fields.parts[recipe].render()
        fields.parts[negative_prompt].render()
        negative_reading = reading.layout("negative-length")
        for name in other_names:
            fields.parts[name].render()
        looks.layout_all()
        with gr.Accordion(i18n.EXPERT, open=False, elem_id="expert"):
            for name, field in fields.parts.items():
                if name not in ("prompt", *_ADVANCED, *chips.FIELDS):
                    field.render()
            embed = embedding.layout()
    fields.timer.render()
    return embed, negative_reading


def _events(page: gr.Blocks, parts: Parts, drawing: Drawing, generator: Generator) -> None:
    kind = kind_of(generator.facts)
    # Events that only the browser handles come first, because Gradio runs events in this order.
    draft.connect(
        page,
        parts.draft,
        [parts.request, parts.started],
        parts.form.inputs,
        parts.linked,
        parts.strip,
        generator.facts,
        styles_for(kind),
    )
    embedding.connect(
        page, parts.embedding, parts.gallery, parts.pictures, parts.panel.texts, generator
    )
    gr.on(
        [parts.prompt.submit, parts.generate.click],
        None,
        None,
        parts.linked,
        js="() => ''",
        **AT_ONCE,
    )
    corrected_names = ("negative_prompt", "seed", "scheduler", "sigma_schedule", "timesteps", "eta")
    input_events = [parts.form.parts[name].input for name in corrected_names]
    gr.on(
        [parts.prompt.submit, parts.generate.click, parts.prompt.change, *input_events],
        None,
        parts.strip,
        parts.strip,
        js=_DROP_REFUSAL,
        **AT_ONCE,
    )
    # With one line Enter sends; with several it begins a new line. Only the browser handles this
    # event, so that it applies to the very next key.
    several = parts.form.parts["several"]
    several.change(
        None,
        several,
        parts.prompt,
        js="(several) => ({ __type__: 'update', lines: several ? 4 : 1 })",
        **AT_ONCE,
    )
    fields = [parts.embedding.kept, parts.app, *parts.form.inputs]
    generate_event = gr.on(
        [parts.prompt.submit, parts.generate.click],
        drawing.for_page,
        fields,
        parts.updated,
        js=start.WITH_PICTURE,
        **IN_THE_STRIP,
    )
    lines = [parts.reading, parts.negative_reading]
    reading.connect(lines, parts.form, generator, styles_for(kind))
    form.hide_unused(parts.form)
    beginning.connect(parts.surprise, parts.prompt, kind)
    styles = styles_for(kind)
    restore.connect_offer(
        parts.offer, parts.prompt, parts.form.inputs, parts.strip, generator, styles
    )
    restore.connect(parts.restorer, parts.form.inputs, parts.strip, generator, styles)
    new_seed = picture_panel.connect(
        parts.panel,
        parts.app,
        parts.gallery,
        parts.pictures,
        parts.form.inputs,
        parts.embedding.kept,
        parts.strip,
        generator,
    )
    new_seed_event = new_seed.then(
        drawing.for_page,
        fields,
        parts.updated,
        js=start.WITH_ITS_PICTURE,
        **IN_THE_STRIP,
    )
    start_inputs = [parts.app, parts.app, parts.pictures]
    variations_event = parts.panel.variations.click(
        drawing.variations,
        [*start_inputs, parts.panel.strength, parts.embedding.kept],
        parts.updated,
        js=start.WITH_KEY_AND_ITS_PICTURE,
        **IN_THE_STRIP,
    )
    larger_event = parts.panel.larger.click(
        drawing.larger,
        [parts.app, parts.pictures, parts.embedding.kept],
        parts.updated,
        js=picture_panel.WITH_KEY,
        **IN_THE_STRIP,
    )
    finish_event = parts.panel.finish.click(
        drawing.finish,
        [*start_inputs, parts.embedding.kept],
        parts.updated,
        js=start.WITH_KEY_AND_ITS_PICTURE,
        **IN_THE_STRIP,
    )
    link.connect(parts.linked, parts.form.inputs, parts.draft, generator, styles_for(kind))
    parts.history.change(None, [parts.history, parts.app], None, js=history.ANNOUNCE, **AT_ONCE)
    history_event = history.connect(
        parts.history,
        parts.gallery,
        parts.strip,
        parts.form.inputs,
        drawing.again,
        parts.embedding.kept,
        parts.updated,
        generator,
        styles_for(kind),
    )
    form.connect(page, parts.form, parts.chips.buttons["size"], generator)
    chips.connect(parts.chips, parts.form, parts.started, parts.app, generator)
    request_inputs = [parts.request, parts.embedding.kept, parts.asked]
    reload_event = parts.request.select(
        drawing.again, request_inputs, parts.updated, js=history.WITH_LINK, **IN_THE_STRIP
    )
    resume_event = network.connect(
        parts.network, drawing.resume, request_inputs, parts.updated, history.WITH_LINK
    )
    waiting_event = waiting.connect(
        parts.waiting, drawing.waited, fields, parts.updated, start.WITH_PICTURE
    )
    for event in (
        *(generate_event, new_seed_event, variations_event, larger_event, finish_event),
        *(history_event, reload_event, resume_event, waiting_event),
    ):
        # Gradio ignores a press of Generate until the previous run has ended: show it only then.
        buttons = [parts.generate, parts.stop]
        event.then(None, parts.strip, buttons, js=_GENERATE_AGAIN, **AT_ONCE)
    parts.stop.click(drawing.stop, parts.request, **AT_ONCE)


def _header(facts: Facts, kind: Kind) -> str:
    # `lang` tells the scripts which language the browser chose. `data-page` holds what they add to
    # Gradio's page: some translated names, the styles' pictures and the largest file size.
    # `data-masks` says that requests need a picture and a mask.
    names = {getattr(i18n.en, name): getattr(i18n, name) for name in history.TEXTS}
    names |= i18n.CONTROLS
    pictures = sample_pictures.STYLES.addresses(kind)
    page_data = {"names": names, "pictures": pictures, "most": restore.MOST_BYTES}
    data = json.dumps(page_data | {"looks": looks.texts(), "live": live.texts()})
    title, line, data = map(escape, (i18n.title(facts), i18n.model_line(facts, kind), data))
    masks = " data-masks" if facts.needs_mask else ""
    return f'<h1 lang="{i18n.LANGUAGE}" data-page="{data}"{masks}>{title}</h1><p>{line}</p>'


def _footer(facts: Facts, kind: Kind) -> str:
    limits = escape(i18n.MINIATURE_LIMITS if kind is Kind.MINIATURE else i18n.LIMITS)
    return f"<p>{limits} {_licence(facts, kind)}</p>"


def _licence(facts: Facts, kind: Kind) -> str:
    # Models that are made from SDXL and named after it may have other licences.
    is_published = kind is Kind.MINIATURE or facts.name in _PUBLISHED
    if kind not in _LICENCES or not is_published:
        return escape(i18n.OWN_LICENCE)
    name, address = _LICENCES[kind]
    text = escape(f"{i18n.LICENCE}: {name}")
    return f'<a href="{address}" target="_blank" rel="noopener">{text}</a>'
