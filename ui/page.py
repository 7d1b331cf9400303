"""The page: what is where, and what each press sets off."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from random import Random
from typing import NamedTuple

import gradio as gr
from gradio.components import Component
from gradio.events import api

from serving.generator import MAX_CHARACTERS, MAX_SEED, Generator, Model
from ui import link, picked, restore, sizes, status, words
from ui.drawing import Drawing, Shown
from ui.events import AT_ONCE, IN_THE_STRIP
from ui.examples import examples_for, surprise
from ui.kinds import Kind, kind_of
from ui.picked import Panel
from ui.restore import Restorer
from ui.settings import MAX_GUIDANCE
from ui.sizes import Sizes
from ui.styles import NONE, styles_for

STORAGE_KEY = "sdxl-request"


@dataclass(frozen=True)
class Parts:
    """The components that events read and write."""

    prompt: gr.Textbox
    length: gr.HTML
    surprise: gr.Button
    style: gr.Radio
    several: gr.Checkbox
    linked: gr.HTML
    generate: gr.Button
    stop: gr.Button
    strip: gr.HTML
    looks: gr.HTML
    gallery: gr.Gallery
    pictures: gr.State  # the `Settings` of what the gallery shows
    panel: Panel
    restorer: Restorer
    seed: gr.Number
    sizes: Sizes
    settings: Sequence[Component]  # as `Drawing.for_page` takes them
    request: gr.BrowserState  # the id of the newest request, so that a reload finds it again

    @property
    def shown(self) -> list[Component]:
        """What `ui.drawing.Shown` goes to."""
        shown = Shown(
            strip=self.strip,
            looks=self.looks,
            gallery=self.gallery,
            pictures=self.pictures,
            panel=self.panel.column,
            seed=self.seed,
            request_id=self.request,
            generate=self.generate,
            stop=self.stop,
        )
        return list(shown)


def build_page(generator: Generator, delete_cache: tuple[int, int] = (600, 3600)) -> gr.Blocks:
    """The page for one generator, whose queue is the only one: nothing waits in Gradio's.

    `delete_cache`: every so many seconds, files of pictures older than so many are deleted.
    """
    kind = kind_of(generator.model)
    title = words.title(generator.model)
    with gr.Blocks(title=title, delete_cache=delete_cache, analytics_enabled=False) as page:
        parts = _layout(generator.model, kind)
        drawing = Drawing(generator, kind)
        _events(page, parts, drawing, generator)
        api(
            drawing.for_programs,
            api_name="generate",
            api_description=inspect.getdoc(drawing.for_programs),
        )
    return page.queue(default_concurrency_limit=None)


def _layout(model: Model, kind: Kind) -> Parts:
    gr.HTML(_header(model, kind), elem_id="header", padding=False)
    with gr.Row(elem_id="studio"):
        with gr.Column(elem_id="ask"):
            prompt = gr.Textbox(
                label=words.PROMPT_LABEL,
                placeholder=words.PROMPT_HINT[kind],
                max_lines=8,  # and `lines` at 1, so that Enter sends
                max_length=MAX_CHARACTERS,
                autofocus=True,
                elem_id="prompt",
            )
            length = gr.HTML(status.EMPTY, elem_id="length", padding=False)
            linked = link.layout()
            generate = gr.Button(words.GENERATE, variant="primary", size="lg", elem_id="generate")
            stop = gr.Button(words.STOP, size="lg", visible=False, elem_id="stop")
        with gr.Column(elem_id="pictures"):
            strip = gr.HTML(status.EMPTY, elem_id="status", padding=False)
            with gr.Column(elem_id="stage"):
                looks = gr.HTML(status.EMPTY, elem_id="looks", padding=False)
                gallery = gr.Gallery(
                    label=words.GALLERY,
                    show_label=False,
                    columns=2,
                    height="auto",
                    object_fit="cover",
                    format="png",
                    interactive=False,
                    buttons=["download", "download_all", "fullscreen"],
                    elem_id="gallery",
                )
            panel = picked.layout()
        with gr.Column(elem_id="more"):
            gr.Examples(
                [[example] for example in examples_for(kind)],
                [prompt],
                label=words.EXAMPLES,
                api_visibility="private",
                elem_id="examples",
            )
            surprised = gr.Button(words.SURPRISE, size="sm", elem_id="surprise")
            advanced = _advanced(model, kind)
            restorer = restore.layout()
    gr.HTML(_footer(kind), elem_id="footer", padding=False)
    return Parts(
        prompt=prompt,
        length=length,
        surprise=surprised,
        style=advanced.style,
        several=advanced.several,
        linked=linked,
        generate=generate,
        stop=stop,
        strip=strip,
        looks=looks,
        gallery=gallery,
        pictures=gr.State([]),
        panel=panel,
        restorer=restorer,
        seed=advanced.seed,
        sizes=advanced.sizes,
        settings=[prompt, *advanced.settings],
        request=gr.BrowserState(storage_key=STORAGE_KEY),
    )


class Advanced(NamedTuple):
    """What can be set but the prompt; `settings` are all of it, as `Drawing.for_page` takes it."""

    style: gr.Radio
    seed: gr.Number
    several: gr.Checkbox
    sizes: Sizes
    settings: Sequence[Component]


def _advanced(model: Model, kind: Kind) -> Advanced:
    with gr.Accordion(words.ADVANCED, open=False, elem_id="advanced"):
        style = gr.Radio(list(styles_for(kind)), value=NONE, label=words.STYLE, elem_id="style")
        offered = sizes.layout(model)
        negative = gr.Textbox(
            label=words.NEGATIVE,
            info=words.NEGATIVE_INFO,
            max_length=MAX_CHARACTERS,
            elem_id="negative",
        )
        guidance = gr.Slider(
            0,
            MAX_GUIDANCE,
            5,
            step=0.5,
            label=words.GUIDANCE,
            info=words.GUIDANCE_INFO,
            elem_id="guidance",
        )
        until = gr.Slider(
            0,
            1,
            1,
            step=0.05,
            label=words.GUIDANCE_UNTIL,
            info=words.GUIDANCE_UNTIL_INFO,
            elem_id="guidance-until",
        )
        steps = gr.Slider(
            1,
            model.max_inference_steps,
            model.num_inference_steps,
            step=1,
            label=words.STEPS,
            info=words.STEPS_INFO,
            elem_id="steps",
        )
        seed = gr.Number(
            0,
            precision=0,
            minimum=0,
            maximum=MAX_SEED,
            label=words.SEED,
            info=words.SEED_INFO,
            elem_id="seed",
        )
        randomise = gr.Checkbox(True, label=words.RANDOMISE, elem_id="randomise")
        several = gr.Checkbox(
            False, label=words.SEVERAL, info=words.SEVERAL_INFO, elem_id="several"
        )
        strength = gr.Slider(
            0,
            1,
            0,
            step=0.05,
            label=words.VARIATION_STRENGTH,
            info=words.VARIATION_STRENGTH_INFO,
            elem_id="variation-strength",
        )
        variation = gr.Number(
            0,
            precision=0,
            minimum=0,
            maximum=MAX_SEED,
            label=words.VARIATION_SEED,
            info=words.VARIATION_SEED_INFO,
            elem_id="variation-seed",
        )
    chosen = style, negative, guidance, steps, randomise, seed, several, until, strength, variation
    return Advanced(style, seed, several, offered, (*chosen, offered.choice))


def _events(page: gr.Blocks, parts: Parts, drawing: Drawing, generator: Generator) -> None:
    kind = kind_of(generator.model)
    # What the browser does by itself stands first: Gradio has one event after the other answered.
    gr.on(
        [parts.prompt.submit, parts.generate.click],
        None,
        None,
        parts.linked,
        js="() => ''",
        **AT_ONCE,
    )
    # With one line Enter sends, with more it begins the next: from the very next key on.
    parts.several.change(
        None,
        parts.several,
        parts.prompt,
        js="(several) => ({ __type__: 'update', lines: several ? 4 : 1 })",
        **AT_ONCE,
    )
    gr.on(
        [parts.prompt.submit, parts.generate.click],
        drawing.for_page,
        list(parts.settings),
        parts.shown,
        **IN_THE_STRIP,
    )
    gr.on(
        [each.change for each in (parts.prompt, parts.style, parts.several)],
        drawing.length,
        [parts.prompt, parts.style, parts.several],
        parts.length,
        trigger_mode="always_last",
        **AT_ONCE,
    )
    parts.surprise.click(lambda: surprise(kind, Random()), None, parts.prompt, **AT_ONCE)
    restore.connect(parts.restorer, parts.settings, parts.strip, generator)
    new_seed = picked.connect(
        parts.panel, parts.gallery, parts.pictures, parts.settings, parts.strip, generator
    )
    new_seed.then(
        drawing.for_page,
        list(parts.settings),
        parts.shown,
        **IN_THE_STRIP,
    )
    parts.panel.variations.click(
        drawing.variations,
        [parts.panel.picture, parts.panel.strength],
        parts.shown,
        **IN_THE_STRIP,
    )
    link.connect(page, parts.linked, parts.settings, generator, styles_for(kind))
    sizes.connect(page, parts.sizes, generator)
    page.load(
        drawing.again,
        parts.request,
        parts.shown,
        **IN_THE_STRIP,
    )
    parts.stop.click(drawing.stop, parts.request, **AT_ONCE)


def _header(model: Model, kind: Kind) -> str:
    return f"<h1>{escape(words.title(model))}</h1><p>{escape(words.model_line(model, kind))}</p>"


def _footer(kind: Kind) -> str:
    return "<p>" + " ".join(_sentence(*line) for line in words.footer(kind)) + "</p>"


def _sentence(text: str, address: str | None) -> str:
    if address is None:
        return escape(text)
    return f'<a href="{escape(address)}" target="_blank" rel="noopener">{escape(text)}</a>'
